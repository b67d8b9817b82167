"""The subject of an X.509 certificate as text, as Java's X500Principal.getName() writes it (RFC 2253).

Certificate ::= SEQUENCE { SEQUENCE { [0] version OPTIONAL, serial, signature, issuer, validity, subject, ... } ... }
subject ::= SEQUENCE OF SET OF SEQUENCE { type OBJECT IDENTIFIER, value }

The last part of the subject comes first: CN=alice,OU=sales,C=DE. Only a few types have names; the value of every other
type is written as its bytes, in hexadecimal digits. OpenSSL has checked the certificate already.
"""

from __future__ import annotations

from collections.abc import Iterator

_VERSION = 0xA0
# Fields of a certificate before its subject, without the version: serial, signature, issuer, validity.
_BEFORE_SUBJECT = 4
_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
# UTF8String, PrintableString, T61String, IA5String, UniversalString, BMPString.
_ENCODINGS = {12: "utf-8", 19: "ascii", 20: "latin-1", 22: "ascii", 28: "utf-32-be", 30: "utf-16-be"}
_ESCAPED = ',=+<>#;"\\'


def subject(certificate: bytes) -> str:
    """The subject of a certificate in DER."""
    ((_, _, outer),) = _items(certificate)
    (_, _, tbs), *_ = _items(outer)
    fields = [item for item in _items(tbs) if item[0] != _VERSION]
    return ",".join("+".join(_attribute(item) for _, _, item in _items(part)) for part in _parts(fields))


def _parts(fields: list[tuple[int, bytes, bytes]]) -> list[bytes]:
    return [content for _, _, content in _items(fields[_BEFORE_SUBJECT][2])][::-1]


def _items(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The items of a DER sequence: tag, the whole item, its content."""
    position = 0
    while position < len(data):
        tag, length, start = data[position], data[position + 1], position + 2
        if length >= 0x80:
            digits = length - 0x80
            length, start = int.from_bytes(data[start : start + digits]), start + digits
        yield tag, data[position : start + length], data[start : start + length]
        position = start + length


def _attribute(item: bytes) -> str:
    (_, _, identifier), (tag, encoded, content) = _items(item)
    type_ = _object_identifier(identifier)
    if type_ not in _NAMES or tag not in _ENCODINGS:
        return f"{_NAMES.get(type_, type_)}=#{encoded.hex()}"
    return f"{_NAMES[type_]}={_escape(content.decode(_ENCODINGS[tag], 'replace'))}"


def _object_identifier(data: bytes) -> str:
    numbers, value = [], 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escape(value: str) -> str:
    """The value with backslashes before special characters, and before spaces at its ends."""
    start = len(value) - len(value.lstrip(" "))
    end = len(value.rstrip(" "))
    return "".join(
        f"\\{character}" if character in _ESCAPED or (character == " " and not start <= index < end) else character
        for index, character in enumerate(value)
    ).replace("\0", "\\00")
