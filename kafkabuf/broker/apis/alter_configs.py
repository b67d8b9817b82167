"""AlterConfigs (key 33), versions 0 to 2, on any node: a topic's settings are those of the request and no others. Newer
clients change them one by one, by IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.errors import InvalidRequestError, KafkaError, error_for_code
from kafkabuf.protocol.messages import ALTER_CONFIGS, RequestHeader

TOPIC = 2
# From a topic and what is asked for it to the settings that it is to have.
Change = Callable[[Topic, Any], dict[str, str]]


@api(ALTER_CONFIGS, 0, 2, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    injected = node.cluster.faults.take_error(ALTER_CONFIGS)
    return {"responses": [alter(node, one, _replace, request.validate_only, injected) for one in request.resources]}


def _replace(topic: Topic, asked: Any) -> dict[str, str]:
    return {one.name: one.value for one in asked.configs}


def alter(node: Node, asked: Any, change: Change, dry_run: bool, injected: int) -> dict[str, Any]:
    """The answer for one resource. IncrementalAlterConfigs differs by its `change`."""
    result = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    try:
        if injected:
            raise error_for_code(injected)
        _check(asked)
        topic = node.cluster.catalogue.topic(asked.resource_name)
        node.cluster.catalogue.configure_topic(topic, change(topic, asked), dry_run=dry_run)
    except KafkaError as error:
        return {**result, "error_code": error.code, "error_message": str(error)}
    return {**result, "error_code": 0, "error_message": None}


def _check(asked: Any) -> None:
    names = [one.name for one in asked.configs]
    if asked.resource_type != TOPIC:
        raise InvalidRequestError(
            f"resource type {asked.resource_type}: only the settings of topics ({TOPIC}) change here"
        )
    if not asked.resource_name:
        raise InvalidRequestError("Default topic resources are not allowed.")
    if len(set(names)) != len(names):
        raise InvalidRequestError("Error due to duplicate config keys")
