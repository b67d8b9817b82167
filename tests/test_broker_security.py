"""The embedded broker's TLS and SASL: clients of three makes, dialogues byte by byte, and who breaks the rules."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from kafkabuf import KafkaProducer
from kafkabuf.broker import ConnectionLimits, EmbeddedCluster, Security
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, KafkaError, SaslAuthenticationError, SslAuthenticationError
from kafkabuf.network.scram import Scram
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import API_VERSIONS, METADATA, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.certificates import Authority, Identity
from tests.raw_client import RawClient, batch

SECRET = "sentinel-password"
USERS = {"alice": SECRET, "bob": "other-sentinel"}
NOW = ManualClock().time_ms() // 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("broker", "DNS:localhost", "IP:127.0.0.1")


def jwt(sub: str = "alice", exp: float = NOW + 60, alg: str = "none", signature: str = "", **claims: Any) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': alg})}.{part({'sub': sub, 'exp': exp, **claims})}.{signature}"


# ---- clients ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_cluster(identity: Identity) -> Iterator[EmbeddedCluster]:
    security = Security(ssl_certfile=identity.store, users=USERS, oauth_validator=lambda token: token.split("-")[0])
    assert security.protocol == "SASL_SSL"
    with EmbeddedCluster(brokers=2, security=security) as cluster:
        cluster.create_topic("t", 2)
        yield cluster


def with_ours(cluster: EmbeddedCluster, ca: str, mechanism: str, **more: Any) -> None:
    user = {"sasl_username": "alice", "sasl_password": more.get("password", SECRET)}
    if mechanism == "OAUTHBEARER":
        user = {"sasl_oauthbearer_token_provider": lambda: more.get("token", "alice-token")}
    settings = {"security_protocol": "SASL_SSL", "ssl_truststore_location": ca, "sasl_mechanism": mechanism, **user}
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_block_ms=5000, **settings) as producer:
        producer.send("t", b"ours", partition=0).result(10)


def with_confluent(cluster: EmbeddedCluster, ca: str, mechanism: str, **more: Any) -> None:
    failed: list[Any] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": ca,
        "sasl.mechanism": mechanism,
        "error_cb": failed.append,
    }
    if mechanism == "OAUTHBEARER":
        settings["oauth_cb"] = lambda _: (more.get("token", "alice-token"), 4e9)
    else:
        settings |= {"sasl.username": "alice", "sasl.password": more.get("password", SECRET)}
    producer = confluent_kafka.Producer(settings)
    producer.produce("t", b"confluent", partition=0)
    for _ in range(100):
        if not producer.flush(0.1):
            return
        if any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in failed):
            raise SaslAuthenticationError(str(failed[0]))
    raise AssertionError(failed)


def with_kafka_python(cluster: EmbeddedCluster, ca: str, mechanism: str, **more: Any) -> None:
    user: dict[str, Any] = {"sasl_plain_username": "alice", "sasl_plain_password": more.get("password", SECRET)}
    if mechanism == "OAUTHBEARER":
        user = {"sasl_oauth_token_provider": Tokens()}
    settings = {"security_protocol": "SASL_SSL", "ssl_cafile": ca, "sasl_mechanism": mechanism, **user}
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings)
    producer.send("t", b"kafka-python", partition=0).get(10)
    producer.close()


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def token(self) -> str:
        return "alice-token"


@pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize("client", [with_ours, with_confluent, with_kafka_python])
def test_client_is_kept_out(
    tls_cluster: EmbeddedCluster, authority: Authority, client: Callable[..., None], mechanism: str
) -> None:
    before = tls_cluster.end_offset("t", 0)
    client(tls_cluster, str(authority.certificate), mechanism)
    assert tls_cluster.end_offset("t", 0) == before + 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("client", [with_ours, with_confluent])
def test_wrong_password_is_let_in(
    tls_cluster: EmbeddedCluster,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    client: Callable[..., None],
    mechanism: str,
) -> None:
    with pytest.raises(SaslAuthenticationError):
        client(tls_cluster, str(authority.certificate), mechanism, password="guessed")
    assert SECRET not in caplog.text
    assert "guessed" not in caplog.text


def test_certificate_of_strangers_is_accepted_by_our_client(tls_cluster: EmbeddedCluster, folder: Path) -> None:
    with pytest.raises(SslAuthenticationError):
        with_ours(tls_cluster, str(Authority(folder, "stranger").certificate), "PLAIN")


# ---- TLS -------------------------------------------------------------------------------------------------------------


def secured_socket(cluster: EmbeddedCluster, ca: Authority, identity: Identity | None = None) -> ssl.SSLSocket:
    host, port, _ = cluster.nodes()[1]
    context = ssl.create_default_context(cafile=str(ca.certificate))
    if identity is not None:
        context.load_cert_chain(identity.store)
    sock = socket.create_connection((host, port), 5)
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except OSError:
        sock.close()
        raise


def let_in(cluster: EmbeddedCluster, ca: Authority, identity: Identity | None) -> bool:
    try:
        with secured_socket(cluster, ca, identity) as sock:
            return api_versions(sock) != b""
    except OSError:
        return False


def api_versions(sock: socket.socket) -> bytes:
    sock.sendall(struct.pack(">ihhih", 10, API_VERSIONS, 0, 7, -1))
    return sock.recv(8)


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_client_certificate_is_not_asked_for(
    authority: Authority, identity: Identity, folder: Path, client_auth: Any
) -> None:
    security = Security(ssl_certfile=identity.store, ssl_cafile=authority.certificate, ssl_client_auth=client_auth)
    with EmbeddedCluster(security=security) as cluster:
        with secured_socket(cluster, authority, authority.issue("client")) as known:
            assert api_versions(known)[4:] == struct.pack(">i", 7)
        stranger = Authority(folder, "other").issue("stranger")
        assert not let_in(cluster, authority, stranger)
        assert let_in(cluster, authority, None) == (client_auth == "requested")


def test_plain_text_or_silence_on_a_tls_port_stays_open(authority: Authority, identity: Identity) -> None:
    limits = ConnectionLimits(authentication_timeout_ms=100)
    with EmbeddedCluster(security=Security(ssl_certfile=identity.store), limits=limits) as cluster:
        with RawClient(cluster.bootstrap_servers, 5) as plain, RawClient(cluster.bootstrap_servers, 5) as silent:
            plain.send(API_VERSIONS, 0)
            assert plain.socket.recv(100)[:1] in (b"", b"\x15"), "an alert of TLS, or the end"
            assert silent.closed()
        with secured_socket(cluster, authority) as good:
            assert api_versions(good)


@pytest.mark.parametrize("settings", ["keyfile", "encrypted"])
def test_key_in_a_file_of_its_own_is_not_found(authority: Authority, identity: Identity, settings: str) -> None:
    security = Security(ssl_certfile=identity.certificate, ssl_keyfile=identity.key)
    if settings == "encrypted":
        locked = authority.issue("locked", "IP:127.0.0.1", password=SECRET)
        security = Security(ssl_certfile=locked.certificate, ssl_keyfile=locked.key, ssl_key_password=SECRET)
    with EmbeddedCluster(security=security) as cluster, secured_socket(cluster, authority) as sock:
        assert api_versions(sock)


def test_bad_files_are_found_by_the_first_client(authority: Authority, identity: Identity, folder: Path) -> None:
    locked = authority.issue("locked2", password=SECRET)
    for certfile, keyfile, password in [
        (folder / "nothing.pem", None, None),
        (identity.certificate, None, None),
        (locked.certificate, locked.key, None),
        (locked.certificate, locked.key, "guessed"),
        (identity.certificate, locked.key, SECRET),
    ]:
        security = Security(ssl_certfile=certfile, ssl_keyfile=keyfile, ssl_key_password=password)
        with pytest.raises(ConfigError, match="TLS: ") as raised:
            EmbeddedCluster(security=security).start()
        assert SECRET not in str(raised.value)


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ssl_keyfile": "k"}, "need an ssl_certfile"),
        ({"ssl_certfile": "c", "ssl_client_auth": "required"}, "go together"),
        ({"ssl_certfile": "c", "ssl_cafile": "ca"}, "go together"),
        ({"ssl_certfile": "c", "ssl_client_auth": "always"}, "none, requested, required are allowed"),
        ({"sasl_mechanisms": ["PLAIN"]}, "PLAIN needs users"),
        ({"users": USERS, "sasl_mechanisms": "OAUTHBEARER"}, "needs oauth_validator"),
        ({"users": USERS, "sasl_mechanisms": "GSSAPI"}, "'GSSAPI' is not known"),
        ({"users": {"alice": ""}}, "may be empty"),
        ({"users": {"a\0b": "x"}}, "hold a NUL"),
        ({"oauth_validator": "anything"}, "a callable or 'unsecured'"),
        ({"connections_max_reauth_ms": -1}, "0 and above"),
    ],
)
def test_contradiction_is_accepted(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        Security(**settings)
    assert SECRET not in str(raised.value)


def test_password_is_in_the_repr() -> None:
    security = Security(users=USERS, ssl_certfile="c", ssl_key_password=SECRET)
    assert SECRET not in repr(security)
    assert security.sasl_mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    assert [Security().protocol, Security(users=USERS).protocol] == ["PLAINTEXT", "SASL_PLAINTEXT"]


# ---- the dialogue ----------------------------------------------------------------------------------------------------


class World:
    """A node on a manual clock that wants SASL, and as many connections as are asked for."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        settings = {"users": USERS, "oauth_validator": "unsecured", **settings}
        self.cluster = EmbeddedCluster(security=Security(**settings), clock=self.clock).start()
        self.cluster.create_topic("t")
        self.clients: list[RawClient] = []

    def connect(self) -> RawClient:
        self.clients.append(RawClient(self.cluster.bootstrap_servers, 5))
        return self.clients[-1]

    def close(self) -> None:
        for one in self.clients:
            one.socket.close()
        self.cluster.stop()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    one = World(**getattr(request, "param", {}))
    yield one
    one.close()


