"""How the settings of a registry become requests: TLS, proxy, time-outs and the largest response."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import NoReturn

from kafkabuf.config.schema_registry import Address
from kafkabuf.errors import ConfigError
from kafkabuf.formats.registry.settings import RegistrySettings
from kafkabuf.network.http import proxy as http_proxy
from kafkabuf.network.http import request as http_request
from kafkabuf.network.http.request import Advice, Closing, Request, Response, Transport
from kafkabuf.network.tls import context as tls

LARGEST_BODY = 4 * 1024 * 1024  # a registry keeps a schema in one record; a larger JSON takes seconds to read
ADVICE = Advice(
    "name the CA that signed its certificate in ssl.ca.location",
    "see ssl.certificate.location and ssl.key.location",
    "see http.read.timeout.ms",
)
THREAD = "kafkabuf-schema-registry"


def send(
    address: Address,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None,
    settings: RegistrySettings,
    seconds: float,
    closing: Closing,
) -> Response:
    """As http_request.send. Raises ConfigError also for a file of the ssl settings that is not readable."""
    transport = Transport(
        tls_context(settings) if address.scheme == "https" else None,
        settings.proxy or http_proxy.of_environment(address.scheme, address.host),
        settings.http_connect_timeout_ms / 1000,
        settings.http_read_timeout_ms / 1000,
        float("inf"),  # `seconds` bounds it
        LARGEST_BODY,
        ADVICE,
        THREAD,
    )
    request = Request(address, method, path, headers, body, str(address))
    return http_request.send(request, transport, seconds, closing)


def tls_context(settings: RegistrySettings) -> ssl.SSLContext:
    """A context that checks the server's certificate and name. Raises ConfigError for a file that is not readable."""
    context = ssl.create_default_context()
    if settings.ssl_ca_location is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if os.path.isdir(settings.ssl_ca_location):
                context.load_verify_locations(capath=settings.ssl_ca_location)
            else:
                with open(settings.ssl_ca_location, encoding="utf-8", errors="replace") as file:
                    tls.load_certificates(context, file.read())
        except (OSError, ValueError) as error:
            raise _unreadable("ssl.ca.location", settings.ssl_ca_location, error) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.ssl_certificate_location is not None:
        _load_key(context, settings, settings.ssl_certificate_location)
    return context


def _load_key(context: ssl.SSLContext, settings: RegistrySettings, certificate: str) -> None:
    secret = settings.ssl_key_password

    def missing() -> NoReturn:  # without a callback OpenSSL would ask at the terminal
        raise ConfigError("the client's private key is encrypted: set ssl.key.password")

    password = missing if secret is None else secret.get_secret_value
    try:
        context.load_cert_chain(certificate, settings.ssl_key_location, password=password)
    except OSError as error:
        file = settings.ssl_key_location or certificate
        raise _unreadable("ssl.certificate.location, ssl.key.location, ssl.key.password", file, error) from None


def _unreadable(names: str, file: str, error: OSError | ValueError) -> ConfigError:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return ConfigError(f"{names}: {file} is not readable as PEM ({reason})")
