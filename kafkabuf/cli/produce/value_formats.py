"""What makes the values of `kafkabuf produce`: for columns of tables, and for the objects of JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig
    from kafkabuf.formats import Avro, Json, Protobuf


class ValueOptions(NamedTuple):
    """What the options say of values: a format, and the files with its schema."""

    name: str
    schema: Path | None
    message: str | None

    def check(self) -> None:
        """Raises click.UsageError."""
        if self.schema is not None and self.name not in ("avro", "protobuf"):
            raise click.UsageError("--value-schema is for --value-format avro and protobuf")
        if (self.name == "protobuf") != (self.message is not None):
            raise click.UsageError("--value-format protobuf and --value-message NAME belong together")
        if self.name == "protobuf" and self.schema is None:
            raise click.UsageError("protobuf needs --value-schema FILE, which `protoc --descriptor_set_out` writes")


def format_of(options: ValueOptions) -> Avro | Json | Protobuf | None:
    """What makes values of columns; None for raw. Raises ConfigError for a file that is no schema."""
    name, schema, message = options
    if name == "raw":
        return None
    from kafkabuf.formats import Avro, Json, Protobuf

    if schema is not None and message is not None:
        return Protobuf.from_descriptor_set(schema, message)
    return Json() if name == "json" else Avro(None if schema is None else _text_of(schema))


def encoder_of(options: ValueOptions, config: ProducerConfig) -> Callable[[Any], bytes | None] | None:
    """What makes a value of an object of JSON, and raises ValueError or SerializationError where it cannot; None
    for raw."""
    name, schema, message = options
    if name == "raw":
        return None
    if name == "json":
        from kafkabuf.cli.produce.inputs.json_lines import compact

        return compact
    if schema is None:
        raise click.UsageError("avro of jsonl needs --value-schema FILE")
    if config.given_to_schema_registry():
        raise click.UsageError("a Schema Registry needs --format csv, parquet or arrow")
    if message is not None:
        return _protobuf(schema, message)
    from kafkabuf.formats import Avro

    return Avro(_text_of(schema)).encode_object


def _text_of(schema: Path) -> str:
    try:
        return schema.read_text("utf-8")
    except UnicodeDecodeError:
        raise click.UsageError(f"--value-schema: {schema} is no Avro schema: it is not UTF-8") from None


def _protobuf(schema: Path, name: str) -> Callable[[Any], bytes]:
    """The package protobuf reads Protobuf's own JSON: names of fields as in the schema or in camel case."""
    try:
        from google.protobuf import descriptor_pb2, json_format, message_factory
        from google.protobuf.message import DecodeError, EncodeError
    except ModuleNotFoundError:
        raise click.ClickException("protobuf of jsonl needs the package protobuf: pip install protobuf") from None
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(schema.read_bytes())
        new = message_factory.GetMessages(files.file)[name]
    except (DecodeError, TypeError) as error:
        raise click.UsageError(f"--value-schema: {schema} is no set of descriptors: {error}") from None
    except KeyError:
        raise click.UsageError(f"--value-message: {schema} has no message {name!r}") from None

    def encode(value: Any) -> bytes:
        try:
            return bytes(json_format.ParseDict(value, new()).SerializeToString())
        except (json_format.ParseError, EncodeError) as error:
            raise ValueError(str(error)) from error

    return encode
