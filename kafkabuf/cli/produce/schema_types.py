"""Types of columns of text by the schema of the value, for `kafkabuf produce` of CSV: names as --types has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkabuf.formats import Avro, Json, Protobuf
    from kafkabuf.formats.avro.schema import Node, Primitive
    from kafkabuf.formats.protobuf.schema import Field

TEXT = "string"
_AVRO = {
    "null": "null", "boolean": "bool", "int": "int32", "long": "int64", "float": "float", "double": "double",
    "bytes": TEXT, "string": TEXT,
}  # fmt: skip
_LOGICAL = {
    "date": "date32", "time-millis": "time32[ms]", "time-micros": "time64[us]",
    "timestamp-millis": "timestamp[ms, UTC]", "timestamp-micros": "timestamp[us, UTC]",
    "timestamp-nanos": "timestamp[ns, UTC]",
    "local-timestamp-millis": "timestamp[ms]", "local-timestamp-micros": "timestamp[us]",
    "local-timestamp-nanos": "timestamp[ns]",
}  # fmt: skip
_MOST_DIGITS = 76  # of Arrow's decimals
_PROTOBUF = {
    "int32": "int32", "sint32": "int32", "sfixed32": "int32", "int64": "int64", "sint64": "int64", "sfixed64": "int64",
    "uint32": "uint32", "fixed32": "uint32", "uint64": "uint64", "fixed64": "uint64", "double": "double",
    "float": "float", "bool": "bool",
}  # fmt: skip
_MESSAGES = {
    "google.protobuf.Timestamp": "timestamp[us, UTC]", "google.type.Date": "date32",
    "google.type.TimeOfDay": "time64[us]", "google.protobuf.DoubleValue": "double",
    "google.protobuf.FloatValue": "float", "google.protobuf.Int64Value": "int64",
    "google.protobuf.UInt64Value": "uint64", "google.protobuf.Int32Value": "int32",
    "google.protobuf.UInt32Value": "uint32", "google.protobuf.BoolValue": "bool",
}  # fmt: skip


def types_by_schema(made: Avro | Json | Protobuf | None, value: str | None) -> dict[str, str | None]:
    """The types of columns by their names; None where the schema leaves it open. `value` is the column that alone is
    the value. A format without a schema has none."""
    if made is not None and made.kind == "PROTOBUF":
        return _protobuf_types(made)
    return {} if made is None or made.kind == "JSON" or made.schema is None else _avro_types(made.schema, value)


def _avro_types(schema: str, value: str | None) -> dict[str, str | None]:
    from kafkabuf.formats.avro.schema import Record, parse

    root = parse(schema)
    if not isinstance(root, Record):
        return {} if value is None else {value: _by_avro(root)}
    return {name: _by_avro(field.node) for field in root.fields for name in (field.name, *field.aliases)}


def _protobuf_types(made: Protobuf) -> dict[str, str | None]:
    from kafkabuf.formats.protobuf.schema import parse

    fields = parse(made.descriptors, made.message).fields
    return {name: _by_protobuf(field) for field in fields for name in (field.json_name, field.name)}


def _by_avro(node: Node) -> str | None:
    """Text is also for what no column of CSV can be: the format refuses it."""
    from kafkabuf.formats.avro.schema import Fixed, Primitive, Union

    if isinstance(node, Union):
        branches = [branch for branch in node.branches if branch != Primitive("null")]
        kinds = {_by_avro(branch) for branch in branches}
        if TEXT in kinds:
            return TEXT
        return next(iter(kinds), "null") if len(kinds) <= 1 else None
    if isinstance(node, Fixed):
        return _decimal(node.precision, node.scale) if node.logical == "decimal" else "binary"
    return _by_primitive(node) if isinstance(node, Primitive) else TEXT


def _by_primitive(node: Primitive) -> str:
    if node.logical == "decimal":
        return _decimal(node.precision, node.scale)
    return _LOGICAL.get(node.logical) or _AVRO[node.type]


def _decimal(precision: int, scale: int) -> str:
    return f"decimal({precision}, {scale})" if precision <= _MOST_DIGITS else TEXT


def _by_protobuf(field: Field) -> str:
    if field.repeated:
        return TEXT
    return _PROTOBUF.get(field.type, TEXT) if field.target is None else _MESSAGES.get(field.target.name, TEXT)
