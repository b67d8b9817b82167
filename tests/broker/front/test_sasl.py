"""SASL dialogues with the embedded broker, byte by byte; sessions that end; clients that break the rules."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.clock import ManualClock
from kafkabuf.network.sasl.scram import Scram
from kafkabuf.protocol.messages import API_VERSIONS, METADATA, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.broker.front.sasl_script import jwt as any_jwt
from tests.broker.front.test_security import SECRET, USERS
from tests.broker.raw_client import RawClient, batch

NOW = ManualClock().time_ms() // 1000


def jwt(sub: str = "alice", exp: Any = NOW + 60, alg: str = "none", signature: str = "", **claims: Any) -> str:
    return any_jwt({"alg": alg}, signature, sub=sub, exp=exp, **claims)


# ---- the dialogue ----------------------------------------------------------------------------------------------------


class World:
    """A node with SASL on a manual clock, and connections to it."""

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


def test_request_before_authentication_is_refused(world: World) -> None:
    client = world.connect()
    assert client.ask(API_VERSIONS, 3).error_code == 0
    client.send(METADATA, 9, topics=[])
    assert client.closed()
    client = world.connect()
    handshake(client)
    assert client.ask(API_VERSIONS, 3).error_code == 34
    assert client.closed(), "in the middle of authenticating"
    client = world.connect()
    handshake(client)
    client.send(PRODUCE, 9, acks=1)
    assert client.closed()
    client = world.connect()
    client.send(SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0" + SECRET.encode())
    assert client.closed(), "no mechanism was named"


def test_unknown_mechanism_is_refused(world: World) -> None:
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
def test_wrong_credentials_are_refused(world: World, caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    client = world.connect()
    handshake(client)
    answer = token(client, data)
    assert (answer.error_code, answer.auth_bytes) == (58, b"")
    assert "PLAIN: " in answer.error_message
    assert client.closed()
    assert SECRET not in caplog.text + answer.error_message


def test_response_never_tells_whether_a_user_exists(world: World) -> None:
    texts = set()
    for name in ("alice", "nobody"):
        client = world.connect()
        handshake(client)
        texts.add(token(client, f"\0{name}\0wrong".encode()).error_message)
        exchange, answers = Scram("SCRAM-SHA-256", name, "wrong").begin(), list[Any]()
        client = world.connect()
        handshake(client, "SCRAM-SHA-256")
        for challenge in (b"", None):
            sent = exchange.respond(answers[-1].auth_bytes if challenge is None else challenge)
            assert sent is not None
            answers.append(token(client, sent))
        assert [answer.error_code for answer in answers] == [0, 58]
        texts.add(answers[1].error_message)
    assert len(texts) == 2, "one text for each mechanism"


def test_salt_of_an_unknown_user_never_changes(world: World) -> None:
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
def test_malformed_scram_message_is_refused(world: World, data: bytes) -> None:
    client = world.connect()
    handshake(client, "SCRAM-SHA-256")
    assert token(client, data).error_code == 58
    assert client.closed()


def scram_final(first: str, server_first: str, head: str) -> str:
    """The proof of alice's password, for a final message that begins with `head`."""
    salt, iterations = (one[2:] for one in server_first.split(",")[1:])
    salted = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), base64.b64decode(salt), int(iterations))
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), f"{first},{server_first},{head}".encode(), "sha256")
    return base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()


@pytest.mark.parametrize("change", ["nothing", "binding", "nonce", "proof", "no proof", "short proof"])
def test_only_the_right_scram_proof_is_accepted(world: World, change: str) -> None:
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


def test_bare_tokens_of_handshake_version_0_are_accepted(world: World) -> None:
    client = world.connect()
    assert handshake(client, version=0).error_code == 0
    client.send_frame(b"\0alice\0" + SECRET.encode())
    assert client.receive_frame() == b""
    assert client.ask(METADATA, 9, topics=[]).brokers
    client = world.connect()
    handshake(client, version=0)
    client.send_frame(b"\0alice\0wrong")
    assert client.closed()


def test_large_frame_needs_authentication(world: World) -> None:
    client = world.connect()
    client.socket.sendall(struct.pack(">ih", 512 * 1024 + 1, PRODUCE))
    assert client.closed()
    client = world.connect()
    log_in(client)
    assert client.produce("t", batch([b"x" * 900_000])).error_code == 0


@pytest.mark.parametrize("world", [{"connections_max_reauth_ms": 60_000}], indirect=True)
def test_client_that_authenticates_again_sends_no_large_token(world: World) -> None:
    """A bare token may look like a Produce request, which may have a hundred MiB."""
    client = world.connect()
    log_in(client)
    assert handshake(client, version=0).error_code == 0
    client.socket.sendall(struct.pack(">ih", 512 * 1024 + 1, PRODUCE))
    assert client.closed()


