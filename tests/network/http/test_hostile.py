"""Hostile servers against everything that sends HTTP requests with secrets: one suite for all users of the client."""

from __future__ import annotations

import random
import re
import socket
import ssl
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.config.schema_registry import parse_url
from kafkabuf.errors import KafkaError, NetworkError
from kafkabuf.formats.registry import SchemaRegistry
from kafkabuf.network.http import request as http_request
from kafkabuf.network.http.request import Advice, Request, Transport
from kafkabuf.network.sasl import oauth
from tests.formats.registry.support import RECORD, FakeRegistry, running
from tests.network.hostile_responses import CHUNKED, MB, OK, compressed_response
from tests.network.security_support import server_context
from tests.network.support import PATIENCE, config_for
from tests.network.tls.certificates import Authority
from tests.waiting import wait_until

SECRET = "sentinel-of-the-client"
THREADS = ("kafkabuf-schema-registry", "kafkabuf-token-endpoint")
TOKEN = b'{"access_token": "granted", "expires_in": 3600, "id": 5}'


@dataclass
class Server:
    """A hostile server over TLS, and the CA that signed its certificate."""

    fake: FakeRegistry
    ca: Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    return server_context(authority.issue("hostile", "DNS:localhost", "IP:127.0.0.1"))


@pytest.fixture
def server(authority: Authority, context: ssl.SSLContext) -> Iterator[Server]:
    with running(FakeRegistry(), context) as fake:
        yield Server(fake, authority.certificate)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


# ---- the users -------------------------------------------------------------------------------------------------------


def ask_for_a_token(url: str, ca: Path, seconds: float) -> object:
    """OAUTHBEARER's token endpoint."""
    config = config_for(
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=f"{url}/token",
        sasl_oauthbearer_client_credentials_client_id="me",
        sasl_oauthbearer_client_credentials_client_secret=SECRET,
        sasl_login_retry_backoff_ms=0,  # one attempt
        sasl_login_connect_timeout_ms=int(seconds * 1000),
        sasl_login_read_timeout_ms=int(seconds * 1000),
    )
    options = {"ssl.truststore.location": str(ca)}
    return oauth.mechanism(config, options, ManualClock(wall_ms=int(time.time() * 1000)), lambda: 0.5).token()


def ask_the_registry(url: str, ca: Path, seconds: float) -> object:
    return _resolved(url, ca, seconds, **{"basic.auth.user.info": f"me:{SECRET}"})


def ask_the_registrys_token_endpoint(url: str, ca: Path, seconds: float) -> object:
    given = {
        "bearer.auth.credentials.source": "OAUTHBEARER",
        "bearer.auth.issuer.endpoint.url": f"{url}/token",
        "bearer.auth.client.id": "me",
        "bearer.auth.client.secret": SECRET,
    }
    return _resolved("http://127.0.0.1:1", ca, seconds, **given)


def _resolved(url: str, ca: Path, seconds: float, **settings: str) -> object:
    given = {"schema.registry.url": url, "ssl.ca.location": str(ca), "max.retries": 0, **settings}
    return SchemaRegistry(given).resolve(RECORD, subject="s", timeout=seconds)


User = Callable[[str, Path, float], object]
USERS: list[User] = [ask_for_a_token, ask_the_registry, ask_the_registrys_token_endpoint]
of_each_user = pytest.mark.parametrize("user", USERS)


def refusal(user: User, url: str, ca: Path, seconds: float = PATIENCE) -> KafkaError:
    """The error of a request. It shows no secret, and no error that led to it does."""
    with pytest.raises(KafkaError) as caught:
        user(url, ca, seconds)
    error: BaseException | None = caught.value
    while error is not None:
        shown = "".join(traceback.format_exception(error)) + repr(error) + repr(error.args)
        assert SECRET not in shown
        error = error.__cause__ or error.__context__
    _wait_for_threads()
    return caught.value


def _wait_for_threads() -> None:
    """Wait for the ends of all requests, though the server goes on for ever."""
    wait_until(lambda: not any(thread.name in THREADS for thread in threading.enumerate()))


# ---- too many bytes --------------------------------------------------------------------------------------------------


