"""Which schema a topic's keys or values are encoded with, and what names it in a record: a format asks a registry."""

from __future__ import annotations

import functools
from typing import Literal

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats.registry.registry import Resolved, SchemaRegistry
from kafkabuf.formats.rows.format import Format, ResolvedFormat, Source

__all__ = ["ResolvedFormat", "resolve_format"]

_CACHED = 64


def resolve_format(
    registry: SchemaRegistry,
    format: Format,
    topic: str,
    field: Literal["key", "value"],
    columns: Source | None,
    timeout: float,
) -> ResolvedFormat:
    """The format to encode the keys or values of a topic with: it has the registry's schema, and its prefix.

    The registry registers the format's schema, or the schema that is derived from the columns. With
    `use.latest.version` or `use.schema.id` the registry's schema is used, and none is derived. `columns` is None for a
    format that encodes objects: it has a schema, or the settings name one.

    Asks no server while the registry's responses are remembered, and takes at most `timeout` seconds. Raises as
    SchemaRegistry.resolve() does, also SerializationError for columns that do not fit, and ConfigError for a format
    that has a prefix of its own.
    """
    if format.prefix:
        raise ConfigError(
            f"{field}_format has the prefix {format.prefix.hex()}, and the Schema Registry gives another: leave the "
            "prefix out, or schema.registry.url"
        )
    schema = format.schema
    if columns is not None and not registry.names_schema:
        # Columns that do not fit leave nothing in the registry.
        format.program(columns)
        schema = format.schema_text(columns)
    resolved = registry.resolve(
        schema,
        format.kind,
        subject=registry.subject(topic, field, None if schema is None else format.record_name(schema)),
        field=field,
        message_indexes=format.message_indexes,
        timeout=timeout,
    )
    try:
        own = _with_schema(format, resolved)
    except (ConfigError, SerializationError) as error:
        registry.forget([resolved.schema, *(text for _, text in resolved.references)])
        raise SerializationError(f"the schema {resolved.id} of {topic} in the registry: {error}") from error
    return ResolvedFormat(own, resolved.header)


# Both are immutable, so that no result gets stale. A schema of many fields takes milliseconds to read.
@functools.lru_cache(_CACHED)
def _with_schema(format: Format, resolved: Resolved) -> Format:
    return format.with_schema(resolved.schema, resolved.prefix, resolved.references)
