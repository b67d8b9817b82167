"""OAUTHBEARER: tokens from a callable of the user, and from an endpoint that may be hostile."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, KafkaError, NetworkError, SaslAuthenticationError
from kafkabuf.network import oauth
from kafkabuf.network.oauth import OAuthBearer
from tests.network.certificates import Authority
from tests.network.java_stores import jks_store
from tests.network.security_support import SecureBroker, failure, secured, server_context
from tests.network.support import PATIENCE, config_for

SECRET = "sentinel-secret"
TOKEN = "sentinel.token-value"
OAUTH = {"sasl_mechanism": "OAUTHBEARER"}


def bearer(clock: ManualClock, provider: Callable[[], Any], **settings: Any) -> OAuthBearer:
    config = config_for(sasl_oauthbearer_token_provider=provider, **OAUTH, **settings)
    return oauth.mechanism(config, {}, clock, lambda: 0.0)


def accepting(token: bytes) -> bytes:
    return b"" if token == f"n,,\x01auth=Bearer {TOKEN}\x01\x01".encode() else b'{"status":"invalid_token"}'


# ---- tokens of a callable --------------------------------------------------------------------------------------------


def test_token_of_a_callable_authenticates() -> None:
    broker = SecureBroker(exchanges={"OAUTHBEARER": lambda: accepting})
    with secured(broker, **OAUTH, sasl_oauthbearer_token_provider=lambda: TOKEN) as (rigged, _):
        rigged.connect(0)


def test_refused_token_fails_with_an_authentication_error_and_is_dropped() -> None:
    class Refusing(SecureBroker):
        """Refuses a token by a challenge, and sends the error code only after the client's response to it."""

        def _authenticate(self, request: Any) -> None:
            token = bytes(request.entity().auth_bytes)
            self.tokens.append(token)
            challenge, code = (b"", 58) if token == b"\x01" else (b'{"status":"invalid_token"}', 0)
            request.reply_entity(error_code=code, error_message="no such token", auth_bytes=challenge)

    broker = Refusing(exchanges={"OAUTHBEARER": lambda: accepting})
    calls: list[int] = []

    def provider() -> tuple[str, float]:
        calls.append(1)
        return TOKEN, 4e9

    with secured(broker, **OAUTH, sasl_oauthbearer_token_provider=provider) as (rigged, _):
        error = failure(rigged)
        assert isinstance(error, SaslAuthenticationError)
        assert TOKEN not in str(error)
        assert broker.tokens[1] == b"\x01"
        rigged.clock.advance(5.0)
        rigged.poll_until(lambda: len(broker.tokens) == 4)
        assert len(calls) == 2, "the client sent the refused token again"


@pytest.mark.parametrize(
    "result", [None, 7, "", "two words", "x\x01auth=y", ("t", "soon"), ("t", 1.0, 2), b"bytes", ("t",)]
)
def test_provider_result_that_is_no_token_is_not_sent(result: Any) -> None:
    broker = SecureBroker(exchanges={"OAUTHBEARER": lambda: accepting})
    with secured(broker, **OAUTH, sasl_oauthbearer_token_provider=lambda: result) as (rigged, _):
        assert "token provider must return" in str(failure(rigged))
        assert broker.tokens == []


def test_extensions_go_with_the_token() -> None:
    sent: list[bytes] = []

    def accept(token: bytes) -> bytes:
        sent.append(token)
        return b""

    extensions = {"logicalCluster": "lkc-1", "identityPoolId": "pool, 2"}
    broker = SecureBroker(exchanges={"OAUTHBEARER": lambda: accept})
    with secured(broker, **OAUTH, sasl_oauthbearer_token_provider=lambda: (TOKEN, None, extensions)) as (rigged, _):
        rigged.connect(0)
    expected = f"n,,\x01auth=Bearer {TOKEN}\x01logicalCluster=lkc-1\x01identityPoolId=pool, 2\x01\x01"
    assert set(sent) == {expected.encode()}


@pytest.mark.parametrize("name", ["auth", "", "a-b", "a1", 7])
def test_extension_with_a_wrong_name_is_not_sent(name: Any) -> None:
    with pytest.raises(SaslAuthenticationError, match="is not valid"):
        bearer(ManualClock(), lambda: (TOKEN, None, {name: "v"})).token()


@pytest.mark.parametrize("value", ["", "x\x01auth=y", "größe", "\0"])
def test_extension_with_a_wrong_value_is_not_sent_and_not_shown(value: str) -> None:
    with pytest.raises(SaslAuthenticationError, match="'trace' is not valid") as raised:
        bearer(ManualClock(), lambda: (TOKEN, None, {"trace": SECRET + value if value else ""})).token()
    assert SECRET not in str(raised.value)


def test_error_of_a_provider_fails_the_authentication() -> None:
    def provider() -> str:
        raise RuntimeError("no luck")

    broker = SecureBroker(exchanges={"OAUTHBEARER": lambda: accepting})
    with secured(broker, **OAUTH, sasl_oauthbearer_token_provider=provider) as (rigged, _):
        error = failure(rigged)
        assert isinstance(error, SaslAuthenticationError)
        assert "RuntimeError: no luck" in str(error)


def test_slow_provider_does_not_hold_up_the_network() -> None:
    release = threading.Event()

    def provider() -> str:
        release.wait(PATIENCE)
        return TOKEN

    broker = SecureBroker(exchanges={"OAUTHBEARER": lambda: accepting})
    with secured(broker, **OAUTH, sasl_oauthbearer_token_provider=provider) as (rigged, _):
        rigged.poll_until(lambda: broker.handshakes)
        start = time.monotonic()
        rigged.settle()
        assert time.monotonic() - start < PATIENCE / 2
        rigged.clock.advance(30.001)
        assert "not established in time" in str(failure(rigged))
        release.set()
        del rigged.metadata.on_failure
        rigged.clock.advance(1.0)
        rigged.connect(0)


