"""Protobuf: how send_arrow() makes keys and values of columns, and send() of objects, in Protobuf's encoding."""

from __future__ import annotations

import base64
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, final

from kafkabuf.arrow.types import Column
from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats.protobuf._objects import ProtobufObjectEncoder, object_encoder
from kafkabuf.formats.protobuf.compile import Rules, compile_column, compile_rows
from kafkabuf.formats.protobuf.descriptor import descriptor_set, last_file, needed_files, raw_files
from kafkabuf.formats.protobuf.schema import Message, declares, parse
from kafkabuf.formats.protobuf.text import compile_text
from kafkabuf.formats.rows._object_writer import object_serializer
from kafkabuf.formats.rows.format import Format, Source, check_extra_columns, checked_prefix
from kafkabuf.formats.rows.program import Program

_CACHED = 64


@final
@dataclass(frozen=True, init=False)
class Protobuf(Format):
    """Protobuf's encoding, of one message. Immutable; it pickles, and two with the same arguments are equal.

    It needs the package protobuf neither here nor where it is unpickled.

    Attributes:
        message: the full name of the message: package and name.
        schema: the message's file as a Schema Registry takes it: the base64 of its FileDescriptorProto. What the file
            imports is not part of it: the registry needs these files as references, but for those of google.
        descriptors: a FileDescriptorSet of the message's file and of what that imports.
        prefix: the bytes before each encoded value.
        extra_columns: what is done with a column, also of a struct, for which the message has no field.
        missing_columns: what is done with a field for which there is no column.
    """

    kind: ClassVar[Literal["PROTOBUF"]] = "PROTOBUF"
    message: str
    schema: str = field(repr=False)
    descriptors: bytes = field(repr=False)
    prefix: bytes
    extra_columns: Literal["error", "ignore"]
    missing_columns: Literal["unset", "error"]

    def __init__(
        self,
        message: Any,
        *,
        prefix: bytes = b"",
        extra_columns: Literal["error", "ignore"] = "error",
        missing_columns: Literal["unset", "error"] = "unset",
    ) -> None:
        """
        Args:
            message: a message class that protoc has generated, or a Descriptor of the package protobuf.
            prefix: bytes that are written before each value, such as Schema Registry's: 0, the schema's id, and the
                indexes of the message (kafkabuf.formats.registry.framing.prefix).
            extra_columns: "error" refuses data with a column that the message lacks; "ignore" leaves such columns out.
            missing_columns: "unset" leaves a field without a column unset; "error" refuses such data. Both refuse it
                for a required field.

        Raises:
            ConfigError: the message is no message, or an argument has another type.
        """
        descriptor = getattr(message, "DESCRIPTOR", message)
        if not hasattr(descriptor, "full_name") or not hasattr(getattr(descriptor, "file", None), "serialized_pb"):
            raise ConfigError(
                f"message must be a generated message class or a Descriptor, found {message!r:.200}: "
                f"Protobuf.from_descriptor_set() takes the bytes of descriptors"
            )
        self._set(descriptor.full_name, _set_of(descriptor.file), prefix, extra_columns, missing_columns)

    @classmethod
    def from_descriptor_set(
        cls,
        descriptors: bytes | str | os.PathLike[str],
        message: str,
        *,
        prefix: bytes = b"",
        extra_columns: Literal["error", "ignore"] = "error",
        missing_columns: Literal["unset", "error"] = "unset",
    ) -> Self:
        """A message of a FileDescriptorSet: `protoc --include_imports --descriptor_set_out=PATH`.

        Args:
            descriptors: the set's bytes, or the path of a file with them.
            message: the full name of the message: `package.Message`, or `package.Outer.Inner`.
            prefix, extra_columns, missing_columns: as for Protobuf().

        Raises:
            ConfigError: there is no such message, the bytes are no such set, or an argument has another type.
            OSError: the file cannot be read.
        """
        data = descriptors if isinstance(descriptors, bytes) else Path(descriptors).read_bytes()
        made = cls.__new__(cls)
        made._set(message.removeprefix("."), data, prefix, extra_columns, missing_columns)
        return made

    def _set(self, message: str, descriptors: bytes, prefix: bytes, extra_columns: str, missing_columns: str) -> None:
        check_extra_columns(extra_columns)
        if missing_columns not in ("unset", "error"):
            raise ConfigError(f"missing_columns must be 'unset' or 'error', found {missing_columns!r}")
        needed = needed_files(descriptors, _parsed(descriptors, message).file)
        for name, value in [
            ("message", message), ("schema", _text(last_file(needed))), ("descriptors", needed),
            ("prefix", checked_prefix(prefix)), ("extra_columns", extra_columns), ("missing_columns", missing_columns),
        ]:  # fmt: skip
            object.__setattr__(self, name, value)

    def encode_object(self, value: Any, prefix: bytes | None = None) -> bytes | None:
        """Encode one Python object: a message object of the package protobuf, whose message has this full name, or a
        dict or an object with the message's fields.

        `prefix` takes the place of the format's prefix. None is None, Kafka's null. Raises SerializationError for any
        other object, and for an object that does not fit the message.
        """
        return self._encoder("value").encode(value, self.prefix if prefix is None else checked_prefix(prefix))

    def __call__(self, value: Any) -> bytes | None:
        """encode_object(): a Protobuf is a serializer."""
        return self.encode_object(value)

    def object_serializer(self, field: str) -> Callable[[Any], bytes | None]:
        """The serializer of a producer's keys or values. `field`, "key" or "value", begins the paths in errors."""
        return object_serializer(self._encoder(field), self.prefix)

    def _encoder(self, field: str) -> ProtobufObjectEncoder:
        return _object_encoder(self.descriptors, self.message, self._rules, field)

    # ---- what a Schema Registry asks for -----------------------------------------------------------------------------

    def schema_text(self, source: Source) -> str:
        return self.schema

    def record_name(self, schema: str) -> str | None:
        return self.message

    def message_indexes(self, schema: str | None = None, references: Sequence[tuple[str, str]] = ()) -> tuple[int, ...]:
        """The path to the message in its file, or in the file of another schema: the framing names it.

        Its own index is the last; those of the messages around it come before. `references` has the names and texts of
        the schemas that `schema` imports. Raises SerializationError for a schema that cannot be read, and ConfigError
        for one without the message.
        """
        if schema is None or schema == self.schema:
            return _parsed(self.descriptors, self.message).path
        return _parsed(self._descriptors_with(schema, references), self.message).path

    def with_schema(self, schema: str, prefix: bytes, references: Sequence[tuple[str, str]] = ()) -> Self:
        return self.from_descriptor_set(
            self.descriptors if schema == self.schema else self._descriptors_with(schema, references),
            self.message,
            prefix=prefix,
            extra_columns=self.extra_columns,
            missing_columns=self.missing_columns,
        )

    def _descriptors_with(self, schema: str, references: Sequence[tuple[str, str]]) -> bytes:
        """Files of this format stand in for those that a registry does not store, such as google's own."""
        texts = tuple((name, text) for name, text in references if _file_of(text) is None)
        files = [file for _, text in references if (file := _file_of(text)) is not None]
        known = descriptor_set(files) + self.descriptors
        own = _file_of(schema)
        if own is None:
            compiled = compile_text(schema, texts, known)
        else:
            compiled = descriptor_set([own]) + (compile_text("", texts, known) if texts else b"")
        if not declares(raw_files(compiled)[0], self.message):
            raise SerializationError(f"the registry's schema has no message {self.message}")
        return compiled + known

    # ---- what the encoder asks for -----------------------------------------------------------------------------------

    def rows_program(self, columns: Sequence[Column]) -> Program:
        return _compiled_rows(self.descriptors, self.message, tuple(columns), self.prefix, self._rules)

    def column_program(self, column: Column) -> Program:
        return _compiled_column(self.descriptors, self.message, column, self.prefix, self._rules)

    def table_program(self, columns: Sequence[Column]) -> Program:
        return self.rows_program(columns)

    @property
    def _rules(self) -> Rules:
        return Rules(self.extra_columns, self.missing_columns)


