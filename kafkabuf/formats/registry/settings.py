"""The settings of a registry's client and of serializers, under the names of Confluent's Java and Python clients.

All of Confluent's names work with and without the prefix `schema.registry.`, and in Python's spelling.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import quote

from kafkabuf.config.kinds import Setting, dotted
from kafkabuf.config.schema_registry import (
    FIELDS,
    PREFIX,
    Address,
    SchemaRegistryFields,
    SubjectNameStrategy,
    parse_url,
)
from kafkabuf.config.secret import SecretStr
from kafkabuf.errors import ConfigError, printable
from kafkabuf.network.http import proxy as http_proxy
from kafkabuf.shown import shown

_ALIASES = {
    "url": "schema_registry_url",
    "cache_latest_ttl_sec": "latest_cache_ttl_sec",
    "subject_name_strategy_type": "subject_name_strategy",
}
_ADVICE = {
    "timeout": "set http.read.timeout.ms, in milliseconds",
    "ssl_truststore_location": "set ssl.ca.location to a PEM file",
    "ssl_keystore_location": "set ssl.certificate.location and ssl.key.location to PEM files",
    "proxy_host": "set proxy to http://host:port",
    "proxy_port": "set proxy to http://host:port",
    "use_latest_with_metadata": "kafkabuf has use.latest.version and use.schema.id",
    "schema_id_serializer": "set schema.id.framing to prefix or header",
}
HIDDEN = "**********"
_ANY = "surrogatepass"  # a variable of the environment may have any bytes
TOKEN = re.compile(r"[!-~]+")  # what a header may have; an error of the HTTP library would show any other token


class RegistrySettings(SchemaRegistryFields):
    """All settings, frozen. Raises a ConfigError that names each wrong setting. A pickle contains the secrets."""

    fields: ClassVar[Mapping[str, Setting]] = FIELDS

    def __init__(self, settings: Mapping[str, Any]) -> None:
        given = _by_field(settings)
        values = {name: setting.default for name, setting in self.fields.items()}
        problems: list[str] = []
        for name, value in given.items():
            try:
                values[name] = self.fields[name].check(value)
            except ValueError as error:
                problems.append(_explain(name, error, value))
        if values["schema_registry_url"] is None and not problems:
            problems.append("schema.registry.url is missing: give at least one URL of the registry")
        if problems:
            raise ConfigError("; ".join(problems))
        self.__dict__.update(values)
        _check_credentials(self)
        check_choice(self.auto_register_schemas, self.use_latest_version, self.use_schema_id)

    def strategy(self, field: str) -> SubjectNameStrategy:
        """The subject name strategy of "key" or "value"."""
        own = self.key_subject_name_strategy if field == "key" else self.value_subject_name_strategy
        return self.subject_name_strategy if own is None else own

    def user(self, address: Address) -> SecretStr | None:
        """`user:password` for basic authentication at one of the URLs."""
        return self.basic_auth_user_info if self.basic_auth_user_info is not None else address.user

    def struck(self, text: str) -> str:
        """Text that came from elsewhere, without any secret of the settings and of the environment's proxies."""
        for hidden in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(hidden, HIDDEN)
        return text

    def _secrets(self) -> set[str]:
        """Every secret, and the forms in which a server has seen it or an error shows it."""
        addresses = [address for address in (*self.schema_registry_url, self.proxy) if address is not None]
        users = [user.get_secret_value() for user in (self.basic_auth_user_info, *(a.user for a in addresses)) if user]
        users += http_proxy.users_of_environment()
        passwords = [user.partition(":")[2] for user in users]
        settings = self.bearer_auth_token, self.bearer_auth_client_secret, self.ssl_key_password
        own = [each.get_secret_value() for each in settings if each]
        if self.bearer_auth_client_secret is not None:
            users.append(f"{self.bearer_auth_client_id}:{self.bearer_auth_client_secret.get_secret_value()}")
        encoded = [base64.b64encode(user.encode(errors=_ANY)).decode() for user in users]
        secrets = [*users, *passwords, *own]
        shown = [
            form for each in secrets for form in (printable(each), quote(each, safe="", errors=_ANY), repr(each)[1:-1])
        ]
        return {*secrets, *encoded, *shown} - {""}

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(f"{name}: settings of a registry are frozen: make others")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RegistrySettings) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        return f"RegistrySettings({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


