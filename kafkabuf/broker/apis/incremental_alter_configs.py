"""IncrementalAlterConfigs (key 44), versions 0 and 1, on any node: changes single settings of topics (KIP-339).

The request sets or deletes a setting, or adds words to or removes words from a setting that is a list.

Deviation: only the settings of topics can change.
"""

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
    return {
        "responses": [alter(node, resource, _change, request.validate_only, injected) for resource in request.resources]
    }


def _change(topic: Topic, resource: Any) -> dict[str, str]:
    configs = dict(topic.configs)
    for config in resource.configs:
        if config.config_operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise InvalidRequestError(f"operation {config.config_operation}: 0 (set) to 3 (subtract) are known")
        if config.config_operation == DELETE:
            configs.pop(config.name, None)
        elif config.value is None:
            raise InvalidRequestError(f"Null value not supported for : {config.name}")
        elif config.config_operation == SET:
            configs[config.name] = config.value
        else:
            configs[config.name] = _change_list(configs, config)
    return configs


def _change_list(configs: dict[str, str], config: Any) -> str:
    kind = TOPIC_CONFIGS.get(config.name)
    if kind is None or kind.type != LIST:
        raise InvalidConfigError(f"{config.name} is not a list: set it, instead of adding to or removing from it")
    present = [word for word in configs.get(config.name, kind.default).split(",") if word]
    words = config.value.split(",")
    if config.config_operation == APPEND:
        return ",".join([*present, *(word for word in words if word not in present)])
    return ",".join(word for word in present if word not in words)
