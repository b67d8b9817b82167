"""Java's own format of stores, JKS: certificates in the clear, and private keys that Sun's scheme of SHA-1 encrypts.

Source: sun.security.provider.JavaKeyStore and KeyProtector. The format is closed: Java 9 replaced it with PKCS12.
"""

from __future__ import annotations

import hashlib
import hmac
import io
from typing import NamedTuple

MAGIC = b"\xfe\xed\xfe\xed"
_KEY, _CERTIFICATE = 1, 2
_SHA1 = 20
# KeyProtector's own OBJECT IDENTIFIER, 1.3.6.1.4.1.42.2.17.1.1.
_SUNS_SCHEME = bytes.fromhex("060a2b060104012a02110101")


class KeyEntry(NamedTuple):
    """An encrypted private key, and its certificates in DER: the first is the key's, each next signed the last."""

    encrypted: bytes
    chain: list[bytes]


class Entries(NamedTuple):
    """Entries by alias, in the order of the file. A trusted certificate is in DER."""

    keys: dict[str, KeyEntry]
    trusted: dict[str, bytes]


def read(data: bytes, password: str | None) -> Entries:
    """The entries of a store. Without a password its integrity is not checked, as in Java.

    Raises ValueError for a wrong password, and for a file that is damaged.
    """
    body, digest = data[:-_SHA1], data[-_SHA1:]
    if password is not None:
        expected = hashlib.sha1(_chars(password) + b"Mighty Aphrodite" + body).digest()
        if not hmac.compare_digest(expected, digest):
            raise ValueError("the store's password is wrong, or the file is damaged")
    reader = _Reader(body)
    reader.take(len(MAGIC))
    version, entries = reader.number(), Entries({}, {})
    if version not in (1, 2):
        raise ValueError(f"version {version} of the format is unknown")
    for _ in range(reader.number()):
        kind, alias = reader.number(), reader.text()
        reader.take(8)  # the date of the entry
        if kind == _KEY:
            encrypted = reader.take(reader.number())
            entries.keys[alias] = KeyEntry(encrypted, [reader.certificate(version) for _ in range(reader.number())])
        elif kind == _CERTIFICATE:
            entries.trusted[alias] = reader.certificate(version)
        else:
            raise ValueError(f"entry {alias!r} is of an unknown kind, {kind}")
    return entries


def decrypt(encrypted: bytes, password: str) -> bytes:
    """A private key as PKCS #8 in DER. Raises ValueError for a wrong password or another scheme."""
    algorithm, protected = _parts(_content(encrypted)[0])
    if not algorithm.startswith(_SUNS_SCHEME):
        raise ValueError("the private key is not encrypted by JKS's scheme")
    salt, masked, check = protected[:_SHA1], protected[_SHA1:-_SHA1], protected[-_SHA1:]
    secret, mask, digest = _chars(password), bytearray(), salt
    while len(mask) < len(masked):
        digest = hashlib.sha1(secret + digest).digest()
        mask += digest
    key = bytes(a ^ b for a, b in zip(masked, mask, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), check):
        raise ValueError("the password of the private key is wrong")
    return key


class _Reader:
    """Reads what Java's DataOutputStream wrote."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def take(self, count: int) -> bytes:
        taken = self._stream.read(count)
        if len(taken) < count:
            raise ValueError("the file is damaged: it ends within an entry")
        return taken

    def number(self, size: int = 4) -> int:
        return int.from_bytes(self.take(size))

    def text(self) -> str:
        return self.take(self.number(2)).decode("utf-8", "replace")

    def certificate(self, version: int) -> bytes:
        if version == 2:
            self.text()  # the type, which is always X.509
        return self.take(self.number())


def _chars(password: str) -> bytes:
    """A char[] of Java, each char as two bytes."""
    return password.encode("utf-16-be")


def _parts(sequence: bytes) -> tuple[bytes, bytes]:
    """The contents of the two values in a DER sequence."""
    first, rest = _content(sequence)
    return first, _content(rest)[0]


def _content(der: bytes) -> tuple[bytes, bytes]:
    """The content of the first DER value, and what follows the value."""
    size, start = der[1] if len(der) > 1 else 0, 2
    if size > 0x7F:
        start += size & 0x7F
        size = int.from_bytes(der[2:start])
    if not size or len(der) < start + size:
        raise ValueError("the file is damaged: a private key has no DER in it")
    return der[start : start + size], der[start + size :]
