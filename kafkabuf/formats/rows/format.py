"""What all formats have in common: an immutable object that compiles the types of columns into a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from kafkabuf.errors import ConfigError
from kafkabuf.formats.rows._encoded import encode

if TYPE_CHECKING:
    from kafkabuf.arrow.types import Column
    from kafkabuf.formats.rows.program import Program


def checked_prefix(prefix: bytes) -> bytes:
    """Raises ConfigError for anything but bytes."""
    if not isinstance(prefix, bytes):
        raise ConfigError(f"prefix must be bytes, found {type(prefix).__name__}")
    return prefix


def check_extra_columns(extra_columns: str) -> None:
    """Raises ConfigError for another word."""
    if extra_columns not in ("error", "ignore"):
        raise ConfigError(f"extra_columns must be 'error' or 'ignore', found {extra_columns!r}")


class Source(NamedTuple):
    """The columns that become keys or values: one column as it is, or a record of them all (`is_record`)."""

    columns: tuple[Column, ...]
    is_record: bool


class Format(ABC):
    """The base of Avro and its siblings. Immutable; it pickles, and two with the same arguments are equal.

    Attributes:
        kind: what a Schema Registry calls the format's schemas.
        schema: the schema's text; None: it is derived from the columns.
        prefix: the bytes before each encoded value.
    """

    kind: ClassVar[Literal["AVRO", "JSON", "PROTOBUF"]]
    schema: str | None
    prefix: bytes

    def __init_subclass__(cls) -> None:
        # An encoder carries a program out without looking at each step again: a wrong program would crash Python.
        if not cls.__module__.startswith("kafkabuf.formats."):
            raise TypeError("only kafkabuf has formats: a serializer of your own goes into value_serializer")

    def encode(self, data: Any) -> list[bytes | None]:
        """Encode each row of Arrow data, without a producer: for tests, and to send the bytes by other means.

        A row is a record of all columns. If the schema is no record, there must be one column, and its nulls are None.
        Raises SerializationError as send_arrow() does.
        """
        return encode(self, data)

    def program(self, source: Source) -> Program:
        """The program for these columns. Raises SerializationError where they do not fit."""
        return self.rows_program(source.columns) if source.is_record else self.column_program(source.columns[0])

    # ---- what a Schema Registry asks for -----------------------------------------------------------------------------

    @abstractmethod
    def schema_text(self, source: Source) -> str:
        """The given schema, or the schema that is derived from these columns. Raises SerializationError."""

    @abstractmethod
    def record_name(self, schema: str) -> str | None:
        """The full name in a schema's text, for the record strategies of subjects; None: the schema has no name."""

    @abstractmethod
    def with_schema(self, schema: str, prefix: bytes, references: Sequence[tuple[str, str]] = ()) -> Self:
        """The same format with the schema that the registry answered, and with its prefix.

        `references` has the names and texts of the schemas that `schema` refers to, each after those that it refers to
        itself. Raises SerializationError for a schema that the format cannot write.
        """

    def message_indexes(self, schema: str, references: Sequence[tuple[str, str]] = ()) -> Sequence[int] | None:
        """The path to the message in a Protobuf schema's text, which the framing names; None for other formats.

        `references` is as in with_schema().
        """
        return None

    # ---- what the encoder asks for. Each raises SerializationError where the columns do not fit. ---------------------

    @abstractmethod
    def rows_program(self, columns: Sequence[Column]) -> Program:
        """Values are records of these columns."""

    @abstractmethod
    def column_program(self, column: Column) -> Program:
        """Values are the values of this column; its nulls are Kafka's null."""

    @abstractmethod
    def table_program(self, columns: Sequence[Column]) -> Program:
        """For encode(): a record schema takes all columns, another schema takes the only column."""


class ResolvedFormat(NamedTuple):
    """A format with a registry's schema and prefix, and the header that names the schema; None: the prefix does.

    It pickles and has no secret. send_arrow() takes it in place of a format.
    """

    format: Format
    header: tuple[str, bytes] | None
