"""Tokens from an endpoint, which may be hostile, and through a proxy."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, KafkaError, NetworkError, SaslAuthenticationError
from kafkabuf.network.http import proxy as http_proxy
from kafkabuf.network.sasl import oauth
from kafkabuf.network.sasl.oauth import OAuthBearer
from tests.network.sasl.test_oauth import OAUTH, SECRET, TOKEN, jwt
from tests.network.sasl.token_server import Endpoint, TunnelProxy
from tests.network.security_support import server_context
from tests.network.support import config_for
from tests.network.tls.certificates import Authority
from tests.network.tls.java_stores import jks_store

# ---- tokens of an endpoint -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


GOOD: tuple[int, dict[str, str], bytes] = (200, {}, json.dumps({"access_token": TOKEN, "expires_in": 3600}).encode())


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextlib.contextmanager
def endpoint(
    ca: Authority,
    *answers: Any,
    trusted: Path | None = None,
    read_timeout_ms: int = 10_000,
    backoff_ms: int = 1,
    jaas: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[Endpoint, OAuthBearer]]:
    server = Endpoint(server_context(ca.issue("idp", "DNS:localhost")), list(answers))
    config = config_for(
        **OAUTH,
        sasl_oauthbearer_token_endpoint_url=server.url,
        sasl_oauthbearer_client_credentials_client_id="me",
        sasl_oauthbearer_client_credentials_client_secret=SECRET,
        sasl_oauthbearer_scope="kafka write",
        sasl_login_retry_backoff_ms=backoff_ms,
        sasl_login_retry_backoff_max_ms=50,
        sasl_login_read_timeout_ms=read_timeout_ms,
    )
    options = {"ssl.truststore.location": str(trusted or ca.certificate), **jaas}
    try:
        yield server, oauth.mechanism(config, options, ManualClock(wall_ms=int(time.time() * 1000)), lambda: 0.5)
    finally:
        server.close()


def test_client_credentials_give_a_token(ca: Authority) -> None:
    with endpoint(ca, GOOD) as (server, source):
        assert source.token().value == source.token().value == TOKEN
    ((path, headers, body),) = server.requests
    assert path == "/token?a=b"
    assert headers["Authorization"] == "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert body == b"grant_type=client_credentials&scope=kafka+write"


def test_extensions_of_the_jaas_options_go_with_the_token(ca: Authority) -> None:
    """Confluent Cloud asks for them."""
    with endpoint(ca, GOOD, jaas={"extension_logicalCluster": "lkc-1", "extension_identityPoolId": "pool-2"}) as (
        _,
        source,
    ):
        token = source.token()
        assert (token.value, dict(token.extensions)) == (TOKEN, {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"})
        assert token.expires_at is not None


def test_endpoint_is_trusted_by_a_jks_store(ca: Authority, tmp_path: Path) -> None:
    store = tmp_path / "ca.jks"
    store.write_bytes(jks_store({}, [ssl.PEM_cert_to_DER_cert(ca.certificate.read_text())], "changeit"))
    jaas = {"ssl.truststore.password": "changeit", "ssl.truststore.type": "JKS"}
    with endpoint(ca, GOOD, trusted=store, jaas=jaas) as (_, source):
        assert source.token().value == TOKEN


def test_retriable_errors_of_the_endpoint_are_retried(ca: Authority) -> None:
    with endpoint(ca, (503, {}, b""), (429, {}, b""), GOOD) as (server, source):
        assert source.token().value == TOKEN
        assert len(server.requests) == 3
    with endpoint(ca, (503, {}, b"")) as (server, source):
        with pytest.raises(NetworkError, match="503"):
            source.token()
        assert len(server.requests) > 3


def test_back_off_of_nothing_means_one_attempt(ca: Authority) -> None:
    with endpoint(ca, (503, {}, b""), backoff_ms=0) as (server, source):
        with pytest.raises(NetworkError, match="503"):
            source.token()
        assert len(server.requests) == 1


def test_read_time_out_bounds_the_whole_response_of_a_slow_endpoint(ca: Authority) -> None:
    with endpoint(ca, GOOD, read_timeout_ms=100) as (server, source):
        server.drips = threading.Event()
        token_endpoint = source._provider.__self__  # type: ignore[attr-defined]
        token_endpoint._patience = 0.0  # one attempt
        with pytest.raises(NetworkError, match=r"not complete in time: see sasl\.login\.read\.timeout\.ms"):
            source.token()
        server.drips.set()
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ((401, {}, b'{"error":"invalid_client"}'), "status 401"),
        ((302, {"Location": "https://localhost:1/"}, b""), "redirects"),
        ((307, {"Location": "http://127.0.0.1:1/"}, b""), "redirects"),
        ((200, {}, b"x" * (1024 * 1024 + 1)), "more than 1048576 bytes"),
        ((200, {}, b"nonsense"), "not JSON"),
        ((200, {}, b"[]"), "not JSON"),
        ((200, {}, b'{"expires_in": 5}'), "not JSON"),
        ((200, {}, b'{"access_token": "two words"}'), "token provider must return"),
        ((200, {}, b'{"access_token": ["a"]}'), "token provider must return"),
        ((200, {}, b"[" * 100_000), "not JSON"),
        (
            (200, {"Transfer-Encoding": "chunked"}, b"7fffffffffffffff\r\n" + b"x" * 2_000_000),
            "more than 1048576 bytes",
        ),
    ],
)
def test_bad_response_of_an_endpoint_is_refused_and_not_retried(ca: Authority, response: Any, reason: str) -> None:
    with endpoint(ca, response) as (server, source):
        with pytest.raises(SaslAuthenticationError, match=reason) as caught:
            source.token()
        assert len(server.requests) == 1
        assert SECRET not in str(caught.value)


def test_endpoint_without_a_trusted_certificate_gets_no_secret(ca: Authority, tmp_path: Path) -> None:
    with endpoint(ca, GOOD, trusted=Authority(tmp_path, "other").certificate) as (server, source):
        with pytest.raises(SaslAuthenticationError, match="not trusted"):
            source.token()
        assert server.requests == []


@pytest.mark.parametrize(
    "url",
    ["http://idp/token", "ftp://idp/", "https:///token", "https://u:p@idp/", "idp", "https://idp:x/", "https://["],
)
def test_endpoint_url_without_https_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="https://") as caught:
        oauth.mechanism(
            config_for(
                **OAUTH,
                sasl_oauthbearer_token_endpoint_url=url,
                sasl_oauthbearer_client_credentials_client_id="me",
                sasl_oauthbearer_client_credentials_client_secret=SECRET,
            ),
            {},
            ManualClock(),
            lambda: 0.5,
        )
    assert SECRET not in str(caught.value)


def test_endpoint_needs_credentials_and_does_not_show_them() -> None:
    config = config_for(**OAUTH, sasl_oauthbearer_token_endpoint_url="https://idp/token")
    with pytest.raises(KafkaError, match="client"):
        oauth.mechanism(config, {}, ManualClock(), lambda: 0.5)
    source = oauth.mechanism(config, {"clientId": "me", "clientSecret": SECRET}, ManualClock(), lambda: 0.5)
    assert SECRET not in repr(source) + repr(vars(source))


def test_refusal_names_the_error_of_the_endpoint_and_no_more(ca: Authority) -> None:
    body = json.dumps({"error": "invalid_client", "error_description": f"no {SECRET}"}).encode()
    with endpoint(ca, (400, {}, body)) as (_, source):
        with pytest.raises(SaslAuthenticationError, match=r"status 400 \(invalid_client\)") as caught:
            source.token()
        assert SECRET not in str(caught.value)


def test_id_token_of_an_endpoint_stands_for_the_access_token(ca: Authority) -> None:
    with endpoint(ca, (201, {}, json.dumps({"id_token": TOKEN}).encode())) as (_, source):
        assert source.token().value == TOKEN


@pytest.mark.parametrize("lifetime", ["0", "-1", "NaN", "Infinity", "1e999", '"soon"', "[]", "1" + "0" * 400])
def test_lifetime_of_no_use_gives_way_to_the_expiry_in_the_token(ca: Authority, lifetime: str) -> None:
    token = jwt({"exp": time.time() + 1000})
    body = f'{{"access_token": "{token}", "expires_in": {lifetime}}}'.encode()
    with endpoint(ca, (200, {}, body)) as (server, source):
        assert source.token().value == source.token().value == token
        assert len(server.requests) == 1


# ---- through a proxy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "all_proxy"])
def test_endpoint_is_asked_through_the_proxy_of_the_environment(
    ca: Authority, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with TunnelProxy() as proxy:
        monkeypatch.setenv(variable, proxy.url.replace("://", "://me:pass%2Fword@"))
        with endpoint(ca, GOOD) as (server, source):
            assert source.token().value == TOKEN
            assert len(server.requests) == 1
        (request,) = proxy.requests
        assert request.startswith(f"CONNECT {server.url.split('/')[2]} HTTP/1.1\r\n".encode())
        assert b"\r\nProxy-Authorization: Basic bWU6cGFzcy93b3Jk\r\n" in request
        assert SECRET.encode() not in request + proxy.passed


def test_no_proxy_leads_past_the_proxy(ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    with TunnelProxy() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "example.com,localhost")
        with endpoint(ca, GOOD) as (_, source):
            assert source.token().value == TOKEN
        assert proxy.requests == []


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "status 407: give it user and password"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "status 403"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200", "not HTTP"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "not HTTP"),
        (b"x" * 20_000, "not HTTP"),
    ],
)
def test_proxy_that_opens_no_tunnel_is_named(
    ca: Authority, monkeypatch: pytest.MonkeyPatch, response: bytes, reason: str
) -> None:
    with TunnelProxy(response) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url.replace("://", f"://me:{SECRET}@"))
        with endpoint(ca, GOOD) as (server, source):
            with pytest.raises(NetworkError, match=f"the proxy 127.0.0.1.*{reason}") as caught:
                source.token()
            assert server.requests == []
        assert SECRET not in str(caught.value)


def test_proxy_that_hangs_ends_with_the_connect_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with TunnelProxy(b"") as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        parsed = http_proxy.of_environment("https", "idp")
        assert parsed is not None
        with pytest.raises(TimeoutError):
            http_proxy.tunnel(parsed, "idp", 443, 0.05)


@pytest.mark.parametrize("url", ["socks5://localhost:1080", "https://localhost:3128", "http://[", "http://h/?q"])
def test_proxy_of_no_use_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("https_proxy", url)
    config = config_for(**OAUTH, sasl_oauthbearer_token_endpoint_url="https://idp/token")
    with pytest.raises(ConfigError, match=r"https_proxy.*no_proxy"):
        oauth.mechanism(config, {"clientId": "me", "clientSecret": SECRET}, ManualClock(), lambda: 0.5)
