"""Options of the sink: what the user gave `.option(...)`, checked on the driver."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from kafkabuf.errors import ConfigError

_PREFIX = "kafka."
_BOOTSTRAP = "kafka.bootstrap.servers"
_OWN = ("topic",)
# Read by Spark itself or by Spark's own Kafka source; a job that shares one set of options with them goes on working.
_FOREIGN = frozenset({"checkpointlocation", "includeheaders"})
_REFUSED = {
    "kafka.key.serializer": "the sink writes the bytes of the column: encode them with a Spark expression",
    "kafka.value.serializer": "the sink writes the bytes of the column: encode them with a Spark expression",
    "kafka.interceptor.classes": "the sink's rows are no Python objects: there is nothing to show an interceptor",
    "kafka.partitioner.class": "the sink's rows are no Python objects: give a partition column",
    "path": "save() takes no path here: name the topic with .option('topic', ...) and call .save()",
}


@dataclass(frozen=True)
class SinkOptions:
    """Checked options; pickled to the executors.

    `producer` holds the producer's settings under Kafka's names, sorted, so that equal settings share one producer.
    It may hold passwords and stays out of the repr.
    """

    topic: str | None
    producer: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Raises ConfigError for a missing, unknown or unusable option. Spark hands over lower-case names."""
        for name in options:
            _check_name(name)
        if not options.get(_BOOTSTRAP, "").strip():
            raise ConfigError(f"option '{_BOOTSTRAP}' is required: .option('{_BOOTSTRAP}', 'host:port,...')")
        settings = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
        topic = options.get("topic")
        if topic is not None and not topic.strip():
            raise ConfigError("option 'topic' is empty: name the topic, or leave it out and have a column 'topic'")
        # Late: the model costs an import, and Spark imports this module only to learn the format's name.
        from kafkabuf.config import ProducerConfig

        try:
            ProducerConfig.from_mapping(settings)
        except ConfigError as error:
            raise ConfigError(f"among the options 'kafka.*': {error}") from None
        return cls(topic, tuple(sorted(settings.items())))


def _check_name(name: str) -> None:
    if name in _REFUSED:
        raise ConfigError(f"option '{name}' cannot be used: {_REFUSED[name]}")
    if name.startswith(_PREFIX) or name in _OWN or name in _FOREIGN:
        return
    # An option nobody reads is refused: a misspelt guarantee must not be a lost one.
    near = difflib.get_close_matches(name, (*_OWN, _BOOTSTRAP, f"{_PREFIX}{name}"), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise ConfigError(f"option '{name}' does not exist{hint} (producer settings are given as 'kafka.<name>')")
