"""Avro: how send_arrow() makes keys and values of columns, and send() of objects, in Avro's binary encoding."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, final

from kafkabuf.arrow.types import ArrowType, Column
from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats.avro._objects import ObjectEncoder, object_encoder
from kafkabuf.formats.avro.compile import compile_column, compile_rows
from kafkabuf.formats.avro.derive import derive_record, derive_value
from kafkabuf.formats.avro.references import merged
from kafkabuf.formats.avro.schema import Node, Record, Union, canonical, parse
from kafkabuf.formats.rows._encoded import columns_of
from kafkabuf.formats.rows._object_writer import object_serializer
from kafkabuf.formats.rows.format import Format, Source, check_extra_columns, checked_prefix
from kafkabuf.formats.rows.program import Program

ROW = "Row"  # the name of a derived record
_CACHED = 64


@final
@dataclass(frozen=True, init=False)
class Avro(Format):
    """Avro's binary encoding, of one schema. Immutable; it pickles, and two with the same arguments are equal.

    Attributes:
        schema: the schema as JSON text; None: each call derives it from the columns of its data.
        prefix: the bytes before each encoded value.
        extra_columns: what is done with a column, also of a struct, for which the schema has no field; and with such a
            key of a dict, or such a field of a class that declares its fields.
    """

    kind: ClassVar[Literal["AVRO"]] = "AVRO"
    schema: str | None
    prefix: bytes
    extra_columns: Literal["error", "ignore"]

    def __init__(
        self,
        schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        prefix: bytes = b"",
        extra_columns: Literal["error", "ignore"] = "error",
    ) -> None:
        """
        Args:
            schema: an Avro schema: JSON text, a primitive type's name, or the same as dict or list. None derives it:
                a nullable column becomes a union of null and its type.
            prefix: bytes that are written before each value, such as Schema Registry's five: 0 and the schema's id.
            extra_columns: "error" refuses data with a column that the schema lacks, as Spark's to_avro does; "ignore"
                leaves such columns out, as confluent-kafka's AvroSerializer does.

        Raises:
            ConfigError: the schema is no Avro schema, or an argument has another type.
        """
        check_extra_columns(extra_columns)
        text = None if schema is None else canonical(schema)
        if text is not None:
            _parsed(text)
        object.__setattr__(self, "schema", text)
        object.__setattr__(self, "prefix", checked_prefix(prefix))
        object.__setattr__(self, "extra_columns", extra_columns)

    def schema_for(self, data: Any) -> str:
        """The schema of data's rows as JSON text: the given schema, or the schema that is derived from its columns.

        A stream is read: give it to no other call afterwards. Raises SerializationError for data without the Arrow
        PyCapsule interface, and for a column that has no Avro type.
        """
        return self.schema if self.schema is not None else _derived_rows(columns_of(data))

    def encode_object(self, value: Any, prefix: bytes | None = None) -> bytes | None:
        """Encode one Python object: a dict or an object with attributes for a record, and so on for the other types.

        `prefix` takes the place of the format's prefix. None is None, Kafka's null, whatever the schema is. Raises
        SerializationError for an object that does not fit the schema, and ConfigError for a format without a schema.
        """
        return self._encoder("value").encode(value, self.prefix if prefix is None else prefix)

    def __call__(self, value: Any) -> bytes | None:
        """encode_object(): an Avro with a schema is a serializer."""
        return self.encode_object(value)

    def object_serializer(self, field: str) -> Callable[[Any], bytes | None]:
        """The serializer of a producer's keys or values. `field`, "key" or "value", begins the paths in errors.

        Raises ConfigError for a format without a schema.
        """
        return object_serializer(self._encoder(field), self.prefix)

    def _encoder(self, field: str) -> ObjectEncoder:
        if self.schema is None:
            raise ConfigError(
                f"Avro() without a schema derives it from columns, and a {field} has none: give Avro(schema)"
            )
        return _object_encoder(self.schema, self.extra_columns, field)

    # ---- what a Schema Registry asks for -----------------------------------------------------------------------------

    def schema_text(self, source: Source) -> str:
        if self.schema is not None:
            return self.schema
        kinds = tuple(kind for _, kind in source.columns)
        return _derived_rows(kinds) if source.is_record else json.dumps(derive_value(kinds[0], ROW))

    def record_name(self, schema: str) -> str | None:
        from kafkabuf.formats.rows.subjects import avro_record_name  # no load: it came with the registry

        return avro_record_name(schema)

    def with_schema(self, schema: str, prefix: bytes, references: Sequence[tuple[str, str]] = ()) -> Self:
        text = merged(schema, references) if references else schema
        return type(self)(text, prefix=prefix, extra_columns=self.extra_columns)

    # ---- what the encoder asks for -----------------------------------------------------------------------------------

    def rows_program(self, columns: Sequence[Column]) -> Program:
        text = self.schema or _derived_rows(tuple(kind for _, kind in columns))
        return _compiled_rows(text, tuple(columns), self.prefix, self.extra_columns)

    def column_program(self, column: Column) -> Program:
        text = self.schema or json.dumps(derive_value(column[1], ROW))
        return _compiled_column(text, column, self.prefix, self.extra_columns)

    def table_program(self, columns: Sequence[Column]) -> Program:
        if self.schema is None or _is_record(_parsed(self.schema)):
            return self.rows_program(columns)
        if len(columns) != 1:
            raise SerializationError(
                f"the Avro schema is {_parsed(self.schema)} and takes one column, found {len(columns)}: select one"
            )
        return self.column_program(columns[0])


# Programs and schemas are immutable, and depend on nothing but these arguments: none gets stale.


@functools.lru_cache(_CACHED)
def _parsed(text: str) -> Node:
    return parse(text)


@functools.lru_cache(_CACHED)
def _derived_rows(columns: tuple[ArrowType, ...]) -> str:
    return json.dumps(derive_record(columns, ROW))


@functools.lru_cache(_CACHED)
def _compiled_rows(text: str, columns: tuple[Column, ...], prefix: bytes, extra_columns: str) -> Program:
    return compile_rows(_parsed(text), columns, prefix, extra_columns)


@functools.lru_cache(_CACHED)
def _compiled_column(text: str, column: Column, prefix: bytes, extra_columns: str) -> Program:
    return compile_column(_parsed(text), column, prefix, extra_columns)


@functools.lru_cache(_CACHED)
def _object_encoder(text: str, extra_columns: str, field: str) -> ObjectEncoder:
    return object_encoder(text, extra_columns, field)


def _is_record(node: Node) -> bool:
    return isinstance(node, Record) or (
        isinstance(node, Union) and sum(isinstance(branch, Record) for branch in node.branches) == 1
    )
