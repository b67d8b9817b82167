"""Settings that only Java's producer has a use for. kafkabuf accepts Java's default and refuses every other value.

kafkabuf never ignores a setting silently: a user who asks for a guarantee must not lose it unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafkabuf.config.kinds import dotted

# Prefixes of the fields that kafkabuf does not implement yet. The change that implements a field removes its prefix.
NOT_YET = ("transaction_two_phase_commit_enable",)


class Refusal(NamedTuple):
    """A setting that only Java's producer has a use for: its type and default there, and why kafkabuf refuses it."""

    type: str
    default: Any
    reason: str


_JAVA_CLASS = "it names a Java class, which cannot run here"
_LOGIN = f"{_JAVA_CLASS}: give sasl.username and sasl.password, or sasl.oauthbearer.token.provider"
_SECURITY_API = "it chooses an implementation in Java's security API, and kafkabuf always uses OpenSSL"
_BROKER_CHECKS = "brokers check tokens, and a client sends its token as it is"
_OAUTH_CLASSES = "org.apache.kafka.common.security.oauthbearer"

JAVA_ONLY = {
    "bootstrap.resolve.timeout.ms": Refusal(
        "long", 0, "kafkabuf looks names up again at each attempt to connect, for as long as records may wait"
    ),
    "config.providers": Refusal("list", "", "kafkabuf expands nothing in a value: read it, and give the value itself"),
    "sasl.login.class": Refusal("class", None, _LOGIN),
    "sasl.oauthbearer.allow.unverified.audience": Refusal("boolean", False, _BROKER_CHECKS),
    "sasl.oauthbearer.allow.unverified.issuer": Refusal("boolean", False, _BROKER_CHECKS),
    "sasl.oauthbearer.clock.skew.seconds": Refusal("int", 30, _BROKER_CHECKS),
    "sasl.oauthbearer.expected.audience": Refusal("list", None, _BROKER_CHECKS),
    "sasl.oauthbearer.expected.issuer": Refusal("string", None, _BROKER_CHECKS),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": Refusal("long", 3600000, _BROKER_CHECKS),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": Refusal("long", 10000, _BROKER_CHECKS),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": Refusal("long", 100, _BROKER_CHECKS),
    "sasl.oauthbearer.jwks.endpoint.url": Refusal("string", None, _BROKER_CHECKS),
    "sasl.oauthbearer.jwt.validator.class": Refusal("class", f"{_OAUTH_CLASSES}.DefaultJwtValidator", _BROKER_CHECKS),
    "sasl.oauthbearer.scope.claim.name": Refusal("string", "scope", _BROKER_CHECKS),
    "sasl.oauthbearer.sub.claim.name": Refusal("string", "sub", _BROKER_CHECKS),
    "security.providers": Refusal("string", None, _SECURITY_API),
    "ssl.engine.factory.class": Refusal("class", None, f"{_JAVA_CLASS}: use the other ssl.* settings"),
    "ssl.keymanager.algorithm": Refusal("string", "SunX509", _SECURITY_API),
    "ssl.protocol": Refusal("string", "TLSv1.3", "only ssl.enabled.protocols chooses the TLS versions"),
    "ssl.provider": Refusal("string", None, _SECURITY_API),
    "ssl.secure.random.implementation": Refusal("string", None, _SECURITY_API),
    "ssl.trustmanager.algorithm": Refusal("string", "PKIX", _SECURITY_API),
}


def refused(name: str, value: object) -> str | None:
    """Why a setting of JAVA_ONLY cannot have this value. None for Java's default, which changes nothing."""
    setting = JAVA_ONLY[name]
    if value is None or value == "" or _same(value, setting.default):
        return None
    allowed = "leave it out" if setting.default is None else f"leave it out, or set it to {setting.default}"
    # The value may have a password in it, as a URL may.
    return f"{name}: {setting.reason}; {allowed}"


def _same(value: object, default: object) -> bool:
    if isinstance(default, bool):
        return str(value).strip().lower() == str(default).lower()
    if isinstance(default, int | float) and isinstance(value, str):
        try:
            return float(value) == default
        except ValueError:
            return False
    return value == default


def not_yet(given: Mapping[str, object], defaults: Mapping[str, object]) -> str | None:
    """An error text for the first given field that kafkabuf does not implement yet; None if there is no such field."""
    for field, value in given.items():
        if field.startswith(NOT_YET) and value != defaults[field]:
            name = dotted(field)
            return f"{name} is a setting of Kafka's producer that kafkabuf does not support yet: leave it out"
    return None