def test_provider_that_hangs_is_called_once_for_all_connections() -> None:
    release = threading.Event()
    asked: list[int] = []

    def provider() -> str:
        asked.append(1)
        release.wait(PATIENCE)
        return TOKEN

    broker = SecureBroker(exchanges={"OAUTHBEARER": lambda: accepting})
    with secured(broker, **OAUTH, sasl_oauthbearer_token_provider=provider, reconnect_backoff_max_ms=50) as (rigged, _):
        for attempt in range(1, 6):
            rigged.poll_until(partial(begun, broker, attempt))
            rigged.settle()
            rigged.clock.advance(60)
            rigged.settle()
            rigged.clock.advance(1)
        assert len(asked) == 1
        assert [thread.name for thread in threading.enumerate()].count("kafkabuf-sasl-oauth") == 1
        error = str(rigged.client.last_error(-1))
        assert "not established in time: the token provider, or token endpoint, has not given a token yet" in error
        release.set()
        rigged.connect(0)


def begun(broker: SecureBroker, attempts: int) -> bool:
    return len(broker.handshakes) >= attempts


def test_dropping_a_token_does_not_wait_for_a_fetch() -> None:
    """The Sender's thread drops the token. It must not wait for the thread that calls the provider."""
    clock = ManualClock()
    hangs, release = threading.Event(), threading.Event()

    def provider() -> str:
        hangs.set()
        release.wait(PATIENCE)
        return TOKEN

    source = bearer(clock, provider)
    attempt = source.attempt(lambda: None)
    assert hangs.wait(PATIENCE)
    start = time.monotonic()
    source.drop("another")
    assert time.monotonic() - start < PATIENCE / 2
    assert source.attempt(lambda: None) is attempt
    release.set()


def test_token_is_kept_until_its_renewal_is_due() -> None:
    clock = ManualClock()
    asked: list[float] = []

    def provider() -> tuple[str, float]:
        asked.append(clock.monotonic())
        return f"t{len(asked)}", clock.time_ms() / 1000 + 3600

    source = bearer(clock, provider)
    assert source.token().value == source.token().value == "t1"
    clock.advance(3600 * 0.8 - 1)
    assert source.token().value == "t1"
    clock.advance(2)
    assert source.token().value == "t2"
    source.drop("t1")
    assert source.token().value == "t2", "a token was dropped that the broker did not refuse"
    source.drop("t2")
    assert source.token().value == "t3"


def test_expiry_of_a_jwt_determines_its_renewal() -> None:
    clock = ManualClock()
    claims = base64.urlsafe_b64encode(json.dumps({"exp": clock.time_ms() / 1000 + 1000}).encode()).rstrip(b"=")
    asked: list[int] = []

    def provider() -> str:
        asked.append(1)
        return f"h.{claims.decode()}.s"

    source = bearer(clock, provider)
    source.token()
    clock.advance(690)  # the renewal is due after 700 s: five minutes before the token expires
    source.token()
    assert len(asked) == 1
    clock.advance(20)
    source.token()
    assert len(asked) == 2
    clock.advance(1000)
    with pytest.raises(SaslAuthenticationError, match="expired"):
        source.token()


# ---- tokens of an endpoint -------------------------------------------------------------------------------------------


class Endpoint:
    """An https server with the test's responses: (status, headers, body) for each request in turn."""

    def __init__(self, context: ssl.SSLContext, answers: list[tuple[int, dict[str, str], bytes]]) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.drips: threading.Event | None = None  # until this is set, the body is sent byte by byte, slowly
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, dict(self.headers), body))
                status, headers, answer = answers[min(len(outer.requests), len(answers)) - 1]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    for byte in answer if outer.drips is not None else b"":
                        self.wfile.write(bytes([byte]))
                        assert outer.drips is not None
                        outer.drips.wait(0.02)
                    if outer.drips is None:
                        self.wfile.write(answer)

            def log_message(self, *arguments: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *arguments: object) -> None:
                pass  # clients that do not trust this server

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://localhost:{self._server.server_address[1]}/token?a=b"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


GOOD: tuple[int, dict[str, str], bytes] = (200, {}, json.dumps({"access_token": TOKEN, "expires_in": 3600}).encode())


@contextlib.contextmanager
def endpoint(
    ca: Authority,
    *answers: Any,
    trusted: Path | None = None,
    read_timeout_ms: int = 10_000,
    jaas: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[Endpoint, OAuthBearer]]:
    server = Endpoint(server_context(ca.issue("idp", "DNS:localhost")), list(answers))
    config = config_for(
        **OAUTH,
        sasl_oauthbearer_token_endpoint_url=server.url,
        sasl_oauthbearer_client_credentials_client_id="me",
        sasl_oauthbearer_client_credentials_client_secret=SECRET,
        sasl_oauthbearer_scope="kafka write",
        sasl_login_retry_backoff_ms=1,
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


def test_read_time_out_bounds_the_whole_response_of_a_slow_endpoint(ca: Authority) -> None:
    with endpoint(ca, GOOD, read_timeout_ms=100) as (server, source):
        server.drips = threading.Event()
        token_endpoint = source._provider.__self__  # type: ignore[attr-defined]
        token_endpoint._patience = 0.0  # one attempt
        with pytest.raises(NetworkError, match=r"not complete within sasl\.login\.read\.timeout\.ms"):
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


@pytest.mark.parametrize("url", ["http://idp/token", "file:///etc/passwd", "https:///token", "https://u:p@idp/", "idp"])
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
