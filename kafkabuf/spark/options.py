"""Options of the sink: what the user gave `.option(...)`, checked on the driver."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self, TypeVar

from kafkabuf.errors import ConfigError
from kafkabuf.metadata.snapshot import TOPIC_RULE, is_legal_topic

Choice = TypeVar("Choice", bound=StrEnum)


class Guarantee(StrEnum):
    """What `deliveryGuarantee` promises; docs/spark.md has the table."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"
    ATOMIC = "atomic"


class OnRowError(StrEnum):
    """What becomes of a row that Kafka will not have: too large, no legal topic, no such partition or time."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


class DriverCheck(StrEnum):
    """Whether the driver sees to it that brokers and topics are there, before there are tasks to fail."""

    TRUE = "true"
    FALSE = "false"


class LogReport(StrEnum):
    """What the driver tells of a write that has been done: nothing, a line, and one for each task besides."""

    OFF = "off"
    BATCH = "batch"
    TASKS = "tasks"


_PREFIX = "kafka."
_BOOTSTRAP = "kafka.bootstrap.servers"
# As Spark hands them over (in lower case), and as the documentation writes them.
_OWN = {
    name.lower(): name
    for name in (
        "topic",
        "deliveryGuarantee",
        "sinkId",
        "markerTopic",
        "onRowError",
        "deadLetterTopic",
        "driverCheck",
        "logReport",
    )
}
# Read by Spark itself or by Spark's own Kafka source; a job that shares one set of options with them goes on working.
_FOREIGN = frozenset({"checkpointlocation", "includeheaders"})
_REFUSED = {
    "kafka.key.serializer": "the sink writes the bytes of the column: encode them with a Spark expression",
    "kafka.value.serializer": "the sink writes the bytes of the column: encode them with a Spark expression",
    "kafka.interceptor.classes": "the sink's rows are no Python objects: there is nothing to show an interceptor",
    "kafka.partitioner.class": "the sink's rows are no Python objects: give a partition column",
    "kafka.transactional.id": "the sink makes transactional ids of its own: give .option('sinkId', ...)",
    "path": "save() takes no path here: name the topic with .option('topic', ...) and call .save()",
}
_LEGAL_ID = re.compile(r"[a-zA-Z0-9._-]{1,200}")
# Kafka's transaction.max.timeout.ms as brokers have it: a task or a batch may take long.
_TRANSACTION_TIMEOUT_MS = "900000"


@dataclass(frozen=True)
class SinkOptions:
    """Checked options; pickled to the executors.

    `producer` holds the producer's settings under Kafka's names, sorted, so that equal settings share one producer.
    It may hold passwords and stays out of the repr. `marker_topic` is where offsets that mark finished batches are
    committed for: any topic that stays; none but those with transactions need one.
    """

    topic: str | None
    producer: tuple[tuple[str, str], ...] = field(repr=False)
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    sink_id: str | None = None
    marker_topic: str | None = None
    on_row_error: OnRowError = OnRowError.FAIL
    dead_letter_topic: str | None = None
    driver_check: bool = True
    log_report: LogReport = LogReport.BATCH

    def marks(self) -> tuple[str, str]:
        """sinkId and the marker topic, which every guarantee with transactions has."""
        assert self.sink_id is not None
        assert self.marker_topic is not None
        return self.sink_id, self.marker_topic

    def topics(self) -> list[tuple[str, str]]:
        """The topics that are known before there are rows, each with the option that names it."""
        named = (("topic", self.topic), ("markerTopic", self.marker_topic), ("deadLetterTopic", self.dead_letter_topic))
        found = {topic: option for option, topic in reversed(named) if topic is not None}
        return [(option, topic) for topic, option in found.items()]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Raises ConfigError for a missing, unknown or unusable option. Spark hands over lower-case names."""
        for name in options:
            _check_name(name)
        if not options.get(_BOOTSTRAP, "").strip():
            raise ConfigError(f"option '{_BOOTSTRAP}' is required: .option('{_BOOTSTRAP}', 'host:port,...')")
        settings = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
        topic = _topic(options, "topic")
        guarantee = _choice(Guarantee, "deliveryGuarantee", options.get("deliveryguarantee", Guarantee.AT_LEAST_ONCE))
        if guarantee is not Guarantee.AT_LEAST_ONCE:
            settings.setdefault("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS)
        _check_settings(settings, guarantee)
        return cls(
            topic,
            tuple(sorted(settings.items())),
            guarantee,
            _sink_id(options.get("sinkid"), guarantee),
            _marker_topic(_topic(options, "markerTopic"), topic, guarantee),
            *_on_row_error(options, guarantee),
            _driver_check(options, guarantee),
            _choice(LogReport, "logReport", options.get("logreport", LogReport.BATCH)),
        )


def _choice(kind: type[Choice], name: str, given: str) -> Choice:
    try:
        return kind(given.strip().lower())
    except ValueError:
        allowed = ", ".join(kind)
        near = difflib.get_close_matches(given.lower(), list(kind), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ConfigError(f"option '{name}' is '{given}'; allowed: {allowed}{hint}") from None


def _topic(options: Mapping[str, str], name: str) -> str | None:
    """Without the blanks around it, as Spark's own sink takes it."""
    given = options.get(name.lower())
    if given is None:
        return None
    topic = given.strip()
    if not topic:
        raise ConfigError(f"option '{name}' is empty: name a topic, or leave it out (rows may have a column 'topic')")
    if not is_legal_topic(topic):
        raise ConfigError(f"option '{name}' is '{topic}', which is no topic's name: {TOPIC_RULE}")
    return topic


def _driver_check(options: Mapping[str, str], guarantee: Guarantee) -> bool:
    check = _choice(DriverCheck, "driverCheck", options.get("drivercheck", DriverCheck.TRUE))
    if check is DriverCheck.FALSE and guarantee is not Guarantee.AT_LEAST_ONCE:
        raise ConfigError(
            f"option 'driverCheck' is 'false', but with deliveryGuarantee '{guarantee}' the driver takes part: it has "
            "to reach the brokers"
        )
    return check is DriverCheck.TRUE


def _check_settings(settings: Mapping[str, str], guarantee: Guarantee) -> None:
    # Late: the model costs an import, and Spark imports this module only to learn the format's name.
    from kafkabuf.config import ProducerConfig

    probe = dict(settings) if guarantee is Guarantee.AT_LEAST_ONCE else {**settings, "transactional.id": "sink"}
    try:
        ProducerConfig.from_mapping(probe)
    except ConfigError as error:
        raise ConfigError(f"among the options 'kafka.*': {error}") from None


def _sink_id(given: str | None, guarantee: Guarantee) -> str | None:
    if guarantee is Guarantee.AT_LEAST_ONCE:
        return given
    if not given:
        raise ConfigError(
            f"option 'sinkId' is required with deliveryGuarantee '{guarantee}': a name that no other query has and "
            "that stays the same when this one is started again; it finds what was already written"
        )
    if not _LEGAL_ID.fullmatch(given):
        raise ConfigError(f"option 'sinkId' is '{given}': 1 to 200 of letters, digits, '.', '_' and '-' are allowed")
    return given


def _marker_topic(given: str | None, topic: str | None, guarantee: Guarantee) -> str | None:
    if guarantee is not Guarantee.AT_LEAST_ONCE and not (given or topic):
        raise ConfigError(
            f"option 'markerTopic' is required with deliveryGuarantee '{guarantee}' where rows name their topics: any "
            "topic that stays; finished batches are marked by offsets committed for it, nothing is written there"
        )
    return given or topic


def _on_row_error(options: Mapping[str, str], guarantee: Guarantee) -> tuple[OnRowError, str | None]:
    policy = _choice(OnRowError, "onRowError", options.get("onrowerror", OnRowError.FAIL))
    topic = _topic(options, "deadLetterTopic")
    if policy is not OnRowError.DEAD_LETTER:
        if topic is not None:
            raise ConfigError(f"option 'deadLetterTopic' is for onRowError 'dead_letter', found '{policy}'")
        return policy, None
    if not topic:
        raise ConfigError("option 'deadLetterTopic' is required with onRowError 'dead_letter'")
    if guarantee is Guarantee.ATOMIC:
        raise ConfigError(
            "onRowError 'dead_letter' cannot be had with deliveryGuarantee 'atomic', where each partition is written "
            "by one task: use 'skip' or 'fail', or filter such rows out first"
        )
    return policy, topic


def _check_name(name: str) -> None:
    if name in _REFUSED:
        raise ConfigError(f"option '{name}' cannot be used: {_REFUSED[name]}")
    if name.startswith(_PREFIX) or name in _OWN or name in _FOREIGN:
        return
    # An option nobody reads is refused: a misspelt guarantee must not be a lost one.
    near = difflib.get_close_matches(name, (*_OWN, _BOOTSTRAP, f"{_PREFIX}{name}"), n=1)
    hint = f"; did you mean '{_OWN.get(near[0], near[0])}'?" if near else ""
    raise ConfigError(f"option '{name}' does not exist{hint} (producer settings are given as 'kafka.<name>')")