def handshake(client: RawClient, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return client.ask(SASL_HANDSHAKE, version, mechanism=mechanism)


def token(client: RawClient, data: bytes, version: int = 2) -> Any:
    return client.ask(SASL_AUTHENTICATE, version, auth_bytes=data)


def log_in(client: RawClient, name: str = "alice", password: str = SECRET) -> Any:
    assert handshake(client).error_code == 0
    return token(client, f"\0{name}\0{password}".encode())


def bearer(value: str, other: str = "") -> bytes:
    return f"n,{other},\x01auth=Bearer {value}\x01\x01".encode()


def test_request_before_authentication_is_served(world: World) -> None:
    client = world.connect()
    assert client.ask(API_VERSIONS, 3).error_code == 0
    client.send(METADATA, 9, topics=[])
    assert client.closed()
    client = world.connect()
    handshake(client)
    client.send(API_VERSIONS, 3)
    assert client.closed(), "in the middle of authenticating"
    client = world.connect()
    client.send(SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0" + SECRET.encode())
    assert client.closed(), "no mechanism was named"


def test_unknown_mechanism_is_taken(world: World) -> None:
    client = world.connect()
    answer = handshake(client, "GSSAPI")
    assert (answer.error_code, len(answer.mechanisms)) == (33, 4)
    assert client.closed()


@pytest.mark.parametrize(
    "data",
    [
        b"\0alice\0wrong",
        b"\0nobody\0" + SECRET.encode(),
        b"\0alice\0",
        b"\0\0",
        b"bob\0alice\0" + SECRET.encode(),
        b"\0alice\0" + SECRET.encode() + b"\0",
        b"\xff\0alice\0x",
        b"",
        SECRET.encode(),
    ],
)
def test_wrong_credentials_are_taken(world: World, caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    client = world.connect()
    handshake(client)
    answer = token(client, data)
    assert (answer.error_code, answer.auth_bytes) == (58, b"")
    assert "PLAIN: " in answer.error_message
    assert client.closed()
    assert SECRET not in caplog.text + answer.error_message


def test_answer_tells_whether_a_user_exists(world: World) -> None:
    told = set()
    for name in ("alice", "nobody"):
        client = world.connect()
        handshake(client)
        told.add(token(client, f"\0{name}\0wrong".encode()).error_message)
        exchange, answers = Scram("SCRAM-SHA-256", name, "wrong").begin(), list[Any]()
        client = world.connect()
        handshake(client, "SCRAM-SHA-256")
        for challenge in (b"", None):
            sent = exchange.respond(answers[-1].auth_bytes if challenge is None else challenge)
            assert sent is not None
            answers.append(token(client, sent))
        assert [one.error_code for one in answers] == [0, 58]
        told.add(answers[1].error_message)
    assert len(told) == 2, "one for each mechanism"


def test_salt_of_an_unknown_user_changes(world: World) -> None:
    salts = []
    for nonce in ("one", "two"):
        client = world.connect()
        handshake(client, "SCRAM-SHA-512")
        salts.append(token(client, f"n,,n=nobody,r={nonce}".encode()).auth_bytes.split(b",")[1])
    assert salts[0] == salts[1]


@pytest.mark.parametrize(
    "data",
    [
        b"p=tls-unique,,n=alice,r=x",
        b"n,,n=alice",
        b"n,,n=a=lice,r=x",
        b"n,,r=x",
        b"n,a=bob,n=alice,r=x",
        b"\xff",
        b"n,,n=alice,r=" + b"x" * 5000,
    ],
)
def test_scram_message_of_another_form_is_taken(world: World, data: bytes) -> None:
    client = world.connect()
    handshake(client, "SCRAM-SHA-256")
    assert token(client, data).error_code == 58
    assert client.closed()


def scram_final(first: str, server_first: str, head: str) -> str:
    """What alice proves her password with, for a message that begins with `head`."""
    salt, iterations = (one[2:] for one in server_first.split(",")[1:])
    salted = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), base64.b64decode(salt), int(iterations))
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), f"{first},{server_first},{head}".encode(), "sha256")
    return base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()