def check_choice(auto_register: bool | None, use_latest_version: bool, use_schema_id: int | None) -> None:
    """Raise ConfigError where two settings name different schemas to write with."""
    if use_latest_version and use_schema_id is not None:
        raise ConfigError("use.latest.version and use.schema.id are both set: set only one of them")
    if auto_register and (use_latest_version or use_schema_id is not None):
        name = "use.latest.version" if use_latest_version else "use.schema.id"
        raise ConfigError(f"auto.register.schemas and {name} are both set: set auto.register.schemas to false")


def _by_field(settings: Mapping[str, Any]) -> dict[str, Any]:
    by_field: dict[str, Any] = {}
    for name, value in settings.items():
        field = str(name).replace(".", "_")
        if field not in RegistrySettings.fields:
            field = field.removeprefix(PREFIX)
        field = _ALIASES.get(field, field)
        if field not in RegistrySettings.fields:
            raise ConfigError(_unknown(str(name), field))
        if value is None:
            continue
        if field in by_field:
            raise ConfigError(f"{dotted(field)} is given twice: leave one of the two out")
        by_field[field] = value
    return by_field


def _unknown(name: str, field: str) -> str:
    if field in _ADVICE:
        return f"there is no setting {name!r} of a Schema Registry here: {_ADVICE[field]}"
    import difflib  # late: only an error needs it

    near = difflib.get_close_matches(dotted(field), map(dotted, RegistrySettings.fields), n=1)
    return f"there is no setting {name!r} of a Schema Registry{f'; did you mean {near[0]}?' if near else ''}"


def _explain(name: str, error: ValueError, value: object) -> str:
    value_shown = f", found {shown(value)}" if RegistrySettings.fields[name].shown else ""
    return f"{dotted(name)}: {error}{value_shown}"


def _check_credentials(settings: RegistrySettings) -> None:
    user, source = settings.basic_auth_user_info, settings.basic_auth_credentials_source
    if source == "USER_INFO" and user is None:
        raise ConfigError("basic.auth.credentials.source is USER_INFO: set basic.auth.user.info to user:password")
    if user is not None and (source == "URL" or any(address.user for address in settings.schema_registry_url)):
        raise ConfigError("basic.auth.user.info and schema.registry.url both give a user: remove one of them")
    if user is not None and ":" not in user.get_secret_value():
        raise ConfigError("basic.auth.user.info must be user:password")
    _check_bearer(settings)
    if settings.ssl_certificate_location is None and (settings.ssl_key_location or settings.ssl_key_password):
        raise ConfigError("ssl.key.location and ssl.key.password need ssl.certificate.location")


def _check_bearer(settings: RegistrySettings) -> None:
    source = settings.bearer_auth_credentials_source
    if source is None:
        source = "STATIC_TOKEN" if settings.bearer_auth_token is not None else None
        settings.__dict__["bearer_auth_credentials_source"] = source
    needed = {
        None: (),
        "STATIC_TOKEN": ("bearer_auth_token",),
        "OAUTHBEARER": ("bearer_auth_issuer_endpoint_url", "bearer_auth_client_id", "bearer_auth_client_secret"),
    }[source]
    missing = [dotted(name) for name in needed if getattr(settings, name) is None]
    if missing:
        raise ConfigError(f"bearer.auth.credentials.source is {source}: set {' and '.join(missing)}")
    token = settings.bearer_auth_token
    if token is not None and TOKEN.fullmatch(token.get_secret_value()) is None:
        raise ConfigError("bearer.auth.token must be printable ASCII text without blanks")
    if token is not None and source == "OAUTHBEARER":
        raise ConfigError("bearer.auth.token is set, and bearer.auth.credentials.source is OAUTHBEARER: remove one")
    if source is not None and any(settings.user(address) for address in settings.schema_registry_url):
        raise ConfigError("a bearer token and a user with a password are both set: set only one of them")
    if source == "OAUTHBEARER":
        try:
            endpoint = parse_url(str(settings.bearer_auth_issuer_endpoint_url), "https")
        except ValueError as error:
            raise ConfigError(f"bearer.auth.issuer.endpoint.url: {error}: the client sends a secret there") from None
        if endpoint.user is not None:
            raise ConfigError("bearer.auth.issuer.endpoint.url must not contain a user: set bearer.auth.client.id")
