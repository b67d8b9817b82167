"""Options of the sink: what the user gave `.option(...)`. The driver checks them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from kafkabuf.errors import ConfigError
from kafkabuf.metadata.topic_names import TOPIC_RULE, is_legal_topic
from kafkabuf.spark.options import option_names
from kafkabuf.spark.options.choices import choice, yes_or_no
from kafkabuf.spark.options.format_options import FormatOptions, key_rule
from kafkabuf.spark.options.option_names import BOOTSTRAP, Settings


class Guarantee(StrEnum):
    """What `deliveryGuarantee` promises (docs/spark.md has the table), and which options go with it.

    The file of the same name says how the sink keeps a guarantee.
    """

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"
    ATOMIC = "atomic"

    @classmethod
    def named_in(cls, options: Mapping[str, str]) -> Self | None:
        """The guarantee that unchecked options name, in upper or lower case; None for a missing or misspelt name."""
        given = next((value for name, value in options.items() if name.lower() == "deliveryguarantee"), "")
        return next((guarantee for guarantee in cls if guarantee == given.strip().lower()), None)

    @property
    def is_transactional(self) -> bool:
        """Whether the sink writes transactions: then it needs a sinkId and a marker topic."""
        return self is not Guarantee.AT_LEAST_ONCE

    @property
    def needs_a_stream(self) -> bool:
        """Whether the sink needs the number of a micro-batch: `df.write` has no such number."""
        return self is Guarantee.EXACTLY_ONCE

    @property
    def forbids_second_attempts(self) -> bool:
        """Whether a second attempt of a task fails the write."""
        return self is Guarantee.ATOMIC

    @property
    def forbids_shared_partitions(self) -> bool:
        """Whether only one task may write a Kafka partition. Any task may write to the dead-letter topic."""
        return self is Guarantee.ATOMIC


class OnRowError(StrEnum):
    """What happens to a row that Kafka refuses: too large, an illegal topic, no such partition or timestamp."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


class OnLostMarker(StrEnum):
    """What a stream does where the markers of earlier micro-batches are gone: stop, or write on without them."""

    FAIL = "fail"
    CONTINUE = "continue"


class LogReport(StrEnum):
    """What the driver logs of a finished write: nothing, one line for people or for programs, or each task too."""

    OFF = "off"
    BATCH = "batch"
    KEY_VALUE = "key_value"
    TASKS = "tasks"


_SQL = (
    "Spark passes on no OPTIONS of a table: in SQL write INSERT INTO name WITH ('option' 'value', ...) SELECT ..., or "
    "use a view instead of the table: CREATE TEMPORARY VIEW name (value STRING) USING kafkabuf OPTIONS (...)"
)
_LEGAL_ID = re.compile(r"[a-zA-Z0-9._-]{1,200}")
# The most that brokers allow by default (transaction.max.timeout.ms): a task or a write may take long.
_TRANSACTION_TIMEOUT_MS = "900000"


@dataclass(frozen=True)
class SinkOptions:
    """Checked options. Spark pickles them to the executors.

    `producer` holds the producer's settings under Kafka's names, sorted, so that equal settings share one producer. It
    may hold passwords, so the repr leaves it out. The sink commits offsets for `marker_topic` that mark finished
    batches; only the guarantees with transactions need this topic. `write_id` names a write of `df.write`: a write with
    `atomic` that has the same name as a finished one writes nothing. With `at_least_once` it only labels the report.
    `timestamp_column` is the column that the option names, "" for no column, and None where the user left it out.
    `aligned` is no option: the number of partitions for which align() has shuffled the rows, None where it has not.
    `formats` are the options of formats on the driver; None in the tasks, and where there are no such options.
    `listed_topics` are those that rows with a column `topic` may name, empty where the user names none.
    `key_rule` is a text of the options that say what the key is.
    """

    topic: str | None
    producer: Settings = field(repr=False)
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    sink_id: str | None = None
    marker_topic: str | None = None
    on_row_error: OnRowError = OnRowError.FAIL
    dead_letter_topic: str | None = None
    driver_check: bool = True
    log_report: LogReport = LogReport.BATCH
    on_lost_marker: OnLostMarker = OnLostMarker.FAIL
    write_id: str | None = None
    timestamp_column: str | None = None
    aligned: int | None = None
    formats: FormatOptions | None = None
    key_rule: str = ""
    listed_topics: tuple[str, ...] = ()

    def sink_id_and_marker_topic(self) -> tuple[str, str]:
        """Only for a transactional guarantee: `parse` has checked that both are set."""
        assert self.sink_id is not None
        assert self.marker_topic is not None
        return self.sink_id, self.marker_topic

    def topics(self) -> list[tuple[str, str]]:
        """The topics that options name, each with its option."""
        named = [("topic", self.topic), ("markerTopic", self.marker_topic), ("deadLetterTopic", self.dead_letter_topic)]
        named += [("topics", topic) for topic in self.listed_topics]
        option_of = {topic: option for option, topic in reversed(named) if topic is not None}
        return [(option, topic) for topic, option in option_of.items()]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Raises ConfigError for a missing, unknown or unusable option. Spark gives the names in lower case."""
        option_names.check(options)
        if not options.get(BOOTSTRAP, "").strip():
            # Without any option the write comes from SQL: no user of df.write forgets them all.
            advice = "" if options else f"; {_SQL}"
            raise ConfigError(f"option '{BOOTSTRAP}' is required: .option('{BOOTSTRAP}', 'host:port,...'){advice}")
        settings = option_names.producer_settings(options)
        topic = _topic(options, "topic")
        guarantee = choice(Guarantee, "deliveryGuarantee", options.get("deliveryguarantee", Guarantee.AT_LEAST_ONCE))
        if guarantee.is_transactional:
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
            choice(LogReport, "logReport", options.get("logreport", LogReport.BATCH)),
            choice(OnLostMarker, "onLostMarker", options.get("onlostmarker", OnLostMarker.FAIL)),
            _legal_id("writeId", options.get("writeid")),
            _timestamp_column(options.get("timestampcolumn")),
            formats=FormatOptions.parse(options),
            key_rule=key_rule(options),
            listed_topics=_listed_topics(options),
        )


def _topic(options: Mapping[str, str], name: str) -> str | None:
    """The topic that an option names. Blanks around it do not count, as in Spark's own sink."""
    given = options.get(name.lower())
    if given is None:
        return None
    topic = given.strip()
    if not topic:
        raise ConfigError(f"option '{name}' is empty: name a topic, or leave it out (rows may have a column 'topic')")
    if not is_legal_topic(topic):
        raise ConfigError(f"option '{name}' is '{topic}', which is no legal topic name: {TOPIC_RULE}")
    return topic


