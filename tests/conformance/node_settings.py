"""Steps of script.py: the settings of nodes, groups and subscriptions, the levels of loggers, and the quorum."""

from __future__ import annotations

import time
from typing import Any

from kafkabuf.protocol import messages as m
from tests.conformance.script import Conversation, step
from tests.conformance.topics import PATIENCE, make_topic

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
Operation = tuple[str, str | None, int]
METADATA = "__cluster_metadata"
DEFAULT = 5
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
# What rigs/real_kafka.py sets, and what is another value at each start.
_OF_THE_RIG = {
    *("advertised.listeners", "controlled.shutdown.enable", "controller.listener.names", "controller.quorum.voters"),
    *("inter.broker.listener.name", "listener.security.protocol.map", "listeners", "log.cleaner.dedupe.buffer.size"),
    *("log.dirs", "num.partitions", "offsets.topic.num.partitions", "offsets.topic.replication.factor"),
    *("transaction.state.log.min.isr", "transaction.state.log.num.partitions"),
    "transaction.state.log.replication.factor",
}


def _describe(talk: Conversation, kind: int, name: str, keys: list[str] | None = None, **more: Any) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return talk.do(m.DESCRIBE_CONFIGS, 4, resources=[resource], **{"include_synonyms": True, **more}).results[0]


def _change(talk: Conversation, kind: int, name: str, *operations: Operation, dry_run: bool = False) -> Any:
    configs = [{"name": key, "value": value, "config_operation": operation} for key, value, operation in operations]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return talk.do(m.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=dry_run).responses[0]


def _replace(talk: Conversation, kind: int, name: str, *configs: tuple[str, str | None], dry_run: bool = True) -> Any:
    items = [{"name": key, "value": value} for key, value in configs]
    resource = {"resource_type": kind, "resource_name": name, "configs": items}
    return talk.do(m.ALTER_CONFIGS, 2, resources=[resource], validate_only=dry_run).responses[0]


def _told(talk: Conversation, label: str, answer: Any) -> None:
    """Record an error with its text."""
    talk.record(label, f"{int(answer.error_code)} {answer.error_message}")


# ---- descriptions


def _outline(entry: Any) -> str:
    """What of a setting does not depend on the values that this broker was started with."""
    defaults = [f"{item.name}={item.value}" for item in entry.synonyms if item.source == DEFAULT]
    kind = getattr(entry, "config_type", None)
    return f"{kind} {entry.read_only} {entry.is_sensitive} {defaults}"


@step(m.DESCRIBE_CONFIGS)
def describes_nodes(talk: Conversation, version: int) -> None:
    def query(label: str, kind: int, name: str, keys: list[str] | None = None, **more: Any) -> None:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        talk.ask(label, resources=[resource], **more)

    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
    (node,) = talk.do(m.DESCRIBE_CONFIGS, version, resources=[resource], include_synonyms=True).results
    talk.record("the settings of a node", {entry.name: _outline(entry) for entry in node.configs})
    own = {entry.name: talk.plain(entry) for entry in node.configs if entry.name not in _OF_THE_RIG}
    talk.record("the values of a node", own)
    resource = {"resource_type": LOGGER, "resource_name": "1", "configuration_keys": ["root"]}
    (logger,) = talk.do(m.DESCRIBE_CONFIGS, version, resources=[resource], include_synonyms=True).results
    talk.record("a logger", {**talk.plain(logger.configs[0]), "value": logger.configs[0].value in _LEVELS})
    query("no such logger", LOGGER, "1", ["such.a.logger"])
    for name in ("", "2", "x"):
        query(f"the loggers of {name!r}", LOGGER, name)
    for kind, label in ((GROUP, "group"), (METRICS, "subscription")):
        query(f"a {label}", kind, talk.own("none"), include_synonyms=True)
        query(f"a {label} without a name", kind, "")
    for kind in (0, 1, 3):
        query(f"type {kind}", kind, "1")
    resource = {"resource_type": TOPIC, "resource_name": talk.topic, "configuration_keys": ["retention.ms"]}
    talk.ask("the same twice", resources=[resource] * 2)
    if version >= 3:
        query("with documentation", TOPIC, talk.topic, ["retention.ms"], include_documentation=True)


