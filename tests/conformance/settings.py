"""Steps of script.py: settings, and the cluster itself."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from kafkabuf.protocol import messages as m
from tests.conformance.script import Conversation, step
from tests.conformance.topics import PATIENCE, make_topic

_NUMBERS = count(1)
TOPIC, BROKER = 2, 4


@step(m.DESCRIBE_CONFIGS)
def describes_configs(talk: Conversation, version: int) -> None:
    name = talk.own("s")
    make_topic(talk, name, retention_bytes="5000", max_message_bytes="99999")

    def query(label: str, kind: int, resource: str, keys: list[str] | None, **more: Any) -> None:
        resource_entry = {"resource_type": kind, "resource_name": resource, "configuration_keys": keys}
        talk.ask(label, resources=[resource_entry], **more)

    query("a topic", TOPIC, name, None)
    query("with synonyms", TOPIC, name, None, include_synonyms=True)
    query("some", TOPIC, name, ["retention.bytes", "such.a.setting"])
    query("none", TOPIC, name, [])
    query("no such topic", TOPIC, f"{name}-none", None)
    query("no topic's name", TOPIC, "a b", None)
    query("a node", BROKER, "1", ["message.max.bytes", "default.replication.factor", "transaction.max.timeout.ms"])
    query("no such node", BROKER, "999", None)
    query("no number", BROKER, "x", None)
    query("all nodes", BROKER, "", None)
    query("no such kind", 99, name, None)


@step(m.ALTER_CONFIGS)
def alters_configs(talk: Conversation, version: int) -> None:
    name = talk.own("a")
    make_topic(talk, name, retention_bytes="5000")
    _alters(talk, name, lambda key, value, _: {"name": key, "value": value})


@step(m.INCREMENTAL_ALTER_CONFIGS)
def alters_single_configs(talk: Conversation, version: int) -> None:
    """An unknown operation is missing here: Kafka 4.1.2's controller resigns over it, and later tests would fail."""
    name = talk.own("i")
    make_topic(talk, name, retention_bytes="5000")
    _alters(talk, name, lambda key, value, operation: {"name": key, "value": value, "config_operation": operation})
    for label, key, value, operation in (
        ("add to no list", "retention.ms", "5", 2),
        ("add to a list", "cleanup.policy", "compact", 2),
        ("add it again", "cleanup.policy", "compact", 2),
        ("take from a list", "cleanup.policy", "delete", 3),
        ("take what is not there", "cleanup.policy", "delete", 3),
        ("set to null", "retention.ms", None, 0),
        ("delete", "retention.ms", None, 1),
        ("delete what is not there", "retention.ms", None, 1),
    ):
        resource_entry = {"name": key, "value": value, "config_operation": operation}
        _alter(talk, label, TOPIC, name, [resource_entry])
        talk.record(f"after: {label}", _configured(talk, name))
    # Kafka 4.1.2 never answers an AlterConfigs request that does so.
    resource = {"resource_type": TOPIC, "resource_name": name, "configs": []}
    talk.ask("a resource twice", resources=[resource, resource], validate_only=False)


def _alters(talk: Conversation, name: str, entry: Any) -> None:
    _alter(talk, "set", TOPIC, name, [entry("retention.ms", "7777", 0)])
    talk.record("after: set", _configured(talk, name))
    for label, kind, resource, configs in (
        ("only asked whether", TOPIC, name, [("retention.ms", "8888")]),
        ("no such setting", TOPIC, name, [("such.a.setting", "1")]),
        ("no number", TOPIC, name, [("retention.ms", "x")]),
        ("out of range", TOPIC, name, [("min.insync.replicas", "0")]),
        ("twice", TOPIC, name, [("retention.ms", "1"), ("retention.ms", "2")]),
        ("no such topic", TOPIC, f"{name}-none", [("retention.ms", "1")]),
        ("no name", TOPIC, "", [("retention.ms", "1")]),
        ("no such kind", 99, name, [("retention.ms", "1")]),
        ("nothing", TOPIC, name, []),
    ):
        resource_entry = [entry(key, value, 0) for key, value in configs]
        _alter(talk, label, kind, resource, resource_entry, validate_only=label == "only asked whether")
        talk.record(f"after: {label}", _configured(talk, name))


def _alter(
    talk: Conversation, label: str, kind: int, name: str, configs: list[Any], *, validate_only: bool = False
) -> None:
    resource_entry = {"resource_type": kind, "resource_name": name, "configs": configs}
    talk.ask(label, resources=[resource_entry], validate_only=validate_only)


def _configured(talk: Conversation, name: str) -> Any:
    """The topic's own settings. Kafka's nodes learn of changes late but in order: change a further setting and wait."""
    mark = str(next(_NUMBERS))
    configs = [{"name": "flush.ms", "value": mark, "config_operation": 0}]
    resource_entry = {"resource_type": TOPIC, "resource_name": name}
    talk.do(m.INCREMENTAL_ALTER_CONFIGS, 1, resources=[{**resource_entry, "configs": configs}], validate_only=False)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        (described,) = talk.do(
            m.DESCRIBE_CONFIGS, 4, resources=[{**resource_entry, "configuration_keys": None}]
        ).results
        configured = {entry.name: entry.value for entry in described.configs if entry.config_source == 1}
        if configured.pop("flush.ms", None) == mark:
            return tuple(sorted(configured.items()))
        time.sleep(0.01)
    raise AssertionError(f"the node does not learn of the settings of {name}")


# ---- the cluster


@step(m.API_VERSIONS)
def tells_versions(talk: Conversation, version: int) -> None:
    talk.ask("a client", client_software_name="raw", client_software_version="1.0")
    if version >= 3:
        for label, name in (("no name", ""), ("an odd name", "a b")):
            talk.ask(label, client_software_name=name, client_software_version="1.0")


@step(m.SASL_HANDSHAKE)
def shakes_hands(talk: Conversation, version: int) -> None:
    """On a listener without SASL."""
    for mechanism in ("PLAIN", "NONSENSE"):
        talk.ask(mechanism, mechanism=mechanism)


@step(m.SASL_AUTHENTICATE)
def authenticates(talk: Conversation, version: int) -> None:
    talk.ask("without a handshake", auth_bytes=b"\0user\0password")


@step(m.DESCRIBE_CLUSTER)
def describes_cluster(talk: Conversation, version: int) -> None:
    talk.ask("it")
    talk.ask("with operations", include_cluster_authorized_operations=True)
    if version:
        talk.ask("controllers", endpoint_type=2)
        talk.ask("neither", endpoint_type=7)
    if version >= 2:
        talk.ask("fenced nodes too", include_fenced_brokers=True)


@step(m.DESCRIBE_LOG_DIRS)
def describes_log_dirs(talk: Conversation, version: int) -> None:
    talk.ask("one", topics=[{"topic": talk.topic, "partitions": [0, 1]}])
    talk.ask("no such partition", topics=[{"topic": talk.topic, "partitions": [9]}])
    talk.ask("no such topic", topics=[{"topic": f"{talk.topic}-none", "partitions": [0]}])
    talk.ask("nothing", topics=[])