def test_dialogue_without_sasl_is_refused() -> None:
    with EmbeddedCluster() as cluster, RawClient(cluster.bootstrap_servers) as client:
        assert handshake(client).error_code == 34
        assert token(client, b"x").error_code == 34
        assert client.ask(API_VERSIONS, 3).error_code == 0
        assert {SASL_HANDSHAKE, SASL_AUTHENTICATE} <= {one.api_key for one in client.ask(API_VERSIONS, 3).api_keys}


def test_silent_client_is_closed_before_it_authenticates(world: World) -> None:
    clock = ManualClock()
    world.cluster._call(lambda c: setattr(c, "network_clock", clock))
    silent, known = world.connect(), world.connect()
    log_in(known)
    assert silent.ask(API_VERSIONS, 0).error_code == 0
    clock.advance(10.001)
    assert silent.closed()
    assert known.ask(API_VERSIONS, 0).error_code == 0


def test_injected_error_reaches_the_sasl_apis(world: World) -> None:
    world.cluster.fail_next(SASL_AUTHENTICATE, 58)
    assert log_in(world.connect()).error_code == 58
    world.cluster.fail_next(SASL_HANDSHAKE, 33)
    assert handshake(world.connect()).error_code == 33
    assert log_in(world.connect()).error_code == 0
    assert [one.error_code for one in world.cluster.requests(SASL_AUTHENTICATE)] == [58, 0]


# ---- sessions (KIP-368) ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [{"connections_max_reauth_ms": 60_000}], indirect=True)
def test_session_ends_unless_it_is_renewed(world: World) -> None:
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
def test_renewal_keeps_principal_and_mechanism(world: World) -> None:
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


def test_session_without_an_end_cannot_be_renewed(world: World) -> None:
    client = world.connect()
    log_in(client)
    assert handshake(client).error_code == 34


@pytest.mark.parametrize("world", [{"connections_max_reauth_ms": 60_000}], indirect=True)
def test_second_renewal_within_a_second_is_refused(world: World) -> None:
    client = world.connect()
    log_in(client)
    assert log_in(client).error_code == 0
    assert handshake(client).error_code == 34
    world.clock.advance(1)
    assert log_in(client).error_code == 0


def test_token_may_be_valid_for_longer_than_a_client_can_count(world: World) -> None:
    client = world.connect()
    handshake(client, "OAUTHBEARER")
    assert token(client, bearer(jwt(exp=1e308))).session_lifetime.total_seconds() > 0


@pytest.mark.parametrize("world", [{}, {"connections_max_reauth_ms": 20_000}], indirect=True)
def test_session_ends_with_its_token(world: World) -> None:
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
        jwt(exp="soon"),
        jwt(exp=math.inf),
        jwt(exp=math.nan),
        jwt(exp=10**400),
        jwt(exp=True),
        jwt(iat=math.nan),
        jwt(iat=-math.inf),
        jwt(nbf=NOW + 10),
        jwt(nbf=math.nan),
        jwt(nbf="now"),
        "no.jwt",
        "a.b.c",
        "W10.W10.",
    ],
)
def test_bad_token_is_refused(world: World, value: str) -> None:
    client = world.connect()
    handshake(client, "OAUTHBEARER")
    answer = token(client, bearer(value))
    assert (answer.error_code, json.loads(answer.auth_bytes)) == (0, {"status": "invalid_token"})
    assert token(client, b"\x01").error_code == 58
    assert client.closed()


def test_validator_that_gives_no_time_as_the_end_of_a_token_refuses_it() -> None:
    world = World(users={}, oauth_validator=lambda token: ("bob", math.nan))
    try:
        client = world.connect()
        handshake(client, "OAUTHBEARER")
        assert token(client, bearer("any")).error_code == 58
    finally:
        world.close()


def test_token_authenticates_only_its_principal(world: World) -> None:
    for other, expected in (("a=alice", 0), ("a=bob", 58)):
        client = world.connect()
        handshake(client, "OAUTHBEARER")
        assert token(client, bearer(jwt(), other)).error_code == expected
    client = world.connect()
    handshake(client, "OAUTHBEARER")
    assert token(client, b"n,,\x01auth=Basic x\x01\x01").error_code == 58


def test_validator_that_raises_refuses_the_token() -> None:
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


def test_unsigned_tokens_need_to_be_configured() -> None:
    assert "OAUTHBEARER" not in Security(users=USERS).sasl_mechanisms


def test_kafkabuf_producer_renews_its_session() -> None:
    """KafkaProducer authenticates again before its session ends, on the same connection."""
    with EmbeddedCluster(security=Security(users=USERS, connections_max_reauth_ms=1500)) as cluster:
        settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
        user = {"sasl.username": "alice", "sasl.password": SECRET, "bootstrap.servers": cluster.bootstrap_servers}
        with KafkaProducer({**settings, **user}) as producer:
            producer.send("t", b"1").result(5)
            first = len(cluster.requests(SASL_HANDSHAKE))
            cluster.wait_for_request(SASL_HANDSHAKE, count=first + 1, timeout=5)
            producer.send("t", b"2").result(5)