# ---- changes of nodes


@step(m.INCREMENTAL_ALTER_CONFIGS)
def changes_nodes(talk: Conversation, version: int) -> None:
    if version < 1:
        return
    for node in ("", "1"):
        cases: dict[str, list[Operation]] = {
            "read-only": [("num.partitions", "2", SET)],
            "no value": [("message.max.bytes", None, SET)],
            "no number": [("message.max.bytes", "x", SET)],
            "too small": [("log.segment.bytes", "14", SET)],
            "no retention": [("log.retention.ms", "0", SET)],
            "a flush": [("log.flush.interval.ms", "-1", SET)],
            "add to no list": [("message.max.bytes", "5", APPEND)],
            "take from no list": [("message.max.bytes", "5", SUBTRACT)],
            "add to a list": [("log.cleanup.policy", "compact", APPEND)],
            "take from a list": [("log.cleanup.policy", "delete", SUBTRACT)],
            "delete what is not set": [("message.max.bytes", None, DELETE), ("such.a.setting", None, DELETE)],
            "twice": [("message.max.bytes", "5", SET), ("message.max.bytes", "6", SET)],
            "both": [("message.max.bytes", "5", SET), ("num.partitions", "2", SET)],
            "replicas in sync": [("min.insync.replicas", "1", SET)],
            "no replicas in sync": [("min.insync.replicas", None, DELETE)],
            "nothing": [],
            "no such setting": [("such.a.setting", "1", SET)],
            "connections": [("max.connections", "-1", SET)],
            "connections of an address": [("max.connections.per.ip", "0", SET)],
            "exceptional connections": [("max.connections.per.ip.overrides", "127.0.0.1:x", SET)],
            "fewer connections": [("max.connections", "5", SET), ("max.connections.per.ip", "4", SET)],
            "threads": [("num.io.threads", "8", SET)],
        }
        for label, operations in cases.items():
            _told(talk, f"node {node!r}: {label}", _change(talk, BROKER, node, *operations, dry_run=True))
    for node in ("2", "x"):
        _told(talk, f"node {node!r}", _change(talk, BROKER, node, ("message.max.bytes", "5", SET), dry_run=True))
    _changes_defaults(talk)


def _changes_defaults(talk: Conversation) -> None:
    """The defaults of topics follow the settings of all nodes, and those of this node go before them."""
    topic = talk.own("defaults")
    make_topic(talk, topic)
    names = ["message.max.bytes", "log.cleanup.policy", "log.roll.ms", "log.retention.ms", "log.flush.interval.ms"]
    names += ["log.roll.jitter.ms", "log.retention.minutes", "min.insync.replicas"]
    of_topic = ["max.message.bytes", "cleanup.policy", "segment.ms", "retention.ms", "flush.ms", "segment.jitter.ms"]
    of_topic += ["min.insync.replicas"]
    values = {"message.max.bytes": "5000", "log.cleanup.policy": "compact,delete", "log.roll.ms": "99999"}
    values |= {"log.retention.ms": "7000", "log.flush.interval.ms": "800", "log.roll.jitter.ms": "3"}

    def show(label: str, expected: str) -> None:
        _await(talk, lambda: _describe(talk, TOPIC, topic, ["max.message.bytes"]), expected)
        talk.record(f"{label}: the node", _describe(talk, BROKER, "1", names))
        talk.record(f"{label}: all nodes", _describe(talk, BROKER, ""))
        talk.record(f"{label}: a topic", _describe(talk, TOPIC, topic, of_topic))

    try:
        _told(talk, "all nodes", _change(talk, BROKER, "", *((name, value, SET) for name, value in values.items())))
        show("all nodes", "5000")
        _told(talk, "this node", _change(talk, BROKER, "1", ("message.max.bytes", "6000", SET)))
        show("this node", "6000")
        _told(talk, "replaced", _replace(talk, BROKER, "1", ("message.max.bytes", "7000"), dry_run=False))
        show("replaced", "7000")
        _told(talk, "emptied", _replace(talk, BROKER, "1", dry_run=False))
        show("emptied", "5000")
    finally:
        _change(talk, BROKER, "", *((name, None, DELETE) for name in values))
    show("deleted", "1048588")