def _listed_topics(options: Mapping[str, str]) -> tuple[str, ...]:
    given = options.get("topics")
    if given is None:
        return ()
    if "topic" in options or not any(name.startswith(option_names.REGISTRY_PREFIX) for name in options):
        raise ConfigError(
            "option 'topics' names the topics that a Schema Registry is asked about where rows have a column 'topic': "
            "it needs the options 'schema.registry.*', and no option 'topic'"
        )
    topics = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    for topic in topics:
        if not is_legal_topic(topic):
            raise ConfigError(
                f"option 'topics' is '{given}', and '{topic}' is no legal topic name: name topics between commas. "
                f"{TOPIC_RULE}"
            )
    return topics


def _timestamp_column(given: str | None) -> str | None:
    return "" if given is not None and given.strip().lower() in ("", "none") else given


def _driver_check(options: Mapping[str, str], guarantee: Guarantee) -> bool:
    # Whether the driver checks before the tasks that the brokers answer and the topics exist (preflight.py).
    checks = yes_or_no("driverCheck", options.get("drivercheck"), default=True)
    if not checks and guarantee.is_transactional:
        raise ConfigError(
            f"option 'driverCheck' is 'false', but with deliveryGuarantee '{guarantee}' the driver must reach the "
            "brokers: leave the option out"
        )
    return checks


def _check_settings(settings: Mapping[str, str], guarantee: Guarantee) -> None:
    # Imported late: Spark imports this module on every driver, only to learn the format's name.
    from kafkabuf.config import ProducerConfig

    # Some settings are wrong only together with a transactional id: any id shows that.
    settings = {**settings, "transactional.id": "sink"} if guarantee.is_transactional else dict(settings)
    try:
        ProducerConfig.from_mapping(settings)
    except ConfigError as error:
        raise ConfigError(f"among the options 'kafka.*': {error}") from None


def max_block_seconds(settings: Mapping[str, str]) -> float:
    """max.block.ms of these settings of the producer, which are checked."""
    from kafkabuf.config import ProducerConfig  # late, as above

    return ProducerConfig.from_mapping(settings).max_block_ms / 1000


def _sink_id(given: str | None, guarantee: Guarantee) -> str | None:
    if not guarantee.is_transactional:
        return given
    if not given:
        raise ConfigError(
            f"option 'sinkId' is required with deliveryGuarantee '{guarantee}': give a name that no other query has "
            "and that this query keeps when it starts again; the sink finds by it what was already written"
        )
    return _legal_id("sinkId", given)


def _legal_id(name: str, given: str | None) -> str | None:
    if given is None or _LEGAL_ID.fullmatch(given):
        return given
    raise ConfigError(
        f"option '{name}' is '{given}'; allowed are 1 to 200 letters, digits, and the characters '.', '_' and '-'"
    )


def _marker_topic(given: str | None, topic: str | None, guarantee: Guarantee) -> str | None:
    if guarantee.is_transactional and not (given or topic):
        raise ConfigError(
            f"option 'markerTopic' is required with deliveryGuarantee '{guarantee}' where rows name their topics: name "
            "any topic that nobody deletes; the sink commits offsets for it to mark finished batches, and writes no "
            "record there"
        )
    return given or topic


def _on_row_error(options: Mapping[str, str], guarantee: Guarantee) -> tuple[OnRowError, str | None]:
    policy = choice(OnRowError, "onRowError", options.get("onrowerror", OnRowError.FAIL))
    topic = _topic(options, "deadLetterTopic")
    if policy is not OnRowError.DEAD_LETTER:
        if topic is not None:
            raise ConfigError(f"option 'deadLetterTopic' is for onRowError 'dead_letter', but onRowError is '{policy}'")
        return policy, None
    if not topic:
        raise ConfigError("option 'deadLetterTopic' is required with onRowError 'dead_letter'")
    if guarantee.forbids_shared_partitions:
        raise ConfigError(
            f"onRowError 'dead_letter' does not work with deliveryGuarantee '{guarantee}', where only one task may "
            "write a partition: use 'skip' or 'fail', or filter such rows out first"
        )
    return policy, topic
