"""Settings of Java's producer that have no use here: taken where they say what they would say anyway, else refused.

Not one is ignored in silence: who sets a guarantee must not lose it unawares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafkabuf.config.values import dotted

# Beginnings of fields of the model whose code is not there yet. Whoever writes it takes the name out.
NOT_YET = ("transaction_two_phase_commit_enable",)


class Refusal(NamedTuple):
    """A setting that only Java's producer has a use for."""

    type: str
    default: Any
    reason: str


_KERBEROS = "Kerberos (GSSAPI) is not supported: use PLAIN, SCRAM or OAUTHBEARER, or TLS client certificates"
_JAVA_CLASS = "it names a Java class, which cannot run here"
_LOGIN = f"{_JAVA_CLASS}: give sasl.username and sasl.password, or sasl.oauthbearer.token.provider"
_SECURITY_API = "it chooses among implementations in Java's security API: here it is always OpenSSL"
_BROKER_CHECKS = "tokens are checked by brokers; a client hands its own on as it is"
_PEM_STORE = "stores are PEM, which have no password of their own: ssl.key.password is that of the private key"
_ASSERTION = (
    "tokens are not asked for with assertions: use sasl.oauthbearer.client.credentials.*, or give a callable as "
    "sasl.oauthbearer.token.provider"
)
_OAUTH_CLASSES = "org.apache.kafka.common.security.oauthbearer"

JAVA_ONLY = {
    "sasl.client.callback.handler.class": Refusal("class", None, _LOGIN),
    "sasl.login.callback.handler.class": Refusal("class", None, _LOGIN),
    "sasl.login.class": Refusal("class", None, _LOGIN),
    "sasl.kerberos.kinit.cmd": Refusal("string", "/usr/bin/kinit", _KERBEROS),
    "sasl.kerberos.min.time.before.relogin": Refusal("long", 60000, _KERBEROS),
    "sasl.kerberos.service.name": Refusal("string", None, _KERBEROS),
    "sasl.kerberos.ticket.renew.jitter": Refusal("double", 0.05, _KERBEROS),
    "sasl.kerberos.ticket.renew.window.factor": Refusal("double", 0.8, _KERBEROS),
    "sasl.oauthbearer.assertion.algorithm": Refusal("string", "RS256", _ASSERTION),
    "sasl.oauthbearer.assertion.claim.aud": Refusal("string", None, _ASSERTION),
    "sasl.oauthbearer.assertion.claim.exp.seconds": Refusal("int", 300, _ASSERTION),
    "sasl.oauthbearer.assertion.claim.iss": Refusal("string", None, _ASSERTION),
    "sasl.oauthbearer.assertion.claim.jti.include": Refusal("boolean", False, _ASSERTION),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": Refusal("int", 60, _ASSERTION),
    "sasl.oauthbearer.assertion.claim.sub": Refusal("string", None, _ASSERTION),
    "sasl.oauthbearer.assertion.file": Refusal("string", None, _ASSERTION),
    "sasl.oauthbearer.assertion.private.key.file": Refusal("string", None, _ASSERTION),
    "sasl.oauthbearer.assertion.private.key.passphrase": Refusal("password", None, _ASSERTION),
    "sasl.oauthbearer.assertion.template.file": Refusal("string", None, _ASSERTION),
    "sasl.oauthbearer.clock.skew.seconds": Refusal("int", 30, _BROKER_CHECKS),
    "sasl.oauthbearer.expected.audience": Refusal("list", None, _BROKER_CHECKS),
    "sasl.oauthbearer.expected.issuer": Refusal("string", None, _BROKER_CHECKS),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": Refusal("long", 3600000, _BROKER_CHECKS),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": Refusal("long", 10000, _BROKER_CHECKS),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": Refusal("long", 100, _BROKER_CHECKS),
    "sasl.oauthbearer.jwks.endpoint.url": Refusal("string", None, _BROKER_CHECKS),
    "sasl.oauthbearer.jwt.retriever.class": Refusal("class", f"{_OAUTH_CLASSES}.DefaultJwtRetriever", _LOGIN),
    "sasl.oauthbearer.jwt.validator.class": Refusal("class", f"{_OAUTH_CLASSES}.DefaultJwtValidator", _BROKER_CHECKS),
    "sasl.oauthbearer.scope.claim.name": Refusal("string", "scope", _BROKER_CHECKS),
    "sasl.oauthbearer.sub.claim.name": Refusal("string", "sub", _BROKER_CHECKS),
    "security.providers": Refusal("string", None, _SECURITY_API),
    "ssl.engine.factory.class": Refusal("class", None, f"{_JAVA_CLASS}: the other ssl.* settings say all that can be"),
    "ssl.keymanager.algorithm": Refusal("string", "SunX509", _SECURITY_API),
    "ssl.keystore.password": Refusal("password", None, _PEM_STORE),
    "ssl.protocol": Refusal("string", "TLSv1.3", "ssl.enabled.protocols alone chooses the versions of TLS"),
    "ssl.provider": Refusal("string", None, _SECURITY_API),
    "ssl.secure.random.implementation": Refusal("string", None, _SECURITY_API),
    "ssl.trustmanager.algorithm": Refusal("string", "PKIX", _SECURITY_API),
    "ssl.truststore.password": Refusal("password", None, _PEM_STORE),
}


def refused(name: str, value: object) -> str | None:
    """Why a setting of JAVA_ONLY cannot have this value; None where it is Java's default, which changes nothing."""
    known = JAVA_ONLY[name]
    if value is None or value == "" or _same(value, known.default):
        return None
    found = "" if known.type == "password" else f", found {value!r}"
    allowed = "leave it out" if known.default is None else f"leave it out, or at {known.default}"
    return f"{name}: {known.reason}; {allowed}{found}"


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
    """The first of the given fields that asks for something which is not there yet, and a sentence on it."""
    for field, value in given.items():
        if field.startswith(NOT_YET) and value != defaults[field]:
            name = dotted(field)
            return f"{name} is a setting of Kafka's producer that this version of kafkabuf does not support yet"
    return None
