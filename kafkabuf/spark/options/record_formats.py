"""How a write makes keys and values of columns, as the tasks know it. Nothing here is secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkabuf.errors import KafkaError, SerializationError

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.formats.plan import Formats
    from kafkabuf.formats.rows.format import ResolvedFormat


# The column with the errors of rows that cannot be encoded: null for all others. A batch without such rows lacks it.
UNENCODABLE = "kafkabuf.unencodable"


@dataclass(frozen=True)
class RecordFormats:
    """The formats of values and of keys; None: a column of text or bytes, as it is. Spark pickles this to the tasks.

    `key_columns` are the columns that make the key, none for the column `key`. `in_session_zone`: JSON writes
    timestamps in the time zone of the task's data, which is that of the session.
    """

    value: ResolvedFormat | None
    key: ResolvedFormat | None
    key_columns: tuple[str, ...] = ()
    in_session_zone: bool = False

    @property
    def has_headers(self) -> bool:
        """Whether a header names a schema."""
        return any(resolved is not None and resolved.header is not None for resolved in (self.value, self.key))

    def arguments(self) -> Formats:
        """The same as arguments of send_arrow(), which know the columns of key and value."""
        from kafkabuf.formats.plan import Formats  # late: it loads an extension

        return Formats(self.value, self.key, key_argument(self.key_columns))


def key_argument(key_columns: tuple[str, ...]) -> str | tuple[str, ...] | None:
    """The argument `key` of send_arrow(): one column is the key, several columns make a record."""
    return (key_columns[0] if len(key_columns) == 1 else key_columns) or None


def unencodable(batch: pa.RecordBatch) -> dict[int, KafkaError]:
    """The rows that cannot be encoded: place in the batch and error."""
    if UNENCODABLE not in batch.schema.names:
        return {}
    texts = batch.column(UNENCODABLE).to_pylist()
    return {place: SerializationError(text) for place, text in enumerate(texts) if text is not None}
