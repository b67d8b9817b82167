"""The client of the registry's REST API. It needs the standard library alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from kafkabuf.config.schema_registry import Address
from kafkabuf.errors import SchemaRegistryError, printable
from kafkabuf.formats.registry import transport
from kafkabuf.formats.registry.closing import Closing
from kafkabuf.formats.registry.schemas import Registered, Schema, registered_in, schema_in
from kafkabuf.formats.registry.settings import RegistrySettings
from kafkabuf.formats.registry.transport import LARGEST_BODY
from kafkabuf.network.http.request import Response, basic
from kafkabuf.version import __version__

RETRIABLE_STATUSES = {408, 429, 500, 502, 503, 504}
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json"
_CONTENT = "application/vnd.schemaregistry.v1+json"

T = TypeVar("T")


def refused(name: str, status: int, error_code: object, message: object) -> SchemaRegistryError:
    """The error of a response whose status is not 2xx, in the registry's own words."""
    words = printable(str(message)) if message else "no reason given"
    code = error_code if type(error_code) is int and abs(error_code) < 2**31 else -1
    numbers = f"status {status}, error code {code}" if code != -1 else f"status {status}"
    error = SchemaRegistryError(f"{name}: {words} ({numbers})")
    error.status, error.error_code = status, code
    error.retriable = status in RETRIABLE_STATUSES
    return error


def unusable(name: str, what: str) -> SchemaRegistryError:
    """The error of a response that is no answer of a registry."""
    return SchemaRegistryError(f"{name}: the response {what}; does schema.registry.url name a Schema Registry?")


class RestSession:
    """Requests to one URL of the registry, within `seconds` together.

    Each raises NetworkError, SslAuthenticationError, or SchemaRegistryError for a response that is not 2xx.
    """

    def __init__(
        self, settings: RegistrySettings, address: Address, token: str | None, seconds: float, closing: Closing
    ) -> None:
        self._closing = closing
        self._settings = settings
        self._address = address
        self._seconds = seconds
        self._headers = {"Accept": _ACCEPT, "User-Agent": f"kafkabuf/{__version__}"}
        user = settings.user(address)
        if user is not None:
            self._headers["Authorization"] = basic(user.get_secret_value())
        elif token is not None:
            self._headers |= _bearer(token, settings)

    def register(self, subject: str, schema: Schema, normalize: bool) -> Registered:
        path = f"/subjects/{_quoted(subject)}/versions?normalize={_word(normalize)}"
        return self._read(path, lambda response: registered_in(response, schema), schema.request())

    def lookup(self, subject: str, schema: Schema, normalize: bool, deleted: bool) -> Registered:
        path = f"/subjects/{_quoted(subject)}?normalize={_word(normalize)}&deleted={_word(deleted)}"
        return self._read(path, lambda response: registered_in(response, schema), schema.request())

    def version(self, subject: str, version: int | None, text_format: str | None) -> Registered:
        """A version of a subject, or its latest for None. `text_format` is how the registry writes the schema."""
        name = "latest" if version is None else version
        return self._read(f"/subjects/{_quoted(subject)}/versions/{name}{_query(format=text_format)}", registered_in)

    def by_id(self, schema_id: int, subject: str | None, text_format: str | None) -> Schema:
        return self._read(f"/schemas/ids/{schema_id}{_query(subject=subject, format=text_format)}", schema_in)

    def by_guid(self, guid: str) -> Schema:
        return self._read(f"/schemas/guids/{_quoted(guid)}", schema_in)

    def _read(self, path: str, reader: Callable[[Any], T], body: Mapping[str, Any] | None = None) -> T:
        headers, data = self._headers, None
        if body is not None:
            headers, data = headers | {"Content-Type": _CONTENT}, json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        response = transport.send(
            self._address, method, path, headers, data, self._settings, self._seconds, self._closing
        )
        name = str(self._address)
        if not 200 <= response.status < 300:
            raise _refusal(name, response)
        if len(response.body) > LARGEST_BODY:
            raise unusable(name, f"has more than {LARGEST_BODY} bytes")
        try:
            return reader(json.loads(response.body))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise unusable(name, "is not that of a Schema Registry") from None


def _bearer(token: str, settings: RegistrySettings) -> dict[str, str]:
    optional = {
        "target-sr-cluster": settings.bearer_auth_logical_cluster,
        "Confluent-Identity-Pool-Id": settings.bearer_auth_identity_pool_id,
    }
    given = {name: value for name, value in optional.items() if value is not None}
    return {"Authorization": f"Bearer {token}"} | given


def _refusal(name: str, response: Response) -> SchemaRegistryError:
    if 300 <= response.status < 400:
        return refused(name, response.status, None, redirected(response.location))
    try:
        answer = json.loads(response.body)
        return refused(name, response.status, answer.get("error_code"), answer.get("message"))
    except (ValueError, AttributeError, RecursionError):
        return refused(name, response.status, None, None)


def redirected(location: str | None) -> str:
    """The words for a response with a status 3xx."""
    where = f" to {_without_user(location)}" if location else ""
    return f"the URL redirects{where}, and redirects are not followed: set schema.registry.url to the target"


def _without_user(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}" if separator else url


def _query(**given: str | None) -> str:
    parts = [f"{name}={_quoted(value)}" for name, value in given.items() if value is not None]
    return f"?{'&'.join(parts)}" if parts else ""


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _word(flag: bool) -> str:
    return "true" if flag else "false"