@pytest.mark.parametrize("change", ["nothing", "binding", "nonce", "proof", "no proof", "short proof"])
def test_scram_proof_of_something_else_is_taken(world: World, change: str) -> None:
    client = world.connect()
    handshake(client, "SCRAM-SHA-256")
    server_first = token(client, b"n,,n=alice,r=mynonce").auth_bytes.decode()
    nonce = server_first.split(",")[0][2:]
    binding = base64.b64encode(b"y,," if change == "binding" else b"n,,").decode()
    head = f"c={binding},r={nonce}" + "x" * (change == "nonce")
    proof = scram_final("n=alice,r=mynonce", server_first, head)
    if change == "proof":
        proof = base64.b64encode(bytes(32)).decode()
    elif change == "short proof":
        proof = base64.b64encode(base64.b64decode(proof)[:-1]).decode()
    answer = token(client, (head if change == "no proof" else f"{head},p={proof}").encode())
    assert answer.error_code == (0 if change == "nothing" else 58)


def test_bare_tokens_of_the_first_version_do_not_let_in(world: World) -> None:
    client = world.connect()
    assert handshake(client, version=0).error_code == 0
    client.send_frame(b"\0alice\0" + SECRET.encode())
    assert client.receive_frame() == b""
    assert client.ask(METADATA, 9, topics=[]).brokers
    client = world.connect()
    handshake(client, version=0)
    client.send_frame(b"\0alice\0wrong")
    assert client.closed()


