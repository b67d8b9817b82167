"""DescribeConfigs (key 32), versions 1 to 4, of topics and of nodes.

Told are the settings that act here, those that say how this broker is, and whatever else a topic was made with.
Deviation: no synonyms, no documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkabuf.broker.dispatch import api
from kafkabuf.broker.topics import Topic
from kafkabuf.broker.transactions import MAX_TIMEOUT_MS
from kafkabuf.errors import InvalidRequestError, KafkaError
from kafkabuf.protocol.messages import DESCRIBE_CONFIGS, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node

TOPIC, BROKER = 2, 4
# Where a value comes from, and of what type it is.
_OF_TOPIC, _OF_BROKER, _DEFAULT = 1, 4, 5
_BOOLEAN, _STRING, _INT, _LONG, _LIST = 1, 2, 3, 5, 7
_TOPIC_TYPES = {
    "cleanup.policy": _LIST,
    "compression.type": _STRING,
    "max.message.bytes": _INT,
    "message.timestamp.type": _STRING,
    "min.insync.replicas": _INT,
    "retention.bytes": _LONG,
    "retention.ms": _LONG,
}
# (name, value, type, where from)
_Setting = tuple[str, str, int, int]


@api(DESCRIBE_CONFIGS, 1, 4, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    injected = node.cluster.faults.take_error(DESCRIBE_CONFIGS)
    return {"results": [_describe(node, asked, injected) for asked in request.resources]}


def _describe(node: Node, asked: Any, injected: int) -> dict[str, Any]:
    result = {"resource_type": asked.resource_type, "resource_name": asked.resource_name, "error_message": None}
    if injected:
        return {**result, "error_code": injected}
    try:
        settings = _settings(node, asked.resource_type, asked.resource_name)
    except KafkaError as error:
        return {**result, "error_code": error.code, "error_message": str(error)}
    wanted = asked.configuration_keys
    told = [_tell(*one) for one in settings if wanted is None or one[0] in wanted]
    return {**result, "error_code": 0, "configs": told}


def _settings(node: Node, kind: int, name: str) -> list[_Setting]:
    if kind == TOPIC:
        return _topic_settings(node, node.cluster.topic(name))
    if kind == BROKER and name == str(node.node_id):
        return _node_settings(node)
    raise InvalidRequestError(
        f"resource {name!r} of type {kind}: topics ({TOPIC}) and this node ({BROKER}) are told of"
    )


def _topic_settings(node: Node, topic: Topic) -> list[_Setting]:
    defaults = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": str(node.cluster.config.max_message_bytes),
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": "1",
        "retention.bytes": _bytes(node.cluster.config.retention_bytes),
        "retention.ms": "-1",
    }
    values = {**defaults, **topic.configs}
    return [
        (name, value, _TOPIC_TYPES.get(name, _STRING), _OF_TOPIC if name in topic.configs else _DEFAULT)
        for name, value in values.items()
    ]


def _node_settings(node: Node) -> list[_Setting]:
    config = node.cluster.config
    return [
        ("broker.id", str(node.node_id), _INT, _OF_BROKER),
        ("auto.create.topics.enable", str(config.auto_create_topics).lower(), _BOOLEAN, _OF_BROKER),
        ("log.retention.bytes", _bytes(config.retention_bytes), _LONG, _OF_BROKER),
        ("message.max.bytes", str(config.max_message_bytes), _INT, _OF_BROKER),
        ("num.partitions", str(config.default_partitions), _INT, _OF_BROKER),
        ("transaction.max.timeout.ms", str(MAX_TIMEOUT_MS), _INT, _DEFAULT),
    ]


def _bytes(kept: int | None) -> str:
    return "-1" if kept is None else str(kept)


def _tell(name: str, value: str, kind: int, source: int) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": source == _OF_BROKER,
        "config_source": source,
        "is_sensitive": False,
        "config_type": kind,
        "documentation": None,
    }