ENDLESS: dict[str, Any] = {
    "body": ("endless", OK + b"\r\n", bytes(MB), 0),
    "body with a length": ("endless", OK + b"Content-Length: 3000000000\r\n\r\n", bytes(MB), 0),
    "body with a negative length": ("endless", OK + b"Content-Length: -5\r\n\r\n", bytes(MB), 0),
    "chunks": ("endless", CHUNKED, b"100000\r\n" + bytes(MB) + b"\r\n", 0),
    "chunk of -1": ("endless", CHUNKED + b"-1\r\n", bytes(MB), 0),
    "chunk of 2^63": ("endless", CHUNKED + b"8000000000000000\r\n", bytes(MB), 0),
    "chunk of 2^200": ("endless", CHUNKED + b"1" + b"0" * 50 + b"\r\n", bytes(MB), 0),
    "chunk with an extension": ("endless", CHUNKED + b"1;", bytes(MB), 0),
    "trailers": ("endless", CHUNKED + b"0\r\n", b"X: y\r\n" * 10_000, 0),
    "header": ("endless", OK + b"X: ", bytes(MB), 0),
    "headers": ("endless", OK, b"X: y\r\n" * 10_000, 0),
    "status line": ("endless", b"HTTP/1.1 200 ", bytes(MB), 0),
    "continues": ("endless", b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, 0),
    "refusal": ("endless", b"HTTP/1.1 400 No\r\n\r\n", bytes(MB), 0),
    "failure": ("endless", b"HTTP/1.1 503 No\r\n\r\n", bytes(MB), 0),
    "compressed": ("raw", compressed_response()),
}


@pytest.mark.parametrize("user", USERS[:2])  # the registry's token endpoint has the registry's bounds
@pytest.mark.parametrize("response", ENDLESS)
def test_response_without_an_end_takes_bounded_memory(server: Server, user: User, response: str) -> None:
    with pytest.raises(KafkaError):  # loads what a request needs
        user("https://localhost:1", server.ca, 5)
    server.fake.faults = [ENDLESS[response]]
    tracemalloc.start()
    try:
        error = refusal(user, server.fake.url, server.ca)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * MB
    assert "127.0.0.1" in str(error)


# ---- too slow --------------------------------------------------------------------------------------------------------

