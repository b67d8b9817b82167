"""The registry over TLS, with client certificates, through proxies, and with tokens of an OAuth endpoint."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    AuthenticationError,
    ConfigError,
    KafkaError,
    NetworkError,
    SchemaRegistryError,
    SslAuthenticationError,
)
from kafkabuf.formats.registry import SchemaRegistry
from tests.formats.registry.support import RECORD, WIDER, FakeRegistry, running
from tests.network.tls.certificates import Authority, Identity

PASSWORD = "of-the-key"


class Files:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.server = self.authority.issue("server", "IP:127.0.0.1")
        self.expired = self.authority.issue("expired", "IP:127.0.0.1", expired=True)
        self.client = self.authority.issue("client")
        self.locked = self.authority.issue("locked", password=PASSWORD)
        self.ca = str(self.authority.certificate)

    def context(self, server: Identity | None = None, *, client: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server = server or self.server
        context.load_cert_chain(server.certificate, server.key)
        if client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.ca)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def secure(files: Files) -> Iterator[FakeRegistry]:
    with running(FakeRegistry(), files.context()) as fake:
        yield fake


def connect(fake: FakeRegistry, **settings: Any) -> SchemaRegistry:
    clock = ManualClock(auto_advance=True)
    return SchemaRegistry({"schema.registry.url": fake.url} | settings, clock=clock)


def test_registry_whose_ca_is_trusted_answers(secure: FakeRegistry, files: Files) -> None:
    assert connect(secure, **{"ssl.ca.location": files.ca}).resolve(RECORD, subject="s").id == 100


def test_registry_whose_ca_is_not_trusted_is_refused_at_once(secure: FakeRegistry) -> None:
    with pytest.raises(SslAuthenticationError, match=r"is not trusted: .*ssl\.ca\.location"):
        connect(secure, **{"basic.auth.user.info": "me:secret"}).resolve(RECORD, subject="s")
    assert secure.seen == [], "no credentials before trust"


def test_name_in_the_certificate_is_checked(secure: FakeRegistry, files: Files) -> None:
    url = secure.url.replace("127.0.0.1", "localhost")
    with pytest.raises(SslAuthenticationError, match="Hostname mismatch"):
        connect(secure, **{"url": url, "ssl.ca.location": files.ca, "schema.registry.url": None}).resolve(
            RECORD, subject="s"
        )


def test_expired_certificate_is_told_with_what_helps(files: Files) -> None:
    """Another CA does not help."""
    with running(FakeRegistry(), files.context(files.expired)) as fake:
        registry = connect(fake, **{"ssl.ca.location": files.ca, "basic.auth.user.info": "me:secret"})
        with pytest.raises(SslAuthenticationError, match="has expired; the server needs a new certificate") as caught:
            registry.resolve(RECORD, subject="s")
        assert fake.url in str(caught.value)
        assert fake.seen == []


def test_next_url_is_asked_where_the_first_is_not_trusted(secure: FakeRegistry, files: Files) -> None:
    with running(FakeRegistry(), files.context(files.expired)) as expired:
        urls = {"schema.registry.url": f"{expired.url},{secure.url}"}
        assert connect(secure, **urls, **{"ssl.ca.location": files.ca}).resolve(RECORD, subject="s").id == 100
        with pytest.raises(SslAuthenticationError, match=f"{expired.url} is not.*; {secure.url} is not trusted"):
            connect(secure, **urls).resolve(RECORD, subject="s")
        assert len(secure.seen) == 1, "and no retry, which would not help"


@pytest.mark.parametrize("which", ["client", "locked", "store"])
def test_client_certificate_is_shown(files: Files, which: str) -> None:
    identity: Identity = files.client if which == "store" else getattr(files, which)
    settings = {"ssl.certificate.location": str(identity.certificate), "ssl.key.location": str(identity.key)}
    if which == "locked":
        settings["ssl.key.password"] = PASSWORD
    if which == "store":
        settings = {"ssl.certificate.location": str(identity.store)}
    with running(FakeRegistry(), files.context(client=True)) as fake:
        registry = connect(fake, **settings, **{"ssl.ca.location": files.ca})
        assert registry.resolve(RECORD, subject="s").id == 100


def test_missing_client_certificate_is_told(files: Files) -> None:
    with running(FakeRegistry(), files.context(client=True)) as fake:
        with pytest.raises(KafkaError, match=r"ssl\.certificate\.location|closed|reset|Disconnected|EOF|protocol"):
            connect(fake, **{"ssl.ca.location": files.ca}).resolve(RECORD, subject="s")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ssl.ca.location": "/none"}, r"ssl\.ca\.location: /none is not readable"),
        ({"ssl.certificate.location": "/none"}, r"ssl\.certificate\.location.*/none is not readable"),
    ],
)
def test_unreadable_file_is_named(secure: FakeRegistry, files: Files, settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        connect(secure, **({"ssl.ca.location": files.ca} | settings)).resolve(RECORD, subject="s")


def test_encrypted_key_without_password_asks_nobody(secure: FakeRegistry, files: Files) -> None:
    settings = {"ssl.certificate.location": str(files.locked.certificate), "ssl.key.location": str(files.locked.key)}
    with pytest.raises(ConfigError, match=r"set ssl\.key\.password"):
        connect(secure, **settings, **{"ssl.ca.location": files.ca}).resolve(RECORD, subject="s")


# ---- proxies ---------------------------------------------------------------------------------------------------------


class Proxy(FakeRegistry):
    """A proxy for plain HTTP: it fetches what it is asked for. It refuses tunnels, and keeps what it saw."""

    def serve(self, seen: Any) -> tuple[int, Any]:
        if seen.method == "CONNECT":
            return 502, {}
        host, _, path = seen.path.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host, timeout=10)
        headers = {name: value for name, value in seen.headers.items() if name in ("authorization", "content-type")}
        connection.request(seen.method, f"/{path}", seen.body, headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        import json

        return response.status, json.loads(body)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with running(Proxy()) as found:
        assert isinstance(found, Proxy)
        yield found


def test_requests_go_through_the_proxy(proxy: Proxy) -> None:
    with running(FakeRegistry()) as fake:
        with_user = proxy.url.replace("://", "://me:pass%2Fword@")
        assert connect(fake, proxy=with_user).resolve(RECORD, subject="s").id == 100
        assert proxy.seen[0].path.startswith(fake.url)
        assert proxy.seen[0].headers["proxy-authorization"] == "Basic bWU6cGFzcy93b3Jk"
        assert "proxy-authorization" not in fake.seen[0].headers


def test_proxy_of_the_environment_is_used(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    with running(FakeRegistry()) as fake:
        assert connect(fake).resolve(RECORD, subject="s").id == 100
        assert len(proxy.seen) == 1
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert connect(fake).resolve(WIDER, subject="s").id == 101
        assert len(proxy.seen) == 1


def test_https_asks_the_proxy_for_a_tunnel(secure: FakeRegistry, proxy: Proxy, files: Files) -> None:
    registry = connect(secure, proxy=proxy.url, **{"ssl.ca.location": files.ca, "max.retries": 0})
    with pytest.raises(NetworkError, match="502"):
        registry.resolve(RECORD, subject="s")
    assert [seen.method for seen in proxy.seen] == ["CONNECT"]
    assert f"https://{proxy.seen[0].path}" == secure.url


# ---- tokens ----------------------------------------------------------------------------------------------------------


def oauth(fake: FakeRegistry, endpoint: FakeRegistry, files: Files, clock: ManualClock) -> SchemaRegistry:
    settings = {
        "schema.registry.url": fake.url,
        "bearer.auth.credentials.source": "OAUTHBEARER",
        "bearer.auth.issuer.endpoint.url": f"{endpoint.url}/token",
        "bearer.auth.client.id": "id",
        "bearer.auth.client.secret": "of-the-client",
        "bearer.auth.scope": "read",
        "bearer.auth.logical.cluster": "lsrc-1",
        "ssl.ca.location": files.ca,
    }
    return SchemaRegistry(settings, clock=clock)


def test_token_of_the_endpoint_serves_until_its_time_is_over(secure: FakeRegistry, files: Files) -> None:
    clock = ManualClock()
    secure.tokens = ["first", "second"]
    with running(FakeRegistry(authorization="Bearer first")) as fake:
        registry = oauth(fake, secure, files, clock)
        registry.resolve(RECORD, subject="a")
        registry.resolve(RECORD, subject="b")
        assert len(secure.seen) == 1
        assert secure.seen[0].body == b"grant_type=client_credentials&scope=read"
        assert secure.seen[0].headers["authorization"] == "Basic aWQ6b2YtdGhlLWNsaWVudA=="
        clock.advance(0.81 * 3600)
        fake.authorization = None  # a registry that would take the old token, too
        registry.resolve(RECORD, subject="c")
        assert fake.seen[-1].headers["authorization"] == "Bearer second"


def test_token_that_the_registry_refuses_is_replaced(secure: FakeRegistry, files: Files) -> None:
    secure.tokens, secure.lifetime = ["first", "second", "third"], None
    with running(FakeRegistry(authorization="Bearer first")) as fake:
        registry = oauth(fake, secure, files, ManualClock())
        registry.resolve(RECORD, subject="a")
        fake.authorization = "Bearer second"
        registry.resolve(RECORD, subject="b")
        fake.authorization = "Bearer another"
        with pytest.raises(SchemaRegistryError, match="status 401"):
            registry.resolve(RECORD, subject="c")
        assert secure.tokens == [], "one new token a request, no more"


def test_token_of_the_endpoint_is_in_no_error(secure: FakeRegistry, files: Files) -> None:
    secure.tokens = ["s3cret-first", "s3cret-second"]
    with running(FakeRegistry(authorization="another")) as fake:  # its refusal repeats the token
        with pytest.raises(SchemaRegistryError, match="status 401") as caught:
            oauth(fake, secure, files, ManualClock()).resolve(RECORD, subject="a")
        assert len(fake.seen) == 2
        assert "s3cret" not in str(caught.value) + repr(caught.value.__context__)


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'{"access_token": 7}', b'{"access_token": "a\\r\\nb"}', b"{}"])
def test_endpoint_that_gives_no_token_is_an_error_without_its_words(
    secure: FakeRegistry, files: Files, content: bytes
) -> None:
    secure.faults = [("body", 200, content)]
    with running(FakeRegistry()) as fake:
        with pytest.raises(AuthenticationError, match="not JSON with an access_token") as caught:
            oauth(fake, secure, files, ManualClock()).resolve(RECORD, subject="a")
        assert caught.value.__context__ is None
        assert fake.seen == []


def test_endpoint_that_refuses_is_told_and_one_that_fails_is_asked_again(secure: FakeRegistry, files: Files) -> None:
    with running(FakeRegistry()) as fake:
        secure.faults = [400]
        with pytest.raises(AuthenticationError, match="status 400; check the credentials"):
            oauth(fake, secure, files, ManualClock()).resolve(RECORD, subject="a")
        secure.faults, secure.tokens = [503, "close"], ["first"]
        clock = ManualClock(auto_advance=True)
        assert oauth(fake, secure, files, clock).resolve(RECORD, subject="a").id == 100
