"""AlterConfigs (key 33), versions 0 to 2, on any node: replaces all settings of a resource.

The resource is a topic, the nodes, a group or a subscription to metrics. Newer clients change single settings, with
IncrementalAlterConfigs.

Deviations: a node refuses a setting of nodes that the embedded cluster does not follow (configs/nodes.py). The settings
of share groups, of streams groups and of subscriptions have no effect (configs/resources.py).
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.configs.kinds import LIST
from kafkabuf.broker.configs.topics import TOPIC_CONFIGS
from kafkabuf.broker.guards.acls import Operation
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRequestError, KafkaError, error_for_code
from kafkabuf.protocol.messages import ALTER_CONFIGS, RequestHeader

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
DELETE = 1


@dataclass(frozen=True, slots=True)
class Target:
    """What a request alters. `configs` are the settings that it has, `lists` those of its settings to which a client
    can add words, with their defaults. `replace` takes the new settings, and whether they are only to be checked."""

    configs: Mapping[str, str]
    lists: Mapping[str, str]
    replace: Callable[[Mapping[str, str], bool], None]
    is_node: bool = False


# Returns the new settings of a target, from the target and the resource of the request.
Change = Callable[[Target, Any], Mapping[str, str]]


@api(ALTER_CONFIGS, 0, 2, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    injected, rights = node.cluster.faults.take_error(ALTER_CONFIGS), rights_of(header)

    def change(resource: Any) -> None:
        rights.check_configs(Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
        alter(node, resource, _replace, request.validate_only)

    return node.cluster.slices.run(alter_all(request, change, injected), goes_on=True)


def _replace(target: Target, resource: Any) -> Mapping[str, str]:
    return {config.name: config.value for config in resource.configs}


def alter_all(request: Any, change: Callable[[Any], None], injected: int) -> Work[dict[str, Any]]:
    """Alters the resources of a request, and returns the response. `change` alters one resource."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    responses = []
    for resource in request.resources:
        repeats = times[resource.resource_type, resource.resource_name]
        responses.append(_result(resource, change, injected, repeats))
        yield
    return {"responses": responses}


def _result(resource: Any, change: Callable[[Any], None], injected: int, times: int) -> dict[str, Any]:
    named = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        if injected:
            raise error_for_code(injected)
        if times > 1:
            raise InvalidRequestError("Each resource must appear at most once.")
        check_values(resource)
        change(resource)
    except KafkaError as error:
        return {**named, "error_code": error.code, "error_message": str(error)}
    return {**named, "error_code": 0, "error_message": None}


def check_values(resource: Any) -> None:
    """Raises InvalidRequestError if a setting comes twice, or without a value."""
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        raise InvalidRequestError("Error due to duplicate config keys")
    without = [
        config.name
        for config in resource.configs
        if config.value is None and getattr(config, "config_operation", None) != DELETE
    ]
    if without:
        raise InvalidRequestError(f"Null value not supported for : {', '.join(without)}")


def alter(node: Node, resource: Any, change: Change, dry_run: bool) -> None:
    """Gives a resource its new settings. IncrementalAlterConfigs passes another `change`."""
    target = _target(node, resource.resource_type, resource.resource_name)
    target.replace(change(target, resource), dry_run)


def _target(node: Node, kind: int, name: str) -> Target:
    cluster = node.cluster
    if kind == TOPIC:
        if not name:
            raise InvalidRequestError("Default topic resources are not allowed.")
        topic, catalogue = cluster.catalogue.topic(name), cluster.catalogue
        lists = {setting: entry.default for setting, entry in TOPIC_CONFIGS.items() if entry.type == LIST}
        return Target(topic.configs, lists, lambda new, dry: catalogue.configure_topic(topic, new, dry_run=dry))
    if kind == BROKER:
        if name:
            check_number(node, name, "Unexpected broker id, expected {}, but received {}")
        nodes = cluster.node_configs
        own = nodes.dynamic(name)
        return Target(own, nodes.lists(), lambda new, dry: nodes.replace(name, new, dry_run=dry), is_node=True)
    if kind == GROUP:
        groups = cluster.group_configs
        return Target(groups.of(name), {}, lambda new, dry: groups.replace(name, new, dry_run=dry))
    if kind == CLIENT_METRICS:
        metrics = cluster.metrics_configs
        return Target(metrics.of(name), {}, lambda new, dry: metrics.replace(name, new, dry_run=dry))
    raise InvalidRequestError(f"Unknown resource type {kind}")


def check_number(
    node: Node, name: str, other: str, not_a_number: str = "Node id must be an integer, but it is: {}"
) -> None:
    """Raises InvalidRequestError if `name` is not the number of this node."""
    try:
        number = int(name)
    except ValueError:
        raise InvalidRequestError(not_a_number.format(name)) from None
    if number != node.node_id:
        raise InvalidRequestError(other.format(node.node_id, number))
