"""Serializers of a producer whose schemas a registry names: send() asks once for each topic, and remembers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.config.schema_registry import FRAMINGS
from kafkabuf.errors import ConfigError, TimeoutError
from kafkabuf.formats.json.format import Json
from kafkabuf.formats.registry.registry import SchemaRegistry
from kafkabuf.formats.registry.resolving import resolve_format
from kafkabuf.formats.rows.format import Format

ByTopic = dict[str, tuple[Callable[[Any], bytes | None], tuple[str, bytes] | None, float]]


class TopicSchemas:
    """The formats that are serializers of a producer.

    `key` and `value` have the serializer of each topic, the header that names its schema, and the time in milliseconds
    since the epoch when the registry's response is stale. They are None where the serializer is no format, or is a
    format with a prefix of its own.
    """

    def __init__(self, config: ProducerConfig, registry: SchemaRegistry, clock: Clock) -> None:
        """Raises ConfigError for a format that cannot encode objects with a schema of the registry."""
        self._registry = registry
        self._clock = clock
        self._lifetime = registry.lifetime * 1000
        self._formats = {
            field: format
            for field, format in (("key", config.key_serializer), ("value", config.value_serializer))
            if isinstance(format, Format) and not format.prefix and hasattr(format, "object_serializer")
        }
        for field, format in self._formats.items():
            _check(field, format, registry, config)
            if isinstance(format, Json):
                format.object_serializer(field)  # loads orjson, or says that it is missing, before the first send()
        self.key: ByTopic | None = {} if "key" in self._formats else None
        self.value: ByTopic | None = {} if "value" in self._formats else None

    def __bool__(self) -> bool:
        return bool(self._formats)

    def resolve(self, field: Literal["key", "value"], topic: str, timeout: float, waits: bool) -> None:
        """Ask the registry for a topic's schema, for up to `timeout` seconds. Raises the errors of resolve_format().

        `waits` is False in a thread that must not wait for the registry: then only what it remembers serves.
        """
        asked = self._clock.time_ms()
        try:
            resolved = resolve_format(
                self._registry, self._formats[field], topic, field, None, timeout if waits else 0.0
            )
        except TimeoutError:
            if waits:
                raise
            raise TimeoutError(
                f"the schema of topic {topic!r} is not known yet, and a callback cannot wait for the Schema Registry: "
                "send to the topic in another thread first"
            ) from None
        by_topic = self.key if field == "key" else self.value
        assert by_topic is not None  # there is a format
        serializer: Any = resolved.format
        by_topic[topic] = serializer.object_serializer(field), resolved.header, asked + self._lifetime


def _check(field: str, format: Format, registry: SchemaRegistry, config: ProducerConfig) -> None:
    name = type(format).__name__
    if format.schema is None and not registry.names_schema:
        raise ConfigError(
            f"{field}.serializer is {name}() without a schema, which would be derived from columns, and a {field} has "
            f"none: give {name}(schema=...), or set schema.registry.use.latest.version"
        )
    if registry.settings.schema_id_framing == FRAMINGS[1] and config.record_magic == 1:
        raise ConfigError(
            "record.magic is 1, whose format has no headers, and schema.id.framing is header: set it to prefix, or set "
            "record.magic to 2"
        )
