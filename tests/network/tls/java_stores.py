"""Writes stores of type JKS, as sun.security.provider.JavaKeyStore and KeyProtector do."""

from __future__ import annotations

import hashlib


def jks_store(
    keys: dict[str, tuple[bytes, list[bytes]]],
    trusted: list[bytes],
    password: str,
    key_password: str | None = None,
) -> bytes:
    def sized(data: bytes, size: int = 4) -> bytes:
        return len(data).to_bytes(size) + data

    def certificate(der: bytes) -> bytes:
        return sized(b"X.509", 2) + sized(der)

    store = b"\xfe\xed\xfe\xed" + (2).to_bytes(4) + (len(keys) + len(trusted)).to_bytes(4)
    for alias, (pkcs8, chain) in keys.items():
        encrypted = encrypt(pkcs8, password if key_password is None else key_password)
        store += (1).to_bytes(4) + sized(alias.encode(), 2) + bytes(8) + sized(encrypted)
        store += len(chain).to_bytes(4) + b"".join(map(certificate, chain))
    for number, der in enumerate(trusted):
        store += (2).to_bytes(4) + sized(b"ca%d" % number, 2) + bytes(8) + certificate(der)
    return store + hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + store).digest()


def encrypt(pkcs8: bytes, password: str) -> bytes:
    secret, salt, stream = password.encode("utf-16-be"), b"s" * 20, b""
    link = salt
    while len(stream) < len(pkcs8):
        link = hashlib.sha1(secret + link).digest()
        stream += link
    hidden = salt + bytes(a ^ b for a, b in zip(pkcs8, stream, strict=False)) + hashlib.sha1(secret + pkcs8).digest()

    def der(tag: int, content: bytes) -> bytes:
        return bytes([tag, 0x82]) + len(content).to_bytes(2) + content

    return der(0x30, der(0x30, bytes.fromhex("060a2b060104012a021101010500")) + der(0x04, hidden))