DRIPPING: dict[str, Any] = {
    "nothing": "silent",
    "body": "drip",
    "header": ("endless", OK + b"X: ", b"y", 0.02),
    "headers": ("endless", OK, b"X: y\r\n", 0.1),
    "continues": ("endless", b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
    "chunks": ("endless", CHUNKED, b"1\r\n \r\n", 0.02),
    "trailers": ("endless", CHUNKED + b"0\r\n", b"X: y\r\n", 0.02),
}


@of_each_user
@pytest.mark.parametrize("response", DRIPPING)
def test_response_in_small_pieces_ends_in_time(server: Server, user: User, response: str) -> None:
    server.fake.faults = [DRIPPING[response]]
    error = refusal(user, server.fake.url, server.ca, 0.2)
    assert isinstance(error, NetworkError)
    assert re.search("in time|within|timed out", str(error))


@of_each_user
@pytest.mark.parametrize("greeting", [b"", b"\x16\x03\x03\x40\x00"])
def test_handshake_that_never_ends_takes_no_longer_than_its_time(
    authority: Authority, user: User, greeting: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def accept() -> None:
            taken.append(listener.accept()[0])
            taken[0].sendall(greeting)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        error = refusal(user, f"https://127.0.0.1:{listener.getsockname()[1]}", authority.certificate, 0.3)
        thread.join(PATIENCE)
        assert isinstance(error, NetworkError)
        taken[0].settimeout(PATIENCE)
        sent = b"".join(iter(lambda: taken[0].recv(4096), b""))
        assert SECRET.encode() not in sent
        taken[0].close()


@of_each_user
def test_lookup_of_a_name_that_hangs_takes_no_longer_than_its_time(
    authority: Authority, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hang(*args: Any, **kwargs: Any) -> Any:
        released.wait(PATIENCE)
        raise socket.gaierror("released")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with pytest.raises(NetworkError, match="within"):
        user("https://localhost:1", authority.certificate, 0.3)
    released.set()
    _wait_for_threads()


# ---- no response -----------------------------------------------------------------------------------------------------

NO_RESPONSE: dict[str, bytes] = {
    "nothing": b"",
    "cut short": OK + b"Content-Length: 100\r\n\r\n" + TOKEN,
    "cut short in a chunk": CHUNKED + b"50\r\n" + TOKEN[:5],
    "cut short behind a chunk": CHUNKED + b"38\r\n" + TOKEN,
    "chunk of -1": CHUNKED + b"-1\r\n" + TOKEN,
    "chunk of -5": CHUNKED + b"-5\r\n" + TOKEN,
    "chunk of -2^63": CHUNKED + b"-8000000000000000\r\n" + TOKEN,
    "chunk of a word": CHUNKED + b"zz\r\nabc",
    "chunk of no number": CHUNKED + b"\r\nabc",
    "chunk of many digits": CHUNKED + b"f" * 5000 + b"\r\nabc",
    "chunk that is not ASCII": CHUNKED + b"\xd9\xa5" + b"\r\n" + TOKEN,
    "status of five digits": b"HTTP/1.1 20000 OK\r\n\r\n" + TOKEN,
    "status of many digits": b"HTTP/1.1 " + b"2" * 5000 + b"\r\n\r\n" + TOKEN,
    "status of a word": b"HTTP/1.1 ok\r\n\r\n" + TOKEN,
    "status below 100": b"HTTP/1.1 -20 OK\r\n\r\n" + TOKEN,
    "HTTP/0.9": TOKEN,
    "TLS within TLS": b"\x16\x03\x01\x02\x00garbage\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "switched protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n" + TOKEN,
    "no content": b"HTTP/1.1 204 No\r\n\r\n" + TOKEN,
    "a header without a colon": OK + b"nonsense\r\n\r\n",
    "bytes of zero": OK + b"\0: \0\r\n\r\n\0",
    "JSON of another kind": OK + b'Content-Length: 4\r\n\r\n"id"',
    "JSON in depth": OK + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000,
    "half of a surrogate pair": OK + b'Content-Length: 48\r\n\r\n{"access_token": "\\ud800", "id": "\\ud800", "a": 1}',
    "a number of many digits": OK + b"Content-Length: 5020\r\n\r\n" + b'{"id": ' + b"1" * 5012 + b"}",
}


@of_each_user
@pytest.mark.parametrize("response", NO_RESPONSE)
def test_what_is_no_response_is_an_error_of_kafkabuf(server: Server, user: User, response: str) -> None:
    server.fake.faults = [("raw", NO_RESPONSE[response])]
    refusal(user, server.fake.url, server.ca)


@of_each_user
@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_no_redirect_is_followed(server: Server, context: ssl.SSLContext, user: User, status: int) -> None:
    with running(FakeRegistry(), context) as other:
        head = f"HTTP/1.1 {status} Go\r\nLocation: {other.url}/token\r\nContent-Length: 0\r\n\r\n".encode()
        server.fake.faults = [("raw", head)]
        assert "redirects" in str(refusal(user, server.fake.url, server.ca))
        assert len(server.fake.seen) == 1
        assert other.seen == []


def test_no_byte_of_a_response_raises_another_error() -> None:
    """Valid responses with some bytes changed, cut out or repeated."""
    whole = [
        OK + b"Content-Length: 56\r\nX: y\r\n\r\n" + TOKEN,
        CHUNKED + b"10;x=y\r\n" + TOKEN[:16] + b"\r\n28\r\n" + TOKEN[16:] + b"\r\n0\r\nX: y\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 302 Go\r\nLocation: http://h/\r\nContent-Length: 0\r\n\r\n",
    ]
    drawn = random.Random(7)
    with running(FakeRegistry()) as fake:
        request = Request(parse_url(fake.url, "http"), "POST", "/", {"Authorization": "Basic eA=="}, b"x", "the server")
        transport = Transport(None, None, PATIENCE, PATIENCE, PATIENCE, MB, Advice("", "", ""), THREADS[0])
        outcomes = {True: 0, False: 0}
        for _ in range(600):
            response = bytearray(drawn.choice(whole))
            for _ in range(drawn.randint(1, 3)):
                at, count = drawn.randrange(len(response)), drawn.randint(0, 4)
                response[at : at + count] = drawn.choice([b"", b"-", b"\r\n", b"\0", b"9" * 30, response[at:], b"\xff"])
            fake.faults = [("raw", bytes(response))]
            try:
                http_request.send(request, transport, PATIENCE)
                outcomes[True] += 1
            except NetworkError:
                outcomes[False] += 1
    assert min(outcomes.values()) > 50