def _text(file: bytes) -> str:
    return base64.b64encode(file).decode()


def _file_of(schema: str) -> bytes | None:
    """The FileDescriptorProto in a registry's schema; None: the schema is .proto text."""
    try:
        return base64.b64decode(schema, validate=True) or None
    except ValueError:
        return None


def _set_of(file: Any) -> bytes:
    """The descriptor set of a FileDescriptor and of all that it imports."""
    files, pending = {}, [file]
    while pending:
        visited = pending.pop()
        if visited.name not in files:
            files[visited.name] = visited.serialized_pb
            pending.extend(visited.dependencies)
    return descriptor_set(files.values())


# Programs and messages are immutable, and depend on nothing but these arguments: none gets stale.


@functools.lru_cache(_CACHED)
def _parsed(descriptors: bytes, message: str) -> Message:
    return parse(descriptors, message)


@functools.lru_cache(_CACHED)
def _compiled_rows(
    descriptors: bytes, message: str, columns: tuple[Column, ...], prefix: bytes, rules: Rules
) -> Program:
    return compile_rows(_parsed(descriptors, message), columns, prefix, rules)


@functools.lru_cache(_CACHED)
def _compiled_column(descriptors: bytes, message: str, column: Column, prefix: bytes, rules: Rules) -> Program:
    return compile_column(_parsed(descriptors, message), column, prefix, rules)


@functools.lru_cache(_CACHED)
def _object_encoder(descriptors: bytes, message: str, rules: Rules, field: str) -> ProtobufObjectEncoder:
    return object_encoder(_parsed(descriptors, message), rules.extra_columns, rules.missing_columns, field)
