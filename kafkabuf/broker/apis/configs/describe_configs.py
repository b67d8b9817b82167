"""DescribeConfigs (key 32), versions 1 to 4: the settings of resources, and the levels of loggers.

Any node describes topics, groups and subscriptions. A node describes itself and its logger alone.

Deviations: there are no texts of documentation. There is one logger, whose level all nodes share (configs/loggers.py).
A setting of nodes that the cluster does not follow has Kafka's default. A resource that the request repeats comes once.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

from kafkabuf.broker.apis.configs.alter_configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC, check_number
from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.configs import loggers
from kafkabuf.broker.configs.setting import Setting
from kafkabuf.broker.configs.topics import topic_settings
from kafkabuf.broker.guards.acls import Operation
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.log.names import check_name
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRequestError, KafkaError, error_for_code
from kafkabuf.protocol.messages import DESCRIBE_CONFIGS, RequestHeader

_OTHER_NODE = "Unexpected broker id, expected {} but received {}"
_NO_NUMBER = "Broker id must be an integer, but it is: {}"


@api(DESCRIBE_CONFIGS, 1, 4, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_describe_all(node, request, rights_of(header)))


def _describe_all(node: Node, request: Any, rights: Rights) -> Work[dict[str, Any]]:
    """A resource that the request repeats is described once: a small request must not fill the memory."""
    injected = node.cluster.faults.take_error(DESCRIBE_CONFIGS)
    described: dict[Any, dict[str, Any]] = {}
    results = []
    for resource in request.resources:
        name = _canonical_name(resource.resource_type, resource.resource_name)
        key = resource.resource_type, name, resource.configuration_keys
        if key not in described:
            described[key] = _describe(node, resource, injected, request.include_synonyms, rights)
            results.append(described[key])
        yield
    return {"results": results}


def _canonical_name(kind: int, name: str) -> str:
    """A client can write a node's number in many ways: 1, 01, 001 and so on."""
    if kind in (BROKER, BROKER_LOGGER) and name:
        try:
            return str(int(name))
        except ValueError:
            return name
    return name


def _describe(node: Node, resource: Any, injected: int, synonyms: bool, rights: Rights) -> dict[str, Any]:
    result = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        if injected:
            raise error_for_code(injected)
        rights.check_configs(Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
        settings = _settings(node, resource.resource_type, resource.resource_name)
        next(iter(settings()), None)  # raises if there is no such resource
    except KafkaError as error:
        return {**result, "error_code": error.code, "error_message": str(error)}
    keys = set(resource.configuration_keys or ())
    return {**result, "error_code": 0, "error_message": "", "configs": _Configs(settings, keys, synonyms)}


class _Configs:
    """The described settings of a resource. They are made when the response is encoded: those of thousands of topics
    would fill the memory."""

    def __init__(self, settings: Callable[[], Iterable[Setting]], keys: Collection[str], synonyms: bool) -> None:
        self._settings = settings
        self._keys = keys
        self._synonyms = synonyms

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for setting in self._settings():
            if not self._keys or setting.name in self._keys:
                yield _describe_setting(setting, self._synonyms)


def _settings(node: Node, kind: int, name: str) -> Callable[[], Iterable[Setting]]:
    cluster = node.cluster
    if kind == TOPIC:
        check_name(name)
        return partial(topic_settings, cluster.node_configs, node.node_id, cluster.catalogue.topic(name).configs)
    if kind == BROKER:
        if not name:
            return cluster.node_configs.describe_shared
        check_number(node, name, _OTHER_NODE, _NO_NUMBER)
        return partial(cluster.node_configs.describe, node)
    if kind == BROKER_LOGGER:
        if not name:
            raise InvalidRequestError("Broker id must not be empty")
        check_number(node, name, _OTHER_NODE, _NO_NUMBER)
        return loggers.describe
    if kind == GROUP:
        return partial(cluster.group_configs.describe, name)
    if kind == CLIENT_METRICS:
        return partial(cluster.metrics_configs.describe, name)
    raise InvalidRequestError(f"resource {name!r} of type {kind}: there are no settings of this type")


def _describe_setting(setting: Setting, synonyms: bool) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": setting.value,
        "read_only": setting.read_only,
        "config_source": setting.source,
        "is_sensitive": setting.sensitive,
        "synonyms": [
            {"name": name, "value": value, "source": source}
            for name, value, source in (setting.synonyms if synonyms else ())
        ],
        "config_type": setting.type,
        "documentation": setting.documentation,
    }
