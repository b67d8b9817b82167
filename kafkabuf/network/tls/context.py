"""Makes an SSLContext from the ssl.* settings, and advice for the user from errors of OpenSSL."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn

from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import ConfigError, KafkaError, NetworkError, SslAuthenticationError, printable
from kafkabuf.network.tls import pem
from kafkabuf.network.tls.stores import Store, key_with_chain, trusted_certificates

if TYPE_CHECKING:
    from kafkabuf.config.secret import SecretStr

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
SUITES_OF_1_3 = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}


def client_context(config: ProducerConfig) -> ssl.SSLContext:
    """A context that checks the broker's certificate and, unless switched off, its name. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(config.ssl_endpoint_identification_algorithm)
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    wanted = [VERSIONS[name] for name in config.ssl_enabled_protocols]
    if not wanted:
        raise ConfigError("ssl.enabled.protocols is empty: give TLSv1.2, TLSv1.3 or both")
    context.minimum_version, context.maximum_version = min(wanted), max(wanted)
    certificates, password = _secret(config.ssl_truststore_certificates), _secret(config.ssl_truststore_password)
    trust(context, config.ssl_truststore_location, certificates, password)
    _load_key(context, config)
    if config.ssl_cipher_suites:
        _choose_suites(context, config.ssl_cipher_suites)
    return context


def trust(
    context: ssl.SSLContext, location: str | None, certificates: str | None = None, password: str | None = None
) -> None:
    """Trust the CAs of a store or of PEM text, or the system's CAs if both are None. Raises ConfigError."""
    if location is None and certificates is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    if location is not None and certificates is not None:
        raise ConfigError("ssl.truststore.location and ssl.truststore.certificates are both set: set only one of them")
    name = "ssl.truststore.certificates"
    trusted: bytes | str = certificates or ""
    if location is not None:
        store = Store("ssl.truststore", location, password)
        name, trusted = str(store), trusted_certificates(store)
    try:
        load_certificates(context, trusted)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: {_not_pem(error, location)}") from None
    # Every certificate in the store is trusted, as in Java: also that of a CA that another CA signed.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def load_certificates(context: ssl.SSLContext, content: bytes | str) -> None:
    """Load certificates in DER, or each certificate of PEM text. Raises OSError and ValueError."""
    if isinstance(content, bytes):
        context.load_verify_locations(cadata=content)
        return
    blocks = pem.certificates(content)
    text = "".join(block.text for block in blocks)
    if any(block.label == "TRUSTED CERTIFICATE" for block in blocks):  # OpenSSL reads this kind from files only
        with ExitStack() as opened:
            context.load_verify_locations(_in_memory("the trust store", text.encode(), opened))
    else:
        context.load_verify_locations(cadata=text)


def wrap(context: ssl.SSLContext, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, host: str) -> ssl.SSLObject:
    # A DNS name may end with a dot. Names in certificates and in SNI do not.
    return context.wrap_bio(incoming, outgoing, server_hostname=host.removesuffix("."))


def explain(error: Exception, peer: str, beginning: bool) -> KafkaError:
    """The error to fail the connection with. `beginning`: the peer has sent no application data yet."""
    text = f"TLS with {peer} failed: "
    if isinstance(error, ssl.SSLCertVerificationError):  # its text quotes the name that metadata gave
        return SslAuthenticationError(
            f"{text}{printable(error.verify_message).rstrip('.')}; {_advice_on_certificate(error)}"
        )
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return hung_up(peer, "the peer closed it")
    if not isinstance(error, ssl.SSLError):
        return NetworkError(f"{text}{type(error).__name__}: {error}")
    reason = error.reason or str(error)
    if not beginning:
        return NetworkError(f"{text}{reason}")
    return SslAuthenticationError(f"{text}{reason}; {_advice_on_handshake(reason)}")


def hung_up(peer: str, reason: str) -> NetworkError:
    """The error of a peer that closes during the handshake. It is retriable: the broker may be restarting."""
    return NetworkError(
        f"{peer} ended the connection during the TLS handshake ({reason}); does this listener speak TLS (see "
        "security.protocol), and does it want a client certificate (ssl.keystore.location)?"
    )


def _advice_on_certificate(error: ssl.SSLCertVerificationError) -> str:
    match error.verify_code:
        case 62 | 64:  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH
            return (
                "give the broker a certificate with this name among its subjectAltNames, connect under a name in the "
                "certificate, or set ssl.endpoint.identification.algorithm to an empty string to check no name"
            )
        case 9 | 10:  # X509_V_ERR_CERT_NOT_YET_VALID, _CERT_HAS_EXPIRED
            return "renew the certificate of the broker or of its CA, and check this machine's clock"
        case _:
            return "name the CA that signed the broker's certificate in ssl.truststore.location"


def _advice_on_handshake(reason: str) -> str:
    if "WRONG_VERSION_NUMBER" in reason or "UNEXPECTED_MESSAGE" in reason or "PACKET_LENGTH" in reason:
        return "this listener does not seem to speak TLS: check the port, and security.protocol"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "ACCESS_DENIED" in reason):
        return "the broker wants a client certificate that it trusts: see ssl.keystore.location"
    if "VERSION" in reason or "PROTOCOL" in reason:
        return "client and broker share no version of TLS: see ssl.enabled.protocols"
    if "HANDSHAKE_FAILURE" in reason or "CIPHER" in reason:
        return "no common cipher suite (ssl.cipher.suites), or the broker wants a certificate (ssl.keystore.location)"
    return "check security.protocol, the port, and the ssl settings on both sides"


