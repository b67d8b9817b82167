"""The stores that ssl.truststore.* and ssl.keystore.* name. Java makes JKS and PKCS12; OpenSSL reads PEM.

A file's content tells its format. So the type of a store need not be right, as in Java, whose keystore.type.compat
reads JKS as PKCS12 and the reverse.
"""

from __future__ import annotations

import base64
import ssl
from typing import TYPE_CHECKING, NamedTuple

from kafkabuf.errors import ConfigError
from kafkabuf.extras import install
from kafkabuf.network.tls import jks
from kafkabuf.process.producer_log import producer_log

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates
    from cryptography.x509 import Certificate

log = producer_log("kafkabuf.network")

_JCEKS = b"\xce\xce\xce\xce"
_DER_SEQUENCE = b"\x30"  # PKCS12 has no magic number


class Store(NamedTuple):
    """A file that the setting `name`.location names, and the passwords of it and of the private key in it."""

    name: str
    location: str
    password: str | None
    key_password: str | None = None

    def __str__(self) -> str:
        return f"{self.name}.location ({self.location})"

    def content(self) -> bytes | str:
        """The bytes of a JKS or PKCS12 file, or the text of any other, which has no password. Raises ConfigError."""
        try:
            with open(self.location, "rb") as file:
                content = file.read()
        except OSError as error:
            raise ConfigError(f"{self}: {error.strerror or error}") from None
        if content.startswith(_JCEKS):
            raise self.error("is a JCEKS store: convert it with keytool -importkeystore -deststoretype PKCS12")
        if content.startswith((jks.MAGIC, _DER_SEQUENCE)):
            return content
        if self.password is not None:
            hint = "; the password of a private key is ssl.key.password" if self.name == "ssl.keystore" else ""
            raise self.error(
                f"is no JKS or PKCS12 store, and PEM has no password: leave out {self.name}.password{hint}"
            )
        return content.decode(errors="replace")  # comments may have any encoding

    def error(self, text: str) -> ConfigError:
        return ConfigError(f"{self} {text}")


def trusted_certificates(store: Store) -> bytes | str:
    """All certificates of a JKS or PKCS12 file, in DER, or the text of a PEM file. Raises ConfigError.

    Of the certificates that belong to a private key Java trusts the first only.
    """
    content = store.content()
    if isinstance(content, str):
        return content
    if content.startswith(jks.MAGIC):
        entries = _jks(store, content)
        certificates = [*entries.trusted.values(), *(entry.chain[0] for entry in entries.keys.values() if entry.chain)]
    else:
        opened = _pkcs12(store, content, store.password)
        signers = _chain(opened)[1:]
        certificates = [] if opened.cert is None else [_der(opened.cert.certificate)]
        # An entry of its own has a name. A certificate that only completes the key's chain has no name.
        certificates += [
            _der(entry.certificate)
            for entry in opened.additional_certs
            if entry.friendly_name is not None or entry.certificate not in signers
        ]
    if not certificates:
        raise store.error("has no certificate: import the CA's with keytool -importcert")
    return b"".join(certificates)


def key_with_chain(store: Store) -> str | None:
    """The private key of a JKS or PKCS12 file and its certificates as PEM; None for a PEM file. Raises ConfigError."""
    content = store.content()
    if isinstance(content, str):
        return None
    key, chain = _from_jks(store, content) if content.startswith(jks.MAGIC) else _from_pkcs12(store, content)
    if not chain:
        raise store.error("has a private key without a certificate: import the certificate with keytool -importcert")
    encoded = base64.encodebytes(key).decode()
    pem = "".join(ssl.DER_cert_to_PEM_cert(certificate) for certificate in chain)
    return f"-----BEGIN PRIVATE KEY-----\n{encoded}-----END PRIVATE KEY-----\n{pem}"


def _from_jks(store: Store, content: bytes) -> tuple[bytes, list[bytes]]:
    keys = _jks(store, content).keys
    if not keys:
        raise _no_key(store)
    alias, entry = next(iter(keys.items()))
    if len(keys) > 1:
        log.warning("%s has the private keys %s: the client uses %r", store, ", ".join(map(repr, keys)), alias)
    # As in Java: the store's password is that of the key, too, unless the user gives both.
    password = store.password if store.key_password is None else store.key_password
    if password is None:
        raise store.error(f"is a JKS store: set {store.name}.password to its password")
    try:
        return jks.decrypt(entry.encrypted, password), entry.chain
    except ValueError as error:
        raise store.error(f"cannot be read: {error}; set ssl.key.password to the password of {alias!r}") from None


def _from_pkcs12(store: Store, content: bytes) -> tuple[bytes, list[bytes]]:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    opened = _pkcs12(store, content, store.key_password if store.password is None else store.password)
    if opened.key is None:
        raise _no_key(store)
    key = opened.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return key, [_der(certificate) for certificate in _chain(opened)]


def _no_key(store: Store) -> ConfigError:
    return store.error("has no private key: is it a trust store (ssl.truststore.location)?")


def _jks(store: Store, content: bytes) -> jks.Entries:
    try:
        return jks.read(content, store.password)
    except ValueError as error:
        raise store.error(f"cannot be read as JKS: {error}; see {store.name}.password") from None


def _pkcs12(store: Store, content: bytes, password: str | None) -> PKCS12KeyAndCertificates:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise store.error(f"is a PKCS12 store, which needs a package: {install('pkcs12')}") from None
    wrong = f"{store.name}.password is {'missing' if password is None else 'wrong'}, or the file is damaged"
    try:
        if password is not None and "\0" in password:  # the library would panic
            raise ValueError
        return pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except UnsupportedAlgorithm as error:
        raise store.error(f"cannot be read as PKCS12: {error}") from None
    except ValueError:
        raise store.error(f"cannot be read as PKCS12: {wrong}") from None


def _chain(opened: PKCS12KeyAndCertificates) -> list[Certificate]:
    """The certificate of the private key, and those of its CAs as far as the store has them."""
    chain = [] if opened.cert is None else [opened.cert.certificate]
    additional = [entry.certificate for entry in opened.additional_certs]
    while chain:
        signers = (ca for ca in additional if ca.subject == chain[-1].issuer and ca not in chain)
        signer = next(signers, None)
        if signer is None:
            break
        chain.append(signer)
    return chain


def _der(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)