def _await(talk: Conversation, describe: Any, value: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while (shown := describe().configs[0].value) != value:
        assert time.monotonic() < deadline, (shown, value)
        time.sleep(0.01)


@step(m.ALTER_CONFIGS)
def replaces_other_settings(talk: Conversation, version: int) -> None:
    if version < 2:
        return
    cases: dict[str, list[tuple[str, str | None]]] = {
        "read-only": [("num.partitions", "2")],
        "no value": [("message.max.bytes", None)],
        "no number": [("message.max.bytes", "x")],
        "set": [("message.max.bytes", "5")],
        "nothing": [],
    }
    for node in ("", "1", "2", "x"):
        for label, configs in cases.items():
            _told(talk, f"node {node!r}: {label}", _replace(talk, BROKER, node, *configs))
    _told(talk, "a logger", _replace(talk, LOGGER, "1", ("root", "INFO")))
    _told(talk, "a group", _replace(talk, GROUP, "g", ("consumer.session.timeout.ms", "45000")))
    _told(talk, "a subscription", _replace(talk, METRICS, "s", ("interval.ms", "99")))
    for kind in (0, 1, 3):
        _told(talk, f"type {kind}", _replace(talk, kind, "1", ("a", "1")))


# ---- loggers, groups, subscriptions


@step(m.INCREMENTAL_ALTER_CONFIGS)
def changes_loggers(talk: Conversation, version: int) -> None:
    for node in ("1", "", "2", "x"):
        for operation in (
            *(("root", level, SET) for level in ("INFO", "info", "OFF", "TRACE", "FATAL", None)),
            *(("root", None, DELETE), ("root", "INFO", APPEND), ("root", "INFO", SUBTRACT)),
            *(("such.a.logger", "INFO", SET), ("such.a.logger", None, DELETE)),
        ):
            if version and (node == "1" or operation[1] == "INFO"):
                answer = _change(talk, LOGGER, node, operation, dry_run=True)
                _told(talk, f"loggers of {node!r}: {operation}", answer)


@step(m.INCREMENTAL_ALTER_CONFIGS)
def changes_groups(talk: Conversation, version: int) -> None:
    if version < 1:
        return
    group = talk.own("settings")
    numbers = (
        "x",
        "",
        "-1",
        "0",
        "1",
        "2",
        "5",
        "999",
        "1000",
        "5000",
        " 45000 ",
        "60000",
        "60001",
        "15001",
        "2147483648",
    )
    words = ("latest", "earliest", "read_committed", "by_duration:PT1H", "by_duration:1h", "LATEST", "x", "")
    settings = [entry.name for entry in _describe(talk, GROUP, group).configs]
    for setting in settings:
        for value in words if setting in ("share.auto.offset.reset", "share.isolation.level") else numbers:
            answer = _change(talk, GROUP, group, (setting, value, SET), dry_run=True)
            # Kafka's text on share.auto.offset.reset has its own text in it.
            answer = answer.error_code if setting == "share.auto.offset.reset" else answer
            talk.record(f"{setting}={value!r}", answer)
            if setting != "share.auto.offset.reset":
                _told(talk, f"{setting}={value!r}: text", answer)
    for operation in (("such.a.setting", "1", SET), ("such.a.setting", None, DELETE), (settings[0], "5", APPEND)):
        kind = ("added" if operation[2] == APPEND else "changed", operation[1])
        _told(talk, f"a group: {kind}", _change(talk, GROUP, group, operation, dry_run=True))
    _told(talk, "no group's name", _change(talk, GROUP, "", ("such.a.setting", "1", SET), dry_run=True))
    _change(talk, GROUP, group, ("consumer.session.timeout.ms", " 46000 ", SET))
    timeout = ["consumer.session.timeout.ms"]
    _await(talk, lambda: _describe(talk, GROUP, group, timeout), "46000")
    talk.record("a group with a setting", _describe(talk, GROUP, group))
    _change(talk, GROUP, group, ("consumer.session.timeout.ms", None, DELETE))
    _await(talk, lambda: _describe(talk, GROUP, group, timeout), "45000")
    talk.record("a group without its setting", _describe(talk, GROUP, group, timeout))


@step(m.INCREMENTAL_ALTER_CONFIGS)
def changes_subscriptions(talk: Conversation, version: int) -> None:
    if version < 1:
        return
    name = talk.own("subscription")
    for setting, values in {
        "interval.ms": ("x", "", "0", "-1", "99", "100", " 100 ", "3600000", "3600001"),
        "match": ("", "client_id=x", "x=y", "client_id=[", "client_id", "client_id=a,client_id=b", " client_id = x "),
        "metrics": ("", "*", "a.b", " a , b "),
        "such.a.setting": ("1", None),
    }.items():
        for value in values:
            answer = _change(talk, METRICS, name, (setting, value, SET), dry_run=True)
            _told(talk, f"subscription: {setting}={value!r}", answer)
        _told(
            talk, f"subscription: {setting} added", _change(talk, METRICS, name, (setting, "a", APPEND), dry_run=True)
        )
    _told(talk, "no subscription's name", _change(talk, METRICS, "", ("interval.ms", "100", SET), dry_run=True))
    _change(talk, METRICS, name, ("interval.ms", " 100 ", SET), ("metrics", " a , b ", SET))
    _await(talk, lambda: _describe(talk, METRICS, name, ["interval.ms"]), "100")
    talk.record("a subscription with settings", _describe(talk, METRICS, name))
    _change(talk, METRICS, name, ("interval.ms", None, DELETE), ("metrics", None, DELETE))
    _await(talk, lambda: _describe(talk, METRICS, name, ["interval.ms"]), "300000")
    talk.record("a subscription without settings", _describe(talk, METRICS, name))


# ---- lists


@step(m.LIST_CONFIG_RESOURCES)
def lists_resources(talk: Conversation, version: int) -> None:
    topic, group, subscription = talk.own("t"), talk.own("g"), talk.own("s")
    make_topic(talk, topic)
    _change(talk, GROUP, group, ("consumer.session.timeout.ms", "46000", SET))
    _change(talk, METRICS, subscription, ("interval.ms", "100", SET))
    _await(talk, lambda: _describe(talk, GROUP, group, ["consumer.session.timeout.ms"]), "46000")
    _await(talk, lambda: _describe(talk, METRICS, subscription, ["interval.ms"]), "100")
    for kinds in ([], [TOPIC], [BROKER], [LOGGER], [METRICS], [GROUP], [TOPIC, BROKER], [1], [0], [99], [TOPIC, 99]):
        answer = talk.do(talk.api_key, version, **({"resource_types": kinds} if version else {}))
        own = {topic, group, subscription, "1"}
        listed = sorted(
            (getattr(entry, "resource_type", METRICS), entry.resource_name)
            for entry in answer.config_resources
            if entry.resource_name in own
        )
        talk.record(f"resources of {kinds}", f"{int(answer.error_code)} {listed}")
    _change(talk, METRICS, subscription, ("interval.ms", None, DELETE))


@step(m.DESCRIBE_QUORUM)
def describes_quorum(talk: Conversation, version: int) -> None:
    cases: dict[str, dict[str, list[int]]] = {
        "the metadata": {METADATA: [0]},
        "no such partition": {METADATA: [1]},
        "a topic": {talk.topic: [0]},
        "two partitions": {METADATA: [0, 1]},
        "two topics": {METADATA: [0], talk.topic: [0]},
        "no partitions": {METADATA: []},
        "nothing": {},
    }
    for label, topics in cases.items():
        wanted = [
            {"topic_name": name, "partitions": [{"partition_index": index} for index in indexes]}
            for name, indexes in topics.items()
        ]
        answer = talk.plain(talk.do(talk.api_key, version, topics=wanted))
        talk.record(label, _without_numbers(answer))


def _without_numbers(value: Any, name: str = "") -> Any:
    """The response with nothing but the sign of what the brokers choose: offsets, epochs and times."""
    if isinstance(value, dict):
        return {key: _without_numbers(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_numbers(item, name) for item in value]
    if name in ("leader_epoch", "high_watermark", "log_end_offset") or name.endswith("_timestamp"):
        return isinstance(value, bool) or value > 0
    return value
