"""Where OAUTHBEARER's tokens come from: sasl.oauthbearer.jwt.retriever.class and the settings beside it choose.

The names are those of Kafka's `JwtRetriever` classes (KIP-1139). Client credentials go with a secret, or with an
assertion (KIP-1258, Kafka 4.3), which comes first where both are set.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kafkabuf.clock import Clock
from kafkabuf.config.java_names import DEFAULT_RETRIEVER, FILE_RETRIEVER, JWT_BEARER_RETRIEVER
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import ConfigError
from kafkabuf.network.http.request import basic
from kafkabuf.network.sasl import assertion
from kafkabuf.network.sasl.jaas import unsupported
from kafkabuf.network.sasl.token_endpoint import Grant, TokenEndpoint

if TYPE_CHECKING:
    pass

_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_URL = "sasl.oauthbearer.token.endpoint.url"
# The content of the trust store tells its type.
_JAAS_OPTIONS = {"clientId", "clientSecret", "scope"} | {
    f"ssl.truststore.{name}" for name in ("location", "password", "type")
}
_EXTENSION = "extension_"
_NEEDED = (
    f"{_URL} needs sasl.oauthbearer.client.credentials.client.id and .client.secret, or "
    "sasl.oauthbearer.assertion.file, or sasl.oauthbearer.assertion.private.key.file"
)


def check_options(options: Mapping[str, str]) -> None:
    """Raises ConfigError for a JAAS option other than clientId, clientSecret, scope, ssl.truststore.*, extension_*."""
    unknown = {name for name in options.keys() - _JAAS_OPTIONS if not name.startswith(_EXTENSION)}
    if unknown:
        raise unsupported(unknown, {*_JAAS_OPTIONS, "extension_NAME"})


def extensions_in(options: Mapping[str, str]) -> dict[str, str]:
    """The SASL extensions that JAAS options give, as in Java's OAuthBearerLoginCallbackHandler."""
    return {name.removeprefix(_EXTENSION): text for name, text in options.items() if name.startswith(_EXTENSION)}


def retriever(
    url: str, config: ProducerConfig, options: Mapping[str, str], clock: Clock, random: Callable[[], float]
) -> Callable[[], str | tuple[str, float | None]]:
    """What gets a token from the URL, and its expiry if the endpoint gives one. Raises ConfigError."""
    kind = config.sasl_oauthbearer_jwt_retriever_class
    is_file = url.lower().startswith("file:")
    if kind == FILE_RETRIEVER or (kind == DEFAULT_RETRIEVER and is_file):
        return assertion.retriable_jwt_file(_URL, _path(url))
    grant = _jwt_bearer(config, options, clock) if kind == JWT_BEARER_RETRIEVER else _client(config, options, clock)
    endpoint = TokenEndpoint(
        url,
        grant,
        config,
        trusted=options.get("ssl.truststore.location"),
        trusted_password=options.get("ssl.truststore.password"),
        clock=clock,
        random=random,
    )
    return endpoint.fetch


def _path(url: str) -> str:
    scheme, _, rest = url.partition(":")
    path = rest.removeprefix("//localhost").removeprefix("//")
    if scheme.lower() != "file" or not path.startswith("/"):
        raise ConfigError(
            f"{_URL} must be file:///path of a file with a JWT, because sasl.oauthbearer.jwt.retriever.class names "
            f"{FILE_RETRIEVER}"
        )
    return urllib.parse.unquote(path)


def _scope(config: ProducerConfig, options: Mapping[str, str]) -> dict[str, str]:
    scope = (config.sasl_oauthbearer_scope or options.get("scope") or "").strip()
    return {"scope": scope} if scope else {}


def _jwt_bearer(config: ProducerConfig, options: Mapping[str, str], clock: Clock) -> Grant:
    """The grant of RFC 7523, 2.1: the assertion itself stands for the authorization."""
    make, scope = assertion.source(config, clock), _scope(config, options)
    if make is None:
        raise ConfigError(
            "sasl.oauthbearer.jwt.retriever.class names JwtBearerJwtRetriever: set sasl.oauthbearer.assertion.file, or "
            "sasl.oauthbearer.assertion.private.key.file"
        )
    return lambda: ({"grant_type": _JWT_BEARER, "assertion": make(), **scope}, {})


def _client(config: ProducerConfig, options: Mapping[str, str], clock: Clock) -> Grant:
    """The grant of RFC 6749, 4.4; the client proves itself by an assertion (RFC 7523, 2.2), or by its secret."""
    client_id = config.sasl_oauthbearer_client_credentials_client_id or options.get("clientId")
    form = {"grant_type": "client_credentials", **_scope(config, options)}
    make = assertion.source(config, clock)
    if make is not None:
        named = form | ({"client_id": client_id} if client_id else {})
        return lambda: (named | {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": make()}, {})
    secret = config.sasl_oauthbearer_client_credentials_client_secret
    password = options.get("clientSecret") if secret is None else secret.get_secret_value()
    if not client_id or not password:
        raise ConfigError(_NEEDED)
    if config.sasl_oauthbearer_header_urlencode:
        client_id, password = urllib.parse.quote_plus(client_id), urllib.parse.quote_plus(password)
    headers = {"Authorization": basic(f"{client_id}:{password}")}
    return lambda: (form, headers)
