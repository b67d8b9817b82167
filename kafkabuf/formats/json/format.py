"""Json: how send_arrow() makes keys and values of columns, and send() of Python objects, as JSON text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, final

from kafkabuf.arrow.types import Column
from kafkabuf.errors import ConfigError
from kafkabuf.formats.json.compile import Choices, compile_column, compile_rows
from kafkabuf.formats.json.derive import derive_rows, derive_value
from kafkabuf.formats.json.objects import object_serializer
from kafkabuf.formats.json.pattern import pattern_ops, zone_of
from kafkabuf.formats.rows._encoded import columns_of
from kafkabuf.formats.rows.format import Format, Source, checked_prefix
from kafkabuf.formats.rows.program import Program

TITLE = "Row"  # of a derived schema
_CACHED = 64


@final
@dataclass(frozen=True, init=False)
class Json(Format):
    """JSON text in UTF-8. Immutable; it pickles, and two with the same arguments are equal.

    Attributes:
        dialect: whose text it is: that of orjson, or of Spark's to_json.
        prefix: the bytes before each encoded value.
        ignore_null_fields: whether a null column, also of a struct, is left out.
        timestamp_format: the pattern of timestamps, in Spark's dialect of those that are instants; None: the dialect's.
        timestamp_ntz_format: the pattern of timestamps without time zone; None: in Spark's dialect its own, else
            `timestamp_format`.
        date_format: the pattern of dates; None: the dialect's.
        time_zone: in which Spark's dialect writes timestamps that are instants.
        schema: the JSON Schema for a registry; None: it is derived from the columns. Values are not held against it.
    """

    kind: ClassVar[Literal["JSON"]] = "JSON"
    dialect: Literal["orjson", "spark"]
    prefix: bytes
    ignore_null_fields: bool
    timestamp_format: str | None
    timestamp_ntz_format: str | None
    date_format: str | None
    time_zone: str
    schema: str | None

    def __init__(
        self,
        *,
        dialect: Literal["orjson", "spark"] = "orjson",
        prefix: bytes = b"",
        ignore_null_fields: bool | None = None,
        timestamp_format: str | None = None,
        timestamp_ntz_format: str | None = None,
        date_format: str | None = None,
        time_zone: str | None = None,
        schema: str | Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            dialect: "orjson" writes the bytes of orjson.dumps() for each dict of Table.to_pylist(); "spark" those of
                Spark's to_json(struct(*)).
            prefix: bytes that are written before each value, such as Schema Registry's five: 0 and the schema's id.
            ignore_null_fields: leave a column that is null out, instead of writing null; None: only in Spark's
                dialect, as Spark does.
            timestamp_format: a pattern of Java's letters y, M, d, H, m, s, S and X, such as
                `yyyy-MM-dd HH:mm:ss[.SSS][XXX]`; text in quotes '...', optional parts in brackets. In Spark's dialect
                it is for instants alone, as in Spark.
            timestamp_ntz_format: the same for timestamps without time zone; X is for optional parts alone.
            date_format: the same for dates, with the letters y, M and d.
            time_zone: Spark's session time zone, in any form that Spark takes, such as "Europe/Berlin", "+02:00",
                "GMT+8" or "PST"; None: UTC. Only in Spark's dialect: orjson writes a timestamp in the zone of its
                column.
            schema: a JSON Schema as text or dict, for a Schema Registry.

        Raises:
            ConfigError: an argument has another type, a pattern has other letters, or the zone is unknown.
        """
        if dialect not in ("orjson", "spark"):
            raise ConfigError(f"dialect must be 'orjson' or 'spark', found {dialect!r}")
        if not isinstance(ignore_null_fields, bool | None):
            raise ConfigError(f"ignore_null_fields must be a bool, found {ignore_null_fields!r:.200}")
        _check_text("timestamp_format", timestamp_format)
        _check_text("timestamp_ntz_format", timestamp_ntz_format)
        _check_text("date_format", date_format)
        _check_text("time_zone", time_zone)
        if timestamp_format is not None:
            pattern_ops(timestamp_format, time=True, offset=True)
        if timestamp_ntz_format is not None:
            pattern_ops(timestamp_ntz_format, time=True, offset=False)
        if date_format is not None:
            pattern_ops(date_format, time=False, offset=False)
        if time_zone is not None:
            if dialect != "spark":
                raise ConfigError("time_zone is for dialect='spark': the dialect of orjson writes a column's own zone")
            zone_of(time_zone, spark=True)
        put = functools.partial(object.__setattr__, self)
        put("dialect", dialect)
        put("prefix", checked_prefix(prefix))
        put("ignore_null_fields", dialect == "spark" if ignore_null_fields is None else ignore_null_fields)
        put("timestamp_format", timestamp_format)
        put("timestamp_ntz_format", timestamp_ntz_format)
        put("date_format", date_format)
        put("time_zone", time_zone or "UTC")
        put("schema", None if schema is None else _schema_text(schema))

    def schema_for(self, data: Any) -> str:
        """The JSON Schema of data's rows as text: the given schema, or the schema that is derived from its columns.

        A stream is read: give it to no other call afterwards. Raises SerializationError for data without the Arrow
        PyCapsule interface, and for a column that is not written as JSON.
        """
        return self.schema_text(Source(tuple(enumerate(columns_of(data))), is_record=True))

    # ---- Python objects ----------------------------------------------------------------------------------------------

    def encode_object(self, value: Any, prefix: bytes | None = None) -> bytes | None:
        """Encode one Python object as orjson does, which the extra `json` installs.

        Dicts, lists, text, numbers, dates and times, UUIDs, enums, dataclasses, named tuples, objects of attrs,
        pydantic and msgspec; bytes, Decimal and timedelta as send_arrow() writes such columns. `prefix` takes the place
        of the format's prefix. None is None, Kafka's null. Raises SerializationError, which names the path to what
        cannot be written; ConfigError for a Json with Spark's dialect or with patterns; MissingExtraError without
        orjson.
        """
        framed = self if prefix is None else self._changed(prefix=checked_prefix(prefix))
        return framed.object_serializer("value")(value)

    def __call__(self, value: Any) -> bytes | None:
        """encode_object(): a Json is a serializer of Python objects."""
        return self.encode_object(value)

    def object_serializer(self, field: str) -> Callable[[Any], bytes | None]:
        """The serializer of a producer's keys or values. `field`, "key" or "value", begins errors."""
        if self._choices != Json()._choices:
            raise ConfigError(
                "a Json that is a serializer takes no dialect, patterns or ignore_null_fields: these are for columns"
            )
        return object_serializer(field, self.prefix)

    # ---- what a Schema Registry asks for -----------------------------------------------------------------------------

    def schema_text(self, source: Source) -> str:
        if self.schema is not None:
            return self.schema
        self.program(source)
        columns = tuple(kind for _, kind in source.columns)
        choices = self._choices
        return json.dumps(
            derive_rows(columns, choices, TITLE) if source.is_record else derive_value(columns[0], choices)
        )

    def record_name(self, schema: str) -> str | None:
        parsed = json.loads(schema)
        title = parsed.get("title") if isinstance(parsed, dict) else None
        return title if isinstance(title, str) else None

    def with_schema(self, schema: str, prefix: bytes, references: Sequence[tuple[str, str]] = ()) -> Self:
        """References need not be known: values are not held against the schema."""
        return self._changed(prefix=prefix, schema=schema)

    # ---- what the Spark sink asks for --------------------------------------------------------------------------------

    def in_zone(self, time_zone: str) -> Self:
        """The same format with another time zone. Raises ConfigError for an unknown one, and in orjson's dialect."""
        return self._changed(time_zone=time_zone)

    def _changed(self, **changes: Any) -> Self:
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.dialect == "orjson":
            del arguments["time_zone"]  # this dialect takes none
        return type(self)(**{**arguments, **changes})

    # ---- what the encoder asks for -----------------------------------------------------------------------------------

    @property
    def _choices(self) -> Choices:
        spark = self.dialect == "spark"
        local_format = self.timestamp_ntz_format or (None if spark else self.timestamp_format)
        return Choices(
            spark, self.ignore_null_fields, self.timestamp_format, local_format, self.date_format, self.time_zone
        )

    def rows_program(self, columns: Sequence[Column]) -> Program:
        return _compiled_rows(tuple(columns), self.prefix, self._choices)

    def column_program(self, column: Column) -> Program:
        return _compiled_column(column, self.prefix, self._choices)

    def table_program(self, columns: Sequence[Column]) -> Program:
        return self.rows_program(columns)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str | None):
        raise ConfigError(f"{name} must be a string, found {type(value).__name__}")
    if value is not None and not value.isprintable():
        raise ConfigError(f"{name} must be printable text, found {value!r:.200}")


def _schema_text(schema: str | Mapping[str, Any]) -> str:
    """The text as it is, or a dict's text. Raises ConfigError for what is no JSON Schema."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        parsed = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"schema is not JSON: {error}") from error
    if not isinstance(parsed, dict | bool):
        raise ConfigError(f"a JSON Schema is an object, found {text:.200}")
    return text


# Programs are immutable, and depend on nothing but these arguments: none gets stale.


@functools.lru_cache(_CACHED)
def _compiled_rows(columns: tuple[Column, ...], prefix: bytes, choices: Choices) -> Program:
    return compile_rows(columns, prefix, choices)


@functools.lru_cache(_CACHED)
def _compiled_column(column: Column, prefix: bytes, choices: Choices) -> Program:
    return compile_column(column, prefix, choices)
