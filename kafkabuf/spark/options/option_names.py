"""Names of options: those of the sink, those that the sink ignores, and those that it refuses. All in lower case."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from kafkabuf.errors import ConfigError

Settings = tuple[tuple[str, str], ...]
PREFIX = "kafka."
REGISTRY_PREFIX = "schema.registry."
BOOTSTRAP = "kafka.bootstrap.servers"
# Spark gives the names in lower case. The values are the names as the documentation writes them.
_OWN = {
    name.lower(): name
    for name in (
        "topic",
        "topics",
        "deliveryGuarantee",
        "sinkId",
        "markerTopic",
        "onLostMarker",
        "writeId",
        "onRowError",
        "deadLetterTopic",
        "timestampColumn",
        "valueFormat",
        "valueSchema",
        "keyFormat",
        "keySchema",
        "keyColumns",
        "valueMessage",
        "valueDescriptors",
        "keyMessage",
        "keyDescriptors",
        "extraColumns",
        "timestampFormat",
        "timestampNTZFormat",
        "dateFormat",
        "ignoreNullFields",
        "timeZone",
        "driverCheck",
        "logReport",
    )
}
# Spark itself reads these (DataStreamWriter.queryName sets an option), and Spark's Kafka sink documents the last. They
# need no warning.
_SPARKS = frozenset({"checkpointlocation", "queryname", "includeheaders"})
# The options of Spark's Kafka source (KafkaSourceProvider): a job may use one set of options to read and to write.
_SOURCES = {
    name.lower(): name
    for name in (
        "assign",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "startingTimestamp",
        "endingOffsets",
        "endingOffsetsByTimestamp",
        "endingTimestamp",
        "failOnDataLoss",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "groupIdPrefix",
        "kafkaConsumer.pollTimeoutMs",
        "maxOffsetsPerTrigger",
        "maxRecordsPerPartition",
        "maxTriggerDelay",
        "minOffsetsPerTrigger",
        "minPartitions",
    )
}
# Settings that Kafka's consumer has and Kafka's producer lacks (ConsumerConfig).
_CONSUMERS = frozenset(
    PREFIX + name
    for name in (
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "check.crcs",
        "client.rack",
        "default.api.timeout.ms",
        "enable.auto.commit",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "isolation.level",
        "key.deserializer",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "value.deserializer",
    )
)
_REFUSED = {
    "kafka.key.serializer": "the sink writes the bytes of the column: encode rows with option 'keyFormat', or the "
    "column with a Spark expression",
    "kafka.value.serializer": "the sink writes the bytes of the column: encode rows with option 'valueFormat', or the "
    "column with a Spark expression",
    "kafka.interceptor.classes": "an interceptor needs Python objects, and the sink makes none of its rows",
    "kafka.partitioner.class": "a partitioner needs Python objects, and the sink makes none of its rows: add a column "
    "'partition'",
    "kafka.transactional.id": "the sink chooses its transactional ids: give .option('sinkId', ...)",
    **{
        f"kafka.{prefix}buffer.{name}": "Spark repeats a task that has failed: what its file held would come twice"
        for prefix in ("kafkabuf.", "")
        for name in ("path", "sync", "expire", "full", "unproven")
    },
    "path": "save() takes no path here: name the topic with .option('topic', ...) and call .save()",
}


def check(names: Iterable[str]) -> None:
    """Raises ConfigError for the first name that the sink refuses or does not know."""
    for name in names:
        if name in _REFUSED:
            raise ConfigError(f"option '{name}' cannot be used: {_REFUSED[name]}")
        if name.startswith(PREFIX + REGISTRY_PREFIX):
            # As a setting of the producer it would go to the tasks, with the secrets of the registry.
            raise ConfigError(f"option '{name}' cannot be used: write '{name.removeprefix(PREFIX)}'")
        if name.startswith(REGISTRY_PREFIX):
            continue  # format_options.py checks them
        # An unknown option is refused: a user who misspells the guarantee must not lose it.
        if not name.startswith(PREFIX) and name not in _OWN.keys() | _SPARKS | _SOURCES.keys():
            raise ConfigError(f"option '{name}' does not exist{_hint(name)} (give producer settings as 'kafka.<name>')")


def producer_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The options `kafka.*` without their prefix, and without the settings that only a consumer has."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in options.items()
        if name.startswith(PREFIX) and name not in _CONSUMERS
    }


def ignored(names: Iterable[str]) -> list[str]:
    """The options of Spark's Kafka source among `names`, as the documentation writes them. They change no write."""
    return sorted(_SOURCES.get(name, name) for name in names if name in _SOURCES or name in _CONSUMERS)


def _hint(name: str) -> str:
    # Imported late: only an error needs the names.
    from kafkabuf.config import ProducerConfig, dotted

    settings = [PREFIX + dotted(field) for field in ProducerConfig.model_fields]
    usable = [setting for setting in settings if setting not in _REFUSED]
    # All settings have one prefix, so that any two of them look alike.
    near = difflib.get_close_matches(PREFIX + dotted(name), usable, n=1, cutoff=0.9)
    near = near or difflib.get_close_matches(name, [*_OWN, BOOTSTRAP], n=1)
    return f"; did you mean '{_OWN.get(near[0], near[0])}'?" if near else ""