def test_frame_of_a_stranger_may_be_large(world: World) -> None:
    client = world.connect()
    client.socket.sendall(struct.pack(">ih", 512 * 1024 + 1, PRODUCE))
    assert client.closed()
    client = world.connect()
    log_in(client)
    assert client.produce("t", batch([b"x" * 900_000])).error_code == 0


def test_dialogue_without_sasl_is_led() -> None:
    with EmbeddedCluster() as cluster, RawClient(cluster.bootstrap_servers) as client:
        assert handshake(client).error_code == 34
        assert token(client, b"x").error_code == 34
        assert client.ask(API_VERSIONS, 3).error_code == 0
    for key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
        assert key in {one.api_key for one in client_versions()}


def client_versions() -> Any:
    with EmbeddedCluster() as cluster, RawClient(cluster.bootstrap_servers) as client:
        return client.ask(API_VERSIONS, 3).api_keys


def test_silent_stranger_stays(world: World) -> None:
    clock = ManualClock()
    world.cluster._call(lambda c: setattr(c, "network_clock", clock))
    silent, known = world.connect(), world.connect()
    log_in(known)
    assert silent.ask(API_VERSIONS, 0).error_code == 0
    clock.advance(10.001)
    assert silent.closed()
    assert known.ask(API_VERSIONS, 0).error_code == 0


def test_injected_refusal_is_not_told(world: World) -> None:
    world.cluster.fail_next(SASL_AUTHENTICATE, 58)
    assert log_in(world.connect()).error_code == 58
    world.cluster.fail_next(SASL_HANDSHAKE, 33)
    assert handshake(world.connect()).error_code == 33
    assert log_in(world.connect()).error_code == 0
    assert [one.error_code for one in world.cluster.requests(SASL_AUTHENTICATE)] == [58, 0]


# ---- sessions (KIP-368) ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [{"connections_max_reauth_ms": 60_000}], indirect=True)
def test_session_never_ends(world: World) -> None:
    client = world.connect()
    assert log_in(client).session_lifetime.total_seconds() == 60
    world.clock.advance(59.9)
    assert client.ask(METADATA, 9, topics=[]).brokers
    assert log_in(client).session_lifetime.total_seconds() == 60
    world.clock.advance(59.9)
    assert client.ask(METADATA, 9, topics=[]).brokers, "the session that was renewed is over"
    world.clock.advance(0.2)
    client.send(METADATA, 9, topics=[])
    assert client.closed()


