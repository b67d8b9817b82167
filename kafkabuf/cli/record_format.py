"""How `kafkabuf consume` prints a record: by name, or by a template with the tokens of kcat."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from kafkabuf.broker.log.decoding import ConsumerRecord

Format = Callable[[ConsumerRecord], bytes]

_NAMED = {"value": r"%s\n", "key-value": r"%k\t%s\n"}
_JSON = "json"
NAMES = (*_NAMED, _JSON)
_TOKEN = re.compile(rb"%(.)|\\(.)", re.DOTALL)
# What a terminal may take for a command, apart from tab and line feed.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_encode_json = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would make an encoder for each record
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


def _text(value: bytes | None) -> bytes:
    return b"" if value is None else value


def _size(value: bytes | None) -> bytes:
    return b"%d" % (-1 if value is None else len(value))


_FIELDS: Mapping[bytes, Format] = {
    b"s": lambda record: _text(record.value),
    b"S": lambda record: _size(record.value),
    b"k": lambda record: _text(record.key),
    b"K": lambda record: _size(record.key),
    b"t": lambda record: record.topic.encode(),
    b"p": lambda record: b"%d" % record.partition,
    b"o": lambda record: b"%d" % record.offset,
    b"T": lambda record: b"%d" % record.timestamp,
    b"h": lambda record: b",".join(name.encode() + b"=" + _text(value) for name, value in record.headers),
    b"%": lambda record: b"%",
}


def formatter(text: str, *, visible: bool = False) -> Format:
    """The format of this name, or of a template. With `visible` a template shows the control characters of keys, values
    and headers, and bytes that are not UTF-8, as escapes. Raises ValueError for other texts, and for unknown tokens."""
    if text == _JSON:
        return _as_json
    if text not in _NAMED and "%" not in text:
        raise ValueError(f"{text!r} is none of {', '.join(NAMES)}, nor a template with tokens such as %k and %s")
    return _template(_NAMED.get(text, text).encode(errors="surrogateescape"), visible)


def _template(template: bytes, visible: bool) -> Format:
    parts: list[Format] = []
    end = 0
    for match in _TOKEN.finditer(template):
        parts.append(_constant(template[end : match.start()]))
        parts.append(_part(match, visible))
        end = match.end()
    parts.append(_constant(template[end:]))
    return lambda record: b"".join(part(record) for part in parts)


def _part(match: re.Match[bytes], visible: bool) -> Format:
    token, escape = match.groups()
    if escape is not None:
        return _constant(_ESCAPES.get(escape, match[0]))
    if token not in _FIELDS:
        known = ", ".join(f"%{name.decode()}" for name in _FIELDS)
        raise ValueError(f"{match[0].decode(errors='replace')} is no token of a template: there are {known}")
    field = _FIELDS[token]
    return (lambda record: _shown(field(record))) if visible else field


def _shown(value: bytes) -> bytes:
    text = value.decode(errors="backslashreplace")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text).encode()


def _constant(text: bytes) -> Format:
    return lambda record: text


def _as_json(record: ConsumerRecord) -> bytes:
    return json_line(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            **json_content(record),
        }
    )


def json_content(record: ConsumerRecord) -> dict[str, Any]:
    """Key, value and headers for JSON."""
    return {
        "key": _json_value(record.key),
        "value": _json_value(record.value),
        "headers": [[name, _json_value(value)] for name, value in record.headers],
    }


def json_line(fields: Mapping[str, Any]) -> bytes:
    # JSON leaves the control characters from U+007F on as they are.
    text = _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", _encode_json(fields))
    return text.encode() + b"\n"


def _json_value(value: bytes | None) -> str | dict[str, str] | None:
    """Text, or for bytes that are not UTF-8 an object with their digits."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
