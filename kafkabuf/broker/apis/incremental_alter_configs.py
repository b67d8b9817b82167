"""IncrementalAlterConfigs (key 44), versions 0 and 1, on any node: sets or deletes single settings of topics, adds
to and takes from those that are lists (KIP-339)."""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.alter_configs import alter
from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.configs import LIST, TOPIC_CONFIGS
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.errors import InvalidConfigError, InvalidRequestError
from kafkabuf.protocol.messages import INCREMENTAL_ALTER_CONFIGS, RequestHeader

SET, DELETE, APPEND, SUBTRACT = range(4)


@api(INCREMENTAL_ALTER_CONFIGS, 0, 1, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    injected = node.cluster.faults.take_error(INCREMENTAL_ALTER_CONFIGS)
    return {"responses": [alter(node, one, _change, request.validate_only, injected) for one in request.resources]}


def _change(topic: Topic, asked: Any) -> dict[str, str]:
    configs = dict(topic.configs)
    for one in asked.configs:
        if one.config_operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise InvalidRequestError(f"operation {one.config_operation}: 0 (set) to 3 (subtract) are known")
        if one.config_operation == DELETE:
            configs.pop(one.name, None)
        elif one.value is None:
            raise InvalidRequestError(f"Null value not supported for : {one.name}")
        elif one.config_operation == SET:
            configs[one.name] = one.value
        else:
            configs[one.name] = _list(configs, one)
    return configs


def _list(configs: dict[str, str], asked: Any) -> str:
    kind = TOPIC_CONFIGS.get(asked.name)
    if kind is None or kind.type != LIST:
        raise InvalidConfigError(f"{asked.name} is no list that could be added to or taken from")
    present = [word for word in configs.get(asked.name, kind.default).split(",") if word]
    words = asked.value.split(",")
    if asked.config_operation == APPEND:
        return ",".join([*present, *(word for word in words if word not in present)])
    return ",".join(word for word in present if word not in words)