@pytest.mark.parametrize("world", [{"connections_max_reauth_ms": 60_000}], indirect=True)
def test_renewal_changes_who_the_client_is(world: World) -> None:
    client = world.connect()
    log_in(client)
    answer = log_in(client, "bob", USERS["bob"])
    assert answer.error_code == 58
    assert "cannot become bob's" in answer.error_message
    assert client.closed()
    client = world.connect()
    log_in(client)
    assert handshake(client, "SCRAM-SHA-256").error_code == 0
    assert "takes the mechanism PLAIN" in token(client, b"n,,n=alice,r=x").error_message


def test_renewal_may_come_again_and_again(world: World) -> None:
    client = world.connect()
    log_in(client)
    assert log_in(client).error_code == 0
    assert handshake(client).error_code == 34
    world.clock.advance(1)
    assert log_in(client).error_code == 0


@pytest.mark.parametrize("world", [{}, {"connections_max_reauth_ms": 20_000}], indirect=True)
def test_token_outlives_itself(world: World) -> None:
    client = world.connect()
    handshake(client, "OAUTHBEARER")
    answer = token(client, bearer(jwt(exp=NOW + 30)))
    lifetime = answer.session_lifetime.total_seconds()
    assert lifetime in (30, 20)
    world.clock.advance(lifetime + 0.1)
    client.send(METADATA, 9, topics=[])
    assert client.closed()


@pytest.mark.parametrize(
    "value",
    [
        jwt(exp=NOW - 1),
        jwt(exp=NOW),
        jwt(iat=NOW + 10),
        jwt(alg="HS256", signature="c2ln"),
        jwt(alg="HS256"),
        jwt(signature="c2ln"),
        jwt(sub=""),
        jwt(exp="soon"),  # type: ignore[arg-type]
        "no.jwt",
        "a.b.c",
        "W10.W10.",
    ],
)
def test_bad_token_is_taken(world: World, value: str) -> None:
    client = world.connect()
    handshake(client, "OAUTHBEARER")
    answer = token(client, bearer(value))
    assert (answer.error_code, json.loads(answer.auth_bytes)) == (0, {"status": "invalid_token"})
    assert token(client, b"\x01").error_code == 58
    assert client.closed()


def test_token_lets_another_in(world: World) -> None:
    for other, expected in (("a=alice", b""), ("a=bob", b'{"status": "invalid_token"}')):
        client = world.connect()
        handshake(client, "OAUTHBEARER")
        assert token(client, bearer(jwt(), other)).auth_bytes == expected
    client = world.connect()
    handshake(client, "OAUTHBEARER")
    assert token(client, b"n,,\x01auth=Basic x\x01\x01").error_code == 58


def test_validator_that_fails_ends_the_node() -> None:
    def validator(token: str) -> Any:
        return {"none": None, "tuple": ("bob", NOW + 5)}[token]

    world = World(users={}, oauth_validator=validator)
    for value, expected in (("none", 1), ("missing", 1), ("tuple", 0)):
        client = world.connect()
        handshake(client, "OAUTHBEARER")
        answer = token(client, bearer(value))
        assert bool(answer.auth_bytes) == expected
        assert (answer.session_lifetime.total_seconds() == 5) is not expected
    world.close()


def test_unsigned_tokens_are_taken_without_being_asked_for() -> None:
    assert "OAUTHBEARER" not in Security(users=USERS).sasl_mechanisms


def test_our_clients_session_is_renewed() -> None:
    """KafkaProducer authenticates again before its session ends, on the same connection."""
    with EmbeddedCluster(security=Security(users=USERS, connections_max_reauth_ms=1500)) as cluster:
        settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
        user = {"sasl.username": "alice", "sasl.password": SECRET, "bootstrap.servers": cluster.bootstrap_servers}
        with KafkaProducer({**settings, **user}) as producer:
            producer.send("t", b"1").result(5)
            first = len(cluster.requests(SASL_HANDSHAKE))
            cluster.wait_for_request(SASL_HANDSHAKE, count=first + 1, timeout=5)
            producer.send("t", b"2").result(5)


def test_messages_are_known() -> None:
    assert messages.known_versions(SASL_AUTHENTICATE).stop == 3
    assert issubclass(SaslAuthenticationError, KafkaError)
