"""DescribeConfigs (key 32), versions 1 to 4: the settings of topics and of nodes (cluster/configs.py).

Deviations: a node lists only the few settings that describe this broker. They cannot change, and most have the
source STATIC_BROKER_CONFIG even if the value is the default. There are no texts of documentation. The synonyms of
retention.ms have no value in hours. There are no eligible leader replicas (KIP-966), and so no min.insync.replicas that
is set for the whole cluster.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.configs import Setting, node_settings, topic_settings
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.log.names import check_name
from kafkabuf.errors import InvalidRequestError, KafkaError, error_for_code
from kafkabuf.protocol.messages import DESCRIBE_CONFIGS, RequestHeader

TOPIC, BROKER = 2, 4


@api(DESCRIBE_CONFIGS, 1, 4, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    injected = node.cluster.faults.take_error(DESCRIBE_CONFIGS)
    return {
        "results": [_describe(node, resource, injected, request.include_synonyms) for resource in request.resources]
    }


def _describe(node: Node, resource: Any, injected: int, synonyms: bool) -> dict[str, Any]:
    result = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        if injected:
            raise error_for_code(injected)
        settings = _settings(node, resource.resource_type, resource.resource_name)
    except KafkaError as error:
        return {**result, "error_code": error.code, "error_message": str(error)}
    keys = resource.configuration_keys
    configs = [_describe_setting(setting, synonyms) for setting in settings if not keys or setting.name in keys]
    return {**result, "error_code": 0, "error_message": "", "configs": configs}


def _settings(node: Node, kind: int, name: str) -> list[Setting]:
    if kind == TOPIC:
        check_name(name)
        return list(topic_settings(node.cluster.config, node.cluster.catalogue.topic(name).configs))
    if kind == BROKER and name == str(node.node_id):
        return list(node_settings(node.cluster.config, node.node_id))
    if kind == BROKER and not name:
        return []
    raise InvalidRequestError(
        f"resource {name!r} of type {kind}: this node describes topics ({TOPIC}) and itself ({BROKER})"
    )


def _describe_setting(setting: Setting, synonyms: bool) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": setting.value,
        "read_only": setting.read_only,
        "config_source": setting.source,
        "is_sensitive": False,
        "synonyms": [
            {"name": name, "value": value, "source": source}
            for name, value, source in (setting.synonyms if synonyms else ())
        ],
        "config_type": setting.type,
        "documentation": None,
    }
