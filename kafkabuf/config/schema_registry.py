"""The settings of a Schema Registry's client and of serializers, under the names of Confluent's clients.

They are here, and not beside the client, because a producer has them too, under `schema.registry.` names. What they do
together is checked by kafkabuf/formats/registry/settings.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from kafkabuf.config.kinds import (
    INT32_MAX,
    Setting,
    choice,
    dotted,
    flag,
    has_surrogate,
    integer,
    path,
    secret,
    special,
    split,
    text,
    url,
)
from kafkabuf.config.secret import SecretStr

PREFIX = "schema_registry_"
FRAMINGS = ("prefix", "header")

SubjectNameStrategy = str | Callable[[str, str, str | None], str]

_JAVA_PACKAGE = "io.confluent.kafka.serializers.subject."
_JAVA_CLASSES = {
    "TopicNameStrategy": "topic",
    "RecordNameStrategy": "record",
    "TopicRecordNameStrategy": "topic_record",
}
STRATEGIES = tuple(_JAVA_CLASSES.values())


def parse_strategy(value: object) -> SubjectNameStrategy:
    """A strategy from a callable, a name in any case, or the name of Java's class. Raises ValueError."""
    if callable(value):
        return value
    if isinstance(value, str):
        name = value.strip().removeprefix(_JAVA_PACKAGE)
        strategy = _JAVA_CLASSES.get(name, name.lower().replace("-", "_"))
        if strategy in STRATEGIES:
            return strategy
    raise ValueError(f"expected {', '.join(STRATEGIES)}, or a callable of topic, field and record name")


class Address(NamedTuple):
    """A URL without its user. `user` is `name:password` of the URL, decoded."""

    scheme: str
    host: str
    port: int
    path: str
    user: SecretStr | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    def __repr__(self) -> str:
        return f"Address({self})"


def parse_url(url: str, *schemes: str) -> Address:
    """A URL in parts. Raises ValueError, whose text does not show the URL: it may contain a password."""
    from urllib.parse import unquote, urlsplit  # late: most producers have no registry

    try:
        parts = None if has_surrogate(url) else urlsplit(url)
        port = None if parts is None else parts.port
    except ValueError:
        parts = None
    if parts is None:  # outside the except: the error above shows the URL, and must not be the context
        raise ValueError("a URL cannot be read: check its host and port")
    if parts.scheme not in schemes or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"expected {' or '.join(f'{each}://host:port/path' for each in schemes)}, without a query")
    if not (parts.hostname + parts.path).isprintable() or " " in parts.hostname + parts.path:
        raise ValueError("a URL has a blank or a control character in its host or path")
    user = None if parts.username is None else SecretStr(f"{unquote(parts.username)}:{unquote(parts.password or '')}")
    default = 443 if parts.scheme == "https" else 80
    return Address(parts.scheme, parts.hostname, port or default, parts.path.rstrip("/"), user)


def _urls(value: Any) -> tuple[Address, ...]:
    entries = split(value)
    if isinstance(entries, Address) or not isinstance(entries, list | tuple) or not entries:
        raise ValueError("expected URLs between commas, or a list of them")
    return tuple(_address(each, "http", "https") for each in entries)


def _address(value: Any, *schemes: str) -> Address:
    if isinstance(value, Address):  # checked before
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected {' or '.join(f'{each}://host:port' for each in schemes)}")
    return parse_url(value.strip(), *schemes)


def _proxy(value: Any) -> Address | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    return _address(value, "http")


def _auto_register(value: Any) -> bool | None:
    checked: bool | None = None if value is None else flag(True, "").check(value)
    return checked


def _schema_id(value: Any) -> int | None:
    checked: int = integer(-1, "", low=-1, high=INT32_MAX).check(-1 if value is None else value)
    return None if checked == -1 else checked


