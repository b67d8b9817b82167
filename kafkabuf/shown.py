"""Values of rows and settings as text, for errors, logs and dead letters. Nothing here raises, whatever the value is.

Arrow keeps text that is not UTF-8, and times outside of the years that Python knows. Scalar.as_py() raises for these,
and so do repr() and str() of the scalar. Imports are late: most programs have nothing to show.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kafkabuf.errors import printable

if TYPE_CHECKING:
    import pyarrow as pa

_ESCAPE = "surrogateescape"  # stands for bytes that are not UTF-8, and becomes the same bytes again


def shown(value: object, longest: int = 1000) -> str:
    """The repr() of a value that somebody else has made."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__} without a repr"
    return printable(text, longest)


def also_unfinished(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """A `__repr__` that does not raise for an object whose constructor has raised: a traceback with local variables
    shows that object, and would hide the constructor's error."""

    @functools.wraps(show)
    def __repr__(self: Any) -> str:  # it becomes the class's
        try:
            return show(self)
        except (AttributeError, KeyError):
            return f"<{type(self).__name__}, not made yet>"

    return __repr__


def raw(scalar: pa.Scalar[Any]) -> bytes | None:
    """The bytes of a value of a column of text or bytes, as they are."""
    import pyarrow as pa

    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    buffer = scalar.as_buffer() if scalar.is_valid else None
    return None if buffer is None else bytes(buffer)


def escaped(scalar: pa.Scalar[Any]) -> str | None:
    """A value of a column of text, with escapes for bytes that are not UTF-8."""
    value = raw(scalar)
    return None if value is None else value.decode(errors="backslashreplace")


def text(scalar: pa.Scalar[Any]) -> str:
    """A value of any column, for a message."""
    import json

    value = plain(scalar)
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def json_object(values: Mapping[str, pa.Scalar[Any]]) -> bytes:
    """Values of a row as a JSON object. Text that is not UTF-8 keeps its bytes, which no JSON may have.

    Bytes are base64, and what JSON lacks (times, decimals, NaN) is text. A map is a list of pairs, since Arrow's maps
    may have a key twice.
    """
    import json

    members = {name: plain(scalar) for name, scalar in values.items()}
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode("utf-8", _ESCAPE)


def plain(scalar: pa.Scalar[Any]) -> Any:
    """A value for json.dumps(). Bytes of a text that are not UTF-8 are single surrogates (PEP 383)."""
    try:
        return _json_value(scalar.as_py())
    except Exception:
        return _in_parts(scalar)


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _json_value(item) for name, item in value.items()}
    if type(value) in (list, tuple):  # not an interval, a tuple whose parts have names
        return [_json_value(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _in_parts(scalar: Any) -> Any:
    """The same for a value that has a part that cannot be shown."""
    import pyarrow as pa

    try:
        if hasattr(scalar, "as_buffer"):  # text, since bytes need no decoding
            return bytes(scalar.as_buffer()).decode("utf-8", _ESCAPE)
        if isinstance(scalar, pa.DictionaryScalar | pa.ExtensionScalar | pa.UnionScalar):
            return plain(scalar.value)
        if isinstance(scalar, pa.MapScalar):
            return [[plain(pair[0]), plain(pair[1])] for pair in scalar.values]
        if isinstance(scalar, pa.ListScalar):
            return [plain(item) for item in scalar.values]
        if isinstance(scalar, pa.StructScalar):
            return {scalar.type.field(at).name: plain(scalar[at]) for at in range(scalar.type.num_fields)}
        return _of_a_time(scalar)
    except Exception:
        return f"a value of type {scalar.type}"


def _of_a_time(scalar: Any) -> str:
    """The number that stands for a time: Arrow's own text for a year above 32767 has another year."""
    import pyarrow as pa

    number = scalar.cast(pa.int32() if pa.types.is_date32(scalar.type) else pa.int64()).as_py()
    return f"{number} ({scalar.type})"
