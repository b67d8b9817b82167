"""The demo's rows as Avro or Protobuf: structs that the sink's valueFormat writes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from click import ClickException
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafkabuf.cli.demo.verify import avro_row, protobuf_row
from kafkabuf.formats import Avro, Protobuf
from kafkabuf.spark.options.format_options import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

    from kafkabuf.formats.rows.format import Format

MESSAGE = "Row"
_DATE = "google/type/date.proto"
_TIMESTAMP = "google/protobuf/timestamp.proto"
# Types of Spark and of FieldDescriptorProto.
_SCALARS: dict[type[T.DataType], str] = {
    T.BooleanType: "TYPE_BOOL",
    T.ByteType: "TYPE_INT32",
    T.ShortType: "TYPE_INT32",
    T.IntegerType: "TYPE_INT32",
    T.LongType: "TYPE_INT64",
    T.FloatType: "TYPE_FLOAT",
    T.DoubleType: "TYPE_DOUBLE",
    T.StringType: "TYPE_STRING",
    T.BinaryType: "TYPE_BYTES",
}
_MESSAGES: dict[type[T.DataType], str] = {
    T.DateType: ".google.type.Date",
    T.TimestampType: ".google.protobuf.Timestamp",
    T.TimestampNTZType: ".google.protobuf.Timestamp",
}


@dataclass(frozen=True)
class StructFormat:
    """How the sink writes the structs in `value`, and how the demo encodes them without the sink."""

    format: Format
    options: dict[str, str]  # of the sink
    row: Callable[[bytes], int]  # the number of the row in a value

    def encoded(self, records: DataFrame) -> DataFrame:
        """The records with values of bytes: Spark's Python workers encode the structs, without the sink."""
        format = self.format

        def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in batches:
                rows = pa.RecordBatch.from_struct_array(batch.column("value"))
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                yield pa.RecordBatch.from_pydict(columns | {"value": pa.array(format.encode(rows), pa.binary())})

        fields = [T.StructField("value", T.BinaryType()), *(field for field in records.schema if field.name != "value")]
        with warnings.catch_warnings():
            # PySpark looks for pandas here, and warns of its version; but Arrow data does not meet it.
            warnings.simplefilter("ignore", FutureWarning)
            return records.mapInArrow(encode, T.StructType(fields))


def struct_format(name: str, records: DataFrame, folder: Path) -> StructFormat:
    """The format "avro" or "protobuf" of the structs in `value`. Raises ClickException for a type that it lacks."""
    kind = records.schema["value"].dataType
    assert isinstance(kind, T.StructType)
    if name == "avro":
        schema = Avro().schema_for(arrow_schema(kind))
        return StructFormat(Avro(schema), {"valueFormat": "avro", "valueSchema": schema}, avro_row)
    path = folder / "row.descriptors"
    path.write_bytes(descriptor_set(kind))
    options = {"valueFormat": "protobuf", "valueMessage": MESSAGE, "valueDescriptors": str(path)}
    return StructFormat(Protobuf.from_descriptor_set(path, MESSAGE), options, protobuf_row)


def descriptor_set(kind: T.StructType) -> bytes:
    """A FileDescriptorSet with the message Row of these columns. Raises ClickException for a type without Protobuf's.

    The syntax is proto2, where a field that is set is written, also as zero: every value begins with its row's number.
    """
    from google.protobuf import timestamp_pb2
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    files = FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    date = files.file.add(name=_DATE, package="google.type", syntax="proto3").message_type.add(name="Date")
    for number, name in enumerate(("year", "month", "day"), 1):
        date.field.add(
            name=name,
            number=number,
            type=FieldDescriptorProto.TYPE_INT32,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
    row = files.file.add(name="row.proto", syntax="proto2", dependency=[_TIMESTAMP, _DATE])
    _add_fields(row.message_type.add(name=MESSAGE), f".{MESSAGE}", kind, "")
    return bytes(files.SerializeToString())


def _add_fields(message: DescriptorProto, full_name: str, kind: T.StructType, path: str) -> None:
    for number, column in enumerate(kind.fields, 1):
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", column.name):
            raise ClickException(
                f"--format protobuf: column '{path}{column.name}' has a name that Protobuf does not allow: rename it, "
                f"or choose another format"
            )
        field = message.field.add(name=column.name, number=number)
        _set_type(message, field, full_name, column.dataType, f"{path}{column.name}")


def _set_type(
    message: DescriptorProto, field: FieldDescriptorProto, full_name: str, kind: T.DataType, path: str
) -> None:
    field.label = field.LABEL_OPTIONAL
    if isinstance(kind, T.ArrayType):
        field.label, kind = field.LABEL_REPEATED, kind.elementType
    if isinstance(kind, T.StructType):
        inner = message.nested_type.add(name=f"Struct{field.number}")
        field.type, field.type_name = field.TYPE_MESSAGE, f"{full_name}.{inner.name}"
        _add_fields(inner, field.type_name, kind, f"{path}.")
    elif type(kind) in _MESSAGES:
        field.type, field.type_name = field.TYPE_MESSAGE, _MESSAGES[type(kind)]
    elif type(kind) in _SCALARS:
        field.type = getattr(field, _SCALARS[type(kind)])
    else:
        raise ClickException(
            f"--format protobuf: column '{path}' is of type {kind.simpleString()}, for which the demo has no type of "
            f"Protobuf: choose another format"
        )