def _load_key(context: ssl.SSLContext, config: ProducerConfig) -> None:
    location, key, chain = config.ssl_keystore_location, config.ssl_keystore_key, config.ssl_keystore_certificate_chain
    if location is not None and (key is not None or chain is not None):
        raise ConfigError("ssl.keystore.location and the key as text are both set: set only one of them")
    if location is not None:
        passwords = _secret(config.ssl_keystore_password), _secret(config.ssl_key_password)
        store = Store("ssl.keystore", location, *passwords)
        text = key_with_chain(store)
        if text is None:
            _load_chain(context, str(store), location, location, config)
        else:
            _load_text(context, str(store), text, config)
    elif key is not None and chain is not None:
        text = _text_of("ssl.keystore.key", key, pem.private_keys)
        text += _text_of("ssl.keystore.certificate.chain", chain, pem.certificates)
        _load_text(context, "ssl.keystore.key with ssl.keystore.certificate.chain", text, config)
    elif key is not None or chain is not None:
        raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain: both are needed, or neither")


def _text_of(name: str, value: SecretStr, wanted: Callable[[str], list[pem.Block]]) -> str:
    """The blocks of one kind in a setting. Other text beside them may be the rest of a file with key and chain."""
    try:
        return "".join(block.text for block in wanted(value.get_secret_value()))
    except ValueError as error:
        raise ConfigError(f"{name}: {_not_pem(error, None)}") from None


def _load_text(context: ssl.SSLContext, name: str, text: str, config: ProducerConfig) -> None:
    # OpenSSL reads keys from files only. These files are in memory: a secret must not touch the disk. There are two,
    # because a pipe can be read once.
    with ExitStack() as opened:
        chain, key = [_in_memory(name, text.encode(), opened) for _ in range(2)]
        _load_chain(context, name, chain, key, config)


def _in_memory(name: str, data: bytes, opened: ExitStack) -> str:
    """The path of a file of these bytes, which exists until `opened` is closed: only Linux has more than pipes."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("kafkabuf-keystore")
        opened.callback(os.close, handle)
        os.write(handle, data)
        return f"/proc/self/fd/{handle}"
    handle, into = os.pipe()
    opened.callback(os.close, handle)
    try:
        os.set_blocking(into, False)  # the reader is this thread, later
        if os.write(into, data) == len(data):
            return f"/dev/fd/{handle}"
    finally:
        os.close(into)
    raise ConfigError(
        f"{name}: {len(data)} bytes of keys and certificates are more than a pipe of this system holds: write them to "
        "a PEM file, and name the file in ssl.keystore.location"
    )


def _load_chain(context: ssl.SSLContext, name: str, chain: str, key: str, config: ProducerConfig) -> None:
    try:
        context.load_cert_chain(chain, key, password=_password(config, name))
    except (OSError, ValueError) as error:
        text = f"{name}: {_not_pem(error, chain)}; it must hold a private key and its certificates"
        raise ConfigError(f"{text}, and ssl.key.password must match if the key is encrypted") from None


def _password(config: ProducerConfig, name: str) -> Callable[[], str]:
    """The callback that OpenSSL calls for an encrypted key. Without a callback OpenSSL would ask at the terminal."""

    def missing() -> NoReturn:
        raise ConfigError(f"{name}: the private key is encrypted; set ssl.key.password to its password")

    secret = config.ssl_key_password
    return missing if secret is None else secret.get_secret_value


def _not_pem(error: Exception, location: str | None) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    formats = "PEM" if location is None or location.startswith(("/proc/", "/dev/fd/")) else "PEM, JKS or PKCS12"
    return f"not readable as {formats} ({getattr(error, 'reason', None) or error})"


def _choose_suites(context: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    of_1_3 = SUITES_OF_1_3.intersection(suites)
    older = [_openssl_name(suite) for suite in suites if suite not in SUITES_OF_1_3]
    if of_1_3 and of_1_3 != SUITES_OF_1_3:
        all_of_1_3 = ", ".join(sorted(SUITES_OF_1_3))
        raise ConfigError(f"ssl.cipher.suites: Python's ssl takes the suites of TLS 1.3 only together: {all_of_1_3}")
    if not of_1_3:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version:
        raise ConfigError("ssl.cipher.suites has no suite for the versions of TLS in ssl.enabled.protocols")
    for suite in older:
        try:
            context.set_ciphers(suite)
        except ssl.SSLError:
            raise ConfigError(f"ssl.cipher.suites: OpenSSL has no suite {suite}") from None
    if older:
        context.set_ciphers(":".join(older))


def _openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite: Java's TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    if not suite.startswith("TLS_"):
        return suite
    name = suite.removeprefix("TLS_").removesuffix("_POLY1305_SHA256")
    name += "_POLY1305" if suite.endswith("_POLY1305_SHA256") else ""
    name = name.removeprefix("RSA_WITH_").replace("_WITH_", "_").replace("_CBC_", "_")
    return name.replace("AES_", "AES").replace("_", "-")


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
