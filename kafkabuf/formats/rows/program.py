"""Programs as Python makes them: the steps that an encoder carries out for each row. See _program.pxd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkabuf.errors import SerializationError

if TYPE_CHECKING:
    from kafkabuf.formats.rows._encoder import RowEncoder

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_STEPS = 1 << 16
NO_BRANCH = -1


class Step(NamedTuple):
    """One step; `read` and `write` are the names of the enums in _program.pxd, without their prefix."""

    read: str
    write: str
    path: str  # of the column, for errors: `address.lines[]`
    arrow: str  # the column's type, for errors
    target: str  # the format's type, for errors
    child: int = 0
    size: int = 1
    null_branch: int = NO_BRANCH
    value_branch: int = NO_BRANCH
    factor: int = 1
    low: int = INT64_MIN
    high: int = INT64_MAX
    width: int = 0
    to_width: int = 0
    constant: bytes = b""
    tag: bytes = b""
    presence: bool = False


class Program(NamedTuple):
    """The steps of a value, and the class that carries them out.

    `one_column`: the value is one column and not a record of several. `format` is the format's name for errors.
    """

    format: str
    encoder: type[RowEncoder]
    steps: tuple[Step, ...]
    prefix: bytes
    one_column: bool


def make_program(
    format: str, encoder: type[RowEncoder], steps: Sequence[Step], prefix: bytes, *, one_column: bool
) -> Program:
    """Raises SerializationError for columns that need too many steps."""
    if len(steps) > MAX_STEPS:
        raise SerializationError(f"the columns need {len(steps)} steps, and at most {MAX_STEPS} are allowed")
    return Program(format, encoder, tuple(steps), prefix, one_column)


def joined(path: str, name: str) -> str:
    """The path of a column that is part of the column at `path`, or of the row if that is empty."""
    return f"{path}.{name}" if path else name
