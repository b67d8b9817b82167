"""A row that cannot be encoded as JSON text, for its dead letter and for the checksum of a task's rows."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def row_text(batch: pa.RecordBatch, columns: Sequence[int], row: int) -> bytes:
    """The row's values of these columns as a JSON object.

    Bytes are base64, and what JSON lacks (times, decimals, NaN) is text. A map is a list of pairs, since Arrow's maps
    may have a key twice.
    """
    values = {batch.schema.names[column]: _value(batch.column(column)[row]) for column in columns}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _value(scalar: pa.Scalar[Any]) -> Any:
    try:
        return _plain(scalar.as_py())
    except (ValueError, OverflowError):  # a time outside of the years 1 to 9999; text that is not UTF-8
        return repr(scalar)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