class SchemaRegistryFields:
    """Every setting of a registry's client."""

    schema_registry_url: tuple[Address, ...] = special(
        _urls, None, "URLs of the registry, between commas; http or https.", "list", shown=False
    )

    basic_auth_credentials_source: str | None = special(
        lambda value: None if value is None else choice("", "", "URL", "USER_INFO", fold=str.upper).check(value),
        None,
        "Where user and password come from: URL, or USER_INFO for basic.auth.user.info. Without it, USER_INFO if "
        "basic.auth.user.info is set, else URL.",
        "string",
        "URL, USER_INFO",
    )
    basic_auth_user_info: SecretStr | None = secret("user:password.")

    bearer_auth_credentials_source: str | None = special(
        lambda value: (
            None if value is None else choice("", "", "STATIC_TOKEN", "OAUTHBEARER", fold=str.upper).check(value)
        ),
        None,
        "Where a bearer token comes from: STATIC_TOKEN for bearer.auth.token, OAUTHBEARER for an endpoint. Without "
        "it, STATIC_TOKEN if bearer.auth.token is set.",
        "string",
        "STATIC_TOKEN, OAUTHBEARER",
    )
    bearer_auth_token: SecretStr | None = secret("The token.")
    bearer_auth_issuer_endpoint_url: str | None = url("URL (https) from which to request tokens.")
    bearer_auth_client_id: str | None = text(None, "Client id at the token endpoint.")
    bearer_auth_client_secret: SecretStr | None = secret("Client secret at the token endpoint.")
    bearer_auth_scope: str | None = text(None, "Scope of the requested token.")
    bearer_auth_logical_cluster: str | None = text(None, "Logical cluster of the registry (Confluent Cloud).")
    bearer_auth_identity_pool_id: str | None = text(None, "Identity pool (Confluent Cloud).")

    ssl_ca_location: str | None = path("PEM file, or folder, of trusted CAs. Without it, the system's CAs.")
    ssl_certificate_location: str | None = path("PEM file of the client's certificates, perhaps with its key.")
    ssl_key_location: str | None = path("PEM file of the client's private key.")
    ssl_key_password: SecretStr | None = secret("Password of the private key, if it is encrypted.")

    proxy: Address | None = special(
        _proxy, None, "http://host:port of a proxy. Without it, the proxy of the environment.", "string", shown=False
    )
    http_connect_timeout_ms: int = integer(60_000, "Time-out of one connection.", low=1)
    http_read_timeout_ms: int = integer(60_000, "Time-out of one read.", low=1)
    max_retries: int = integer(3, "Retries of a request, each at all URLs.")
    retries_wait_ms: int = integer(1000, "Pause before the first retry; it doubles with each failure.")
    retries_max_wait_ms: int = integer(20_000, "Longest pause.")
    cache_capacity: int = integer(1000, "Responses that are remembered.", low=1)
    latest_cache_ttl_sec: int = integer(
        300, "Seconds for which a latest version or a registration is remembered; -1: for ever.", low=-1
    )

    auto_register_schemas: bool | None = special(
        _auto_register,
        None,
        "Register a schema that the subject does not have. Without it, true unless use.latest.version or "
        "use.schema.id is set.",
        "boolean",
        "true, false",
    )
    use_latest_version: bool = flag(False, "Write with the subject's latest schema.")
    use_schema_id: int | None = special(_schema_id, None, "Write with the schema of this id; -1 for none.", "int")
    normalize_schemas: bool = flag(False, "The registry compares schemas in their normal form.")
    latest_compatibility_strict: bool = flag(
        True, "With use.latest.version, refuse a schema whose values the latest schema cannot read."
    )
    id_compatibility_strict: bool = flag(
        True, "With use.schema.id, refuse a schema whose values the schema of the id cannot read."
    )
    schema_id_framing: str = choice(
        "prefix", "Where the id is written: in front of the value, or as a guid in a header.", *FRAMINGS, fold=str.lower
    )
    subject_name_strategy: SubjectNameStrategy = special(
        parse_strategy, "topic", "How a subject is named.", "object", ", ".join(STRATEGIES)
    )
    key_subject_name_strategy: SubjectNameStrategy | None = special(
        lambda value: None if value is None else parse_strategy(value), None, "The same for keys alone."
    )
    value_subject_name_strategy: SubjectNameStrategy | None = special(
        lambda value: None if value is None else parse_strategy(value), None, "The same for values alone."
    )


FIELDS: dict[str, Setting] = {
    name: setting for name, setting in vars(SchemaRegistryFields).items() if isinstance(setting, Setting)
}


def producer_field(name: str) -> str:
    """The name of a producer's setting for one of FIELDS."""
    return name if name.startswith(PREFIX) else PREFIX + name


def producer_fields() -> dict[str, Setting]:
    """The settings of a producer, whose descriptions have the producer's names."""
    dotted_names = {dotted(name): dotted(producer_field(name)) for name in FIELDS if "_" in name}
    known = re.compile("|".join(sorted(map(re.escape, dotted_names), key=len, reverse=True)))
    return {
        producer_field(name): setting._replace(
            description=known.sub(lambda match: dotted_names[match[0]], setting.description)
        )
        for name, setting in FIELDS.items()
    }
