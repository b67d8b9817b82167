"""IncrementalAlterConfigs (key 44), versions 0 and 1, on any node: changes single settings of resources.

Resources are topics, nodes, groups, subscriptions to metrics and the levels of loggers (KIP-339, KIP-412). The request
sets or deletes a setting, or adds words to or removes words from a setting that is a list.

Deviations: a node refuses a setting of nodes that the embedded cluster does not follow (configs/nodes.py). The node
knows one logger (configs/loggers.py). It refuses an operation that Kafka does not know, with an error.
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from collections.abc import Mapping
from typing import Any

from kafkabuf.broker.apis.configs.alter_configs import BROKER_LOGGER, Target, alter, alter_all, check_number
from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.configs import loggers
from kafkabuf.broker.guards.acls import Operation
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.errors import InvalidConfigError, InvalidRequestError
from kafkabuf.protocol.messages import INCREMENTAL_ALTER_CONFIGS, RequestHeader

SET, DELETE, APPEND, SUBTRACT = range(4)


@api(INCREMENTAL_ALTER_CONFIGS, 0, 1, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    injected, rights = node.cluster.faults.take_error(INCREMENTAL_ALTER_CONFIGS), rights_of(header)

    def change(resource: Any) -> None:
        rights.check_configs(Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
        if resource.resource_type == BROKER_LOGGER:
            _alter_loggers(node, resource, request.validate_only)
        else:
            alter(node, resource, _change, request.validate_only)

    return node.cluster.slices.run(alter_all(request, change, injected), goes_on=True)


def _alter_loggers(node: Node, resource: Any, dry_run: bool) -> None:
    check_number(node, resource.resource_name, "Unexpected node id. Expected {}, but received {}")
    # All are checked before the first changes.
    for dry in (True, False)[: 2 - dry_run]:
        for config in resource.configs:
            loggers.alter(config.name, config.value, config.config_operation, dry_run=dry)


def _change(target: Target, resource: Any) -> Mapping[str, str]:
    configs = dict(target.configs)
    for config in resource.configs:
        if config.config_operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise InvalidRequestError(f"operation {config.config_operation}: 0 (set) to 3 (subtract) are known")
        if config.config_operation == DELETE:
            configs.pop(config.name, None)
        elif config.config_operation == SET:
            configs[config.name] = config.value
        else:
            configs[config.name] = _change_list(target, configs, config)
    return configs


def _change_list(target: Target, configs: Mapping[str, str], config: Any) -> str:
    """The list after the words of `config` were added or removed. A word is removed once, as in Kafka."""
    name, adds = config.name, config.config_operation == APPEND
    if name not in target.lists:
        operation = "append" if adds else "subtract"
        if target.is_node:
            raise InvalidConfigError(f"Config value {operation} is not allowed for config key: {name}")
        raise InvalidConfigError(f"Can't {operation.upper()} to key {name} because its type is not LIST.")
    present = [word for word in configs.get(name, target.lists[name]).split(",") if word]
    words = _words(config.value)
    if adds:
        known = set(present)
        return ",".join([*present, *(word for word in dict.fromkeys(words) if word not in known)])
    left = Counter(words)
    kept = []
    for word in present:
        left[word] -= 1
        if left[word] < 0:
            kept.append(word)
    return ",".join(kept)


def _words(text: str) -> list[str]:
    """The words of a list, as Java splits them: a comma at the end adds no empty word."""
    return text.rstrip(",").split(",") if text.strip(",") or not text else []
