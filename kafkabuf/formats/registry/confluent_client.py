"""The registry through confluent-kafka's client, with the settings and errors of our own client.

Retries, caches and tokens are ours, so that both clients follow the same rules. Each request has a client of its own:
confluent-kafka's client remembers responses without an end, and its time-out belongs to the client.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from kafkabuf.config.schema_registry import Address
from kafkabuf.errors import ConfigError, KafkaError, NetworkError, printable
from kafkabuf.extras import needs
from kafkabuf.formats.registry import rest_client, transport
from kafkabuf.formats.registry.closing import Closing
from kafkabuf.formats.registry.confluent_bounds import Bounds, session_of
from kafkabuf.formats.registry.schemas import Registered, Schema, registered_in, schema_in
from kafkabuf.formats.registry.settings import RegistrySettings
from kafkabuf.network.http import request as http_request

T = TypeVar("T")

_EXTRA = "schema-registry"


def usable(settings: RegistrySettings) -> bool:
    """Whether confluent-kafka's client is installed, knows guids, and takes the settings."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError:  # itself, or a package that it needs
        return False
    bearer = settings.bearer_auth_credentials_source is not None
    # It takes no bearer token without a logical cluster.
    complete = all(hasattr(SchemaRegistryClient, method) for method in ("get_schema_by_guid", "__enter__"))
    return complete and _bounded() and not (bearer and settings.bearer_auth_logical_cluster is None)


@functools.cache
def _bounded() -> bool:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    with SchemaRegistryClient({"url": "http://localhost"}) as client:  # it connects to nobody
        return session_of(client) is not None


class ConfluentSession:
    """Requests to one URL of the registry, within `seconds` together; errors as those of RestSession."""

    def __init__(
        self, settings: RegistrySettings, address: Address, token: str | None, seconds: float, closing: Closing
    ) -> None:
        self._closing = closing
        self._settings = settings
        self._address = address
        self._token = token
        self._seconds = seconds

    def register(self, subject: str, schema: Schema, normalize: bool) -> Registered:
        theirs = _theirs(schema)
        return self._call(
            lambda client: registered_in(
                client.register_schema_full_response(subject, theirs, normalize).to_dict(), schema
            )
        )

    def lookup(self, subject: str, schema: Schema, normalize: bool, deleted: bool) -> Registered:
        theirs = _theirs(schema)
        return self._call(
            lambda client: registered_in(
                client.lookup_schema(subject, theirs, normalize, deleted=deleted).to_dict(), schema
            )
        )

    def version(self, subject: str, version: int | None, text_format: str | None) -> Registered:
        def ask(client: Any) -> Registered:
            if version is None:
                return registered_in(client.get_latest_version(subject, text_format).to_dict())
            return registered_in(client.get_version(subject, version, fmt=text_format).to_dict())

        return self._call(ask)

    def by_id(self, schema_id: int, subject: str | None, text_format: str | None) -> Schema:
        return self._call(lambda client: schema_in(client.get_schema(schema_id, subject, text_format).to_dict()))

    def by_guid(self, guid: str) -> Schema:
        return self._call(lambda client: schema_in(client.get_schema_by_guid(guid).to_dict()))

    def _call(self, ask: Callable[[Any], T]) -> T:
        with needs(_EXTRA, "the Schema Registry through confluent-kafka"):
            from confluent_kafka.schema_registry import SchemaRegistryClient
        transport.tls_context(self._settings)  # its errors name the setting, and it asks for no password
        name, seconds = str(self._address), self._seconds
        bounds = Bounds(name)

        def call() -> T:
            try:
                client = SchemaRegistryClient(self._conf(seconds))
            except Exception as error:  # such as ImportError for a proxy that needs another package
                explained: KafkaError = ConfigError(f"{name}: {printable(f'{type(error).__name__}: {error}')}")
            else:
                try:
                    with client:
                        bounds.put_on(client)
                        return ask(client)
                except Exception as error:
                    explained = _explained(error, name)
            raise explained  # outside the except: the error above may show credentials, and must not be its context

        return http_request.within(seconds, call, bounds.end, name, transport.THREAD, self._closing)

    def _conf(self, seconds: float) -> dict[str, Any]:
        settings = self._settings
        user, password, proxy = settings.user(self._address), settings.ssl_key_password, settings.proxy
        timeout = min(max(seconds, 0.001), settings.http_read_timeout_ms / 1000)
        conf = {
            "ssl.ca.location": settings.ssl_ca_location,
            "ssl.certificate.location": settings.ssl_certificate_location,
            "ssl.key.location": settings.ssl_key_location,
            "ssl.key.password": None if password is None else password.get_secret_value(),
            "basic.auth.user.info": None if user is None else user.get_secret_value(),
            "proxy": None if proxy is None else _with_user(proxy),
        }
        if self._token is not None:
            conf |= {
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.token": self._token,
                "bearer.auth.logical.cluster": settings.bearer_auth_logical_cluster,
                "bearer.auth.identity.pool.id": settings.bearer_auth_identity_pool_id,
            }
        given = {key: value for key, value in conf.items() if value is not None}
        return {"url": str(self._address), "timeout": timeout, "max.retries": 0} | given


def _theirs(schema: Schema) -> Any:
    with needs(_EXTRA, "the Schema Registry through confluent-kafka"):
        from confluent_kafka.schema_registry import Schema as Theirs
        from confluent_kafka.schema_registry import SchemaReference
    references = [SchemaReference(*reference) for reference in schema.references]
    return Theirs(schema.text, schema.kind, references)


def _with_user(proxy: Address) -> str:
    if proxy.user is None:
        return str(proxy)
    from urllib.parse import quote

    user, _, password = proxy.user.get_secret_value().partition(":")
    return str(proxy).replace("://", f"://{quote(user, safe='')}:{quote(password, safe='')}@", 1)


def _explained(error: Exception, name: str) -> KafkaError:
    status = getattr(error, "http_status_code", None)
    if isinstance(status, int):
        return rest_client.refused(name, status, *_words(error, status))
    if isinstance(error, KafkaError):
        return error
    if type(error).__module__.partition(".")[0] in ("httpx", "httpx2"):
        root = _os_error(error)
        if root is not None:
            return http_request.explained(root, name, transport.ADVICE)
        return NetworkError(f"{name}: {printable(f'{type(error).__name__}: {error}')}")
    return rest_client.unusable(name, "is not that of a Schema Registry")


def _words(error: Any, status: int) -> tuple[object, object]:
    """The registry's code and message. confluent-kafka gives -1 and the whole body where the body is not JSON."""
    if 300 <= status < 400:
        return None, rest_client.redirected(None)
    return (None, None) if error.error_code == -1 else (error.error_code, error.error_message)


def _os_error(error: BaseException | None) -> OSError | None:
    """The error of the operating system, or of TLS, that caused an error of the HTTP library."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
