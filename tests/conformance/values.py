"""Steps of script.py: the values of settings that Kafka takes and refuses, with the texts of its errors."""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.configs.kinds import BOOLEAN, DOUBLE, INT, LIST, LONG, STRING
from kafkabuf.broker.configs.topics import INTERNAL_CONFIGS, TOPIC_CONFIGS
from kafkabuf.protocol import messages as m
from tests.conformance.script import Conversation, step
from tests.conformance.topics import WAIT, make_topic

TOPIC = 2
_TINY = ("", "x", "1.5", "-1", "-2", "-3", "0", "1", "3", "4", " 5 ", "+5", "0x10", "1_000", "5L", "\u0665", "\xa05")
_NUMBERS = (
    *_TINY,
    *("\x1c5", "9", "10", "13", "14", "17", "18", "22", "23", "-131072", "-131073", "1048575", "1048576"),
    *(str(edge) for power in (31, 63) for edge in (2**power - 1, 2**power, -(2**power), -(2**power) - 1)),
)
_FRACTIONS = (
    "",
    "x",
    "0.5",
    "1",
    "1.1",
    "-0.1",
    "nan",
    "inf",
    "NaN",
    "Infinity",
    "1e-1",
    "0.5d",
    "0x1p-1",
    "1_0",
    " .5 ",
)
VALUES: dict[int, tuple[str, ...]] = {
    INT: _NUMBERS,
    LONG: _NUMBERS,
    DOUBLE: _FRACTIONS,
    BOOLEAN: ("true", "TRUE", " true ", "yes", "1", "", "false"),
    STRING: (
        "gzip",
        " gzip ",
        "GZIP",
        "",
        "x",
        "gzip,lz4",
        "CreateTime",
        " LogAppendTime ",
        "createtime",
        "uncompressed",
    ),
    LIST: (
        *("", " ", "delete", "compact", "compact,delete", "delete,compact", "delete,delete", " delete , compact ", "x"),
        *(
            ",",
            "delete,",
            ",delete",
            "delete,,compact",
            "DELETE",
            "*",
            "*,",
            "0:1",
            "0:1,1:2",
            "0:1 , 1:2",
            "0:1,*",
            "0:x",
        ),
    ),
}
_TOGETHER: tuple[dict[str, str], ...] = (
    {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
    {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
    {"local.retention.ms": "5", "retention.ms": "3"},
    {"remote.storage.enable": "true", "cleanup.policy": "compact"},
    {"remote.storage.enable": "true", "retention.ms": "x"},
    {"segment.ms": "x", "retention.ms": "x"},
    {"retention.ms": "x", "segment.ms": "x"},
    {"unclean.leader.election.enable": "x", "min.insync.replicas": "0"},
    {"such.a.setting": "1", "retention.ms": "x"},
    {"": "1"},
    {"retention.ms ": "5"},
    {"message.format.version": "3.0"},
    {"message.max.bytes": "5"},
)


def _create(talk: Conversation, label: str, wanted: dict[str, dict[str, str]], *, dry_run: bool = True) -> Any:
    """Create topics with the configs of `wanted`, and record each error by its key there."""
    topics = [
        {
            "name": f"{talk.own('v')}-{index}",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in configs.items()],
        }
        for index, configs in enumerate(wanted.values())
    ]
    answer = talk.do(m.CREATE_TOPICS, talk.version, topics=topics, timeout=WAIT, validate_only=dry_run)
    results = {result.name: result for result in answer.topics}
    for topic, key in zip(topics, wanted, strict=True):
        result = results[str(topic["name"])]
        talk.record(f"{label}: {key}", f"{int(result.error_code)} {result.error_message}")
    return answer


@step(m.CREATE_TOPICS)
def takes_values(talk: Conversation, version: int) -> None:
    if version < 7:
        return
    for name, kind in (TOPIC_CONFIGS | INTERNAL_CONFIGS).items():
        _create(talk, name, {repr(value): {name: value} for value in VALUES[kind.type]})
    _create(talk, "together", {repr(configs): configs for configs in _TOGETHER})
    odd = {"retention.ms": " 7 ", "preallocate": "TRUE", "cleanup.policy": " compact , delete ", "segment.ms": "+5"}
    answer = _create(talk, "odd", {"values": odd}, dry_run=False)
    talk.record(
        "odd values are shown", {item.name: item.value for item in answer.topics[0].configs if item.name in odd}
    )


@step(m.INCREMENTAL_ALTER_CONFIGS)
@step(m.ALTER_CONFIGS)
def changes_values(talk: Conversation, version: int) -> None:
    name = talk.own("c")
    make_topic(talk, name)
    for setting, kind in TOPIC_CONFIGS.items():
        for value in ("", "x", "-3") if kind.type != LIST else ("", "x", " compact , delete", ","):
            _ask(talk, f"{setting}={value!r}", name, [(setting, value, 0)])
    for configs in _TOGETHER:
        _ask(talk, repr(configs), name, [(setting, value, 0) for setting, value in configs.items()])
    entry = {"name": "retention.ms", "value": "1", "config_operation": 0}
    resource = {"resource_type": TOPIC, "resource_name": name, "configs": [entry]}
    if talk.api_key == m.INCREMENTAL_ALTER_CONFIGS:  # Kafka does not answer such an AlterConfigs
        talk.ask("the same twice", resources=[resource] * 2, validate_only=True)
    _ask(talk, "null", name, [("retention.ms", None, 0)])
    _ask(talk, "nulls", name, [("retention.ms", None, 0), ("segment.ms", None, 0), ("flush.ms", "1", 0)])
    _ask(talk, "null twice", name, [("retention.ms", None, 0), ("retention.ms", None, 0)])
    if talk.api_key == m.INCREMENTAL_ALTER_CONFIGS:
        _changes_lists(talk, name)


def _changes_lists(talk: Conversation, name: str) -> None:
    for operation in (2, 3):
        for setting in ("cleanup.policy", "leader.replication.throttled.replicas", "retention.ms", "such.a.setting"):
            for value in (
                "",
                "delete",
                "compact",
                " compact ",
                "compact,delete",
                "delete,delete",
                ",",
                "0:1",
                "x",
                None,
            ):
                _ask(talk, f"{setting} {operation} {value!r}", name, [(setting, value, operation)])
    _ask(talk, "delete with a value", name, [("retention.ms", "x", 1)])
    _ask(talk, "delete an unknown", name, [("such.a.setting", None, 1)])
    _ask(talk, "set and delete", name, [("retention.ms", "1", 0), ("retention.ms", None, 1)])


def _ask(talk: Conversation, label: str, topic: str, configs: list[tuple[str, str | None, int]]) -> None:
    """Ask whether a topic could get these configs, and record the error."""
    items = [{"name": name, "value": value, "config_operation": operation} for name, value, operation in configs]
    if talk.api_key == m.ALTER_CONFIGS:
        items = [{"name": item["name"], "value": item["value"]} for item in items]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": items}
    (answer,) = talk.do(talk.api_key, talk.version, resources=[resource], validate_only=True).responses
    talk.record(f"values: {label}", f"{int(answer.error_code)} {answer.error_message}")
