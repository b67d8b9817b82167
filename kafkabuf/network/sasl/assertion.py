"""Assertions (RFC 7521, RFC 7523): a JWT that the client signs, or finds in a file, in place of a secret.

The settings and their order of precedence are those of Kafka's `internals.secured.assertion`: the claims of the
settings, then the template's, then the times. Files are read for each assertion, so that a rotated key or JWT takes no
restart. Unlike Kafka 4.1, ES256 works (RFC 7518, 3.4), and so does every PEM format of the key.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import ConfigError, KafkaError, NetworkError
from kafkabuf.extras import install
from kafkabuf.network.tls import pem

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey


LARGEST_FILE = 1024 * 1024
_PREFIX = "sasl.oauthbearer.assertion"
_P256 = "secp256r1"
_SIZE_OF_P256 = 32  # bytes of one number


def source(config: ProducerConfig, clock: Clock) -> Callable[[], str] | None:
    """What makes an assertion for each request; None if the settings name neither a JWT's file nor a key's.

    It makes one to begin with: raises ConfigError for files that are not usable. Later it raises NetworkError for
    these, which is retriable: a file that is being replaced is whole again soon.
    """
    if config.sasl_oauthbearer_assertion_file is not None:
        make = jwt_file(f"{_PREFIX}.file", config.sasl_oauthbearer_assertion_file)
    elif config.sasl_oauthbearer_assertion_private_key_file is not None:
        make = _Signer(config, clock).sign
    else:
        return None
    make()
    return _retriable(make)


def jwt_file(name: str, path: str) -> Callable[[], str]:
    """What reads a JWT from a file. Raises ConfigError for a file without a JWT, and never shows the content."""

    def read() -> str:
        text = _content(name, path).decode(errors="replace").strip()
        parts = text.split(".")
        try:
            if len(parts) != 3 or not all(isinstance(json.loads(_decoded(part)), dict) for part in parts[:2]):
                raise ValueError
            _decoded(parts[2])
        except (ValueError, RecursionError):
            raise ConfigError(f"{name} ({path}) has no JWT: three parts in base64 with dots between them") from None
        return text

    return read


def retriable_jwt_file(name: str, path: str) -> Callable[[], str]:
    """The same, checked once; later it raises NetworkError for a file without a JWT."""
    read = jwt_file(name, path)
    read()
    return _retriable(read)


def _retriable(make: Callable[[], str]) -> Callable[[], str]:
    def again() -> str:
        try:
            return make()
        except KafkaError as error:
            raise NetworkError(str(error)) from None

    return again


class _Signer:
    """Signs an assertion with the private key of a file."""

    def __init__(self, config: ProducerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock

    def sign(self) -> str:
        config = self._config
        algorithm = config.sasl_oauthbearer_assertion_algorithm
        path = str(config.sasl_oauthbearer_assertion_private_key_file)
        template = self._template()
        header = template["header"] | {"alg": algorithm, "typ": "JWT"}
        payload = self._named_claims() | template["payload"] | self._times()
        content = f"{_encoded(_json(header))}.{_encoded(_json(payload))}"
        name = f"{_PREFIX}.private.key.file ({path})"
        signature = _signature(name, algorithm, self._key(path, name), content.encode())
        return f"{content}.{_encoded(signature)}"

    def _named_claims(self) -> dict[str, Any]:
        config = self._config
        claims = {
            "aud": config.sasl_oauthbearer_assertion_claim_aud,
            "iss": config.sasl_oauthbearer_assertion_claim_iss,
            "sub": config.sasl_oauthbearer_assertion_claim_sub,
        }
        return {claim: value for claim, value in claims.items() if value is not None}

    def _times(self) -> dict[str, Any]:
        config, now = self._config, self._clock.time_ms() // 1000
        times: dict[str, Any] = {
            "iat": now,
            "exp": now + config.sasl_oauthbearer_assertion_claim_exp_seconds,
            "nbf": now - config.sasl_oauthbearer_assertion_claim_nbf_seconds,
        }
        return times | ({"jti": str(uuid.uuid4())} if config.sasl_oauthbearer_assertion_claim_jti_include else {})

    def _template(self) -> dict[str, dict[str, Any]]:
        path = self._config.sasl_oauthbearer_assertion_template_file
        if path is None:
            return {"header": {}, "payload": {}}
        name = f"{_PREFIX}.template.file"
        try:
            members = json.loads(_content(name, path))
            template = {part: members.get(part, {}) for part in ("header", "payload")}
            if not all(isinstance(part, dict) for part in template.values()):
                raise ValueError
        except (ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f'{name} ({path}) must be JSON of the form {{"header": {{...}}, "payload": {{...}}}}'.replace("...", "")
            ) from None
        return template

    def _key(self, path: str, name: str) -> RSAPrivateKey | EllipticCurvePrivateKey:
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError:
            raise ConfigError(f"{name}: to sign needs a package: {install('oauth')}") from None
        secret = self._config.sasl_oauthbearer_assertion_private_key_passphrase
        content = _content(f"{_PREFIX}.private.key.file", path)
        try:
            key = pem.private_keys(content.decode(errors="replace"))[0].text
            # Java ignores a passphrase for a key that is not encrypted; the library refuses it.
            encrypted = "ENCRYPTED" in key
            password = secret.get_secret_value().encode() if secret is not None and encrypted else None
            return load_pem_private_key(key.encode(), password)  # type: ignore[return-value]
        except TypeError:
            raise ConfigError(f"{name} is encrypted: set {_PREFIX}.private.key.passphrase") from None
        except (ValueError, UnsupportedAlgorithm):
            wrong = f", or {_PREFIX}.private.key.passphrase is wrong" if secret is not None else ""
            raise ConfigError(f"{name} has no private key in PEM format{wrong}") from None


def _signature(name: str, algorithm: str, key: Any, content: bytes) -> bytes:
    """RS256 and ES256 of RFC 7518, 3.3 and 3.4."""
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    if algorithm == "RS256":
        if not isinstance(key, rsa.RSAPrivateKey):
            raise ConfigError(f"{name} has no RSA key, which {_PREFIX}.algorithm=RS256 needs")
        return key.sign(content, padding.PKCS1v15(), SHA256())
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != _P256:
        raise ConfigError(f"{name} has no key of the curve P-256, which {_PREFIX}.algorithm=ES256 needs")
    numbers = decode_dss_signature(key.sign(content, ec.ECDSA(SHA256())))
    return b"".join(number.to_bytes(_SIZE_OF_P256, "big") for number in numbers)


def _content(name: str, path: str) -> bytes:
    try:
        # A pipe or a device could block, or have no end.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ConfigError(f"{name} ({path}) is not a regular file")
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} ({path}): {getattr(error, 'strerror', None) or 'no such path'}") from None
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"{name} ({path}) has more than {LARGEST_FILE} bytes")
    return content


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
