"""AlterConfigs (key 33), versions 0 to 2, on any node: replaces all settings of a topic.

Newer clients change single settings, with IncrementalAlterConfigs.

Deviation: only the settings of topics can change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.errors import InvalidRequestError, KafkaError, error_for_code
from kafkabuf.protocol.messages import ALTER_CONFIGS, RequestHeader

TOPIC = 2
# Returns the new settings of a topic, from the topic and the resource of the request.
Change = Callable[[Topic, Any], dict[str, str]]


@api(ALTER_CONFIGS, 0, 2, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    injected = node.cluster.faults.take_error(ALTER_CONFIGS)
    return {
        "responses": [
            alter(node, resource, _replace, request.validate_only, injected) for resource in request.resources
        ]
    }


def _replace(topic: Topic, resource: Any) -> dict[str, str]:
    return {config.name: config.value for config in resource.configs}


def alter(node: Node, resource: Any, change: Change, dry_run: bool, injected: int) -> dict[str, Any]:
    """Alters one resource, and returns its result. IncrementalAlterConfigs passes another `change`."""
    result = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        if injected:
            raise error_for_code(injected)
        _check(resource)
        topic = node.cluster.catalogue.topic(resource.resource_name)
        node.cluster.catalogue.configure_topic(topic, change(topic, resource), dry_run=dry_run)
    except KafkaError as error:
        return {**result, "error_code": error.code, "error_message": str(error)}
    return {**result, "error_code": 0, "error_message": None}


def _check(resource: Any) -> None:
    names = [config.name for config in resource.configs]
    if resource.resource_type != TOPIC:
        raise InvalidRequestError(
            f"resource type {resource.resource_type}: only the settings of topics ({TOPIC}) can change"
        )
    if not resource.resource_name:
        raise InvalidRequestError("Default topic resources are not allowed.")
    if len(set(names)) != len(names):
        raise InvalidRequestError("Error due to duplicate config keys")
