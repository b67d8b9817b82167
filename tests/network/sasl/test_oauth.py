"""OAUTHBEARER: tokens from a callable of the user, and when they are renewed."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import SaslAuthenticationError
from kafkabuf.network.sasl import oauth
from kafkabuf.network.sasl.oauth import OAuthBearer
from tests.network.security_support import SecureBroker, failure, secured
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


@pytest.mark.parametrize("claims", [{"exp": 10**400}, {"exp": float("inf")}, {"exp": None}, [], "x", {}])
def test_token_without_a_useful_expiry_serves_one_connection(claims: Any) -> None:
    asked: list[int] = []

    def provider() -> str:
        asked.append(1)
        return jwt(claims)

    source = bearer(ManualClock(), provider)
    source.token()
    source.token()
    assert len(asked) == 2


def jwt(claims: Any) -> str:
    return "h." + base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode() + ".s"


def test_clock_that_is_set_back_keeps_no_token_beyond_its_life() -> None:
    clock = ManualClock()
    asked: list[int] = []

    def provider() -> tuple[str, float]:
        asked.append(1)
        return TOKEN, clock.time_ms() / 1000 + 1000

    source = bearer(clock, provider)
    source.token()
    clock._wall_ms -= 365 * 86_400_000
    clock.advance(699)
    assert source.fresh
    clock.advance(2)
    assert not source.fresh
    source.token()
    assert len(asked) == 2


def test_clock_that_is_set_forward_renews_the_token() -> None:
    clock = ManualClock()
    source = bearer(clock, lambda: (TOKEN, clock.time_ms() / 1000 + 1000))
    source.token()
    clock._wall_ms += 701_000
    assert not source.fresh
    assert source.token().value == TOKEN
    assert source.fresh
