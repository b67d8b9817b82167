"""What all formats have in common: an immutable object that compiles the types of columns into a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkabuf.formats.arrow_types import Column
    from kafkabuf.formats.program import Program


class Format(ABC):
    """The base of Avro and its siblings. Immutable; it pickles, and two with the same arguments are equal.

    Attributes:
        prefix: the bytes before each encoded value.
    """

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
        from kafkabuf.formats._encoded import encode

        return encode(self, data)

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
