"""A broker that lies to MIT's library in each step of GSSAPI, with the true library on its side too."""

from __future__ import annotations

import importlib
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkabuf.clock import SystemClock
from kafkabuf.errors import NetworkError, SaslAuthenticationError
from kafkabuf.network.sasl import kerberos
from rigs.kdc import REALM, Kdc
from tests.network.security_support import SecureBroker, ServerExchange, failure, secured
from tests.network.support import config_for

pytest_plugins = ["tests.real.kerberos_fixtures"]

# By name, as in kafkabuf: with the package or without it, type checkers find the same.
gssapi: Any = importlib.import_module("gssapi")
OFFER = b"\x07\x00\x10\x00"


class Acceptor:
    """The broker's side of one authentication."""

    def __init__(self, keytab: Path) -> None:
        store = {b"keytab": str(keytab).encode()}
        mechanisms = [gssapi.MechType.kerberos]
        self._credentials = gssapi.raw.acquire_cred_from(store, None, mechs=mechanisms, usage="accept").creds
        self._context: Any = None

    def prove(self, token: bytes) -> bytes:
        step = gssapi.raw.accept_sec_context(token, self._credentials, self._context)
        self._context = step.context
        return bytes(step.token)

    def wrap(self, message: bytes, confidential: bool = False) -> bytes:
        return bytes(gssapi.raw.wrap(self._context, message, confidential).message)

    def unwrap(self, message: bytes) -> bytes:
        return bytes(gssapi.raw.unwrap(self._context, message).message)


@pytest.fixture(scope="module")
def keytab(kdc: Kdc) -> Path:
    kdc.add("fake/localhost")
    return kdc.keytab("fake/localhost")


def client_settings(kdc: Kdc) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "fake",
        "sasl_kerberos_keytab": str(kdc.folder / "alice.keytab"),
        "sasl_kerberos_principal": f"alice@{REALM}",
    }


@pytest.fixture(scope="module")
def mechanism(kdc: Kdc) -> kerberos.Kerberos:
    return kerberos.mechanism(config_for(**client_settings(kdc)), {}, SystemClock(), lambda: 0.5)


class Dialogue:
    """A client's exchange and the broker that it talks to, up to the step that a test chooses."""

    def __init__(self, mechanism: kerberos.Kerberos, keytab: Path) -> None:
        self.client = mechanism.begin("localhost")
        self.broker = Acceptor(keytab)
        self.ticket = self.client.respond(b"") or b""
        self.proof = self.broker.prove(self.ticket)

    def complete(self) -> Dialogue:
        assert self.client.respond(self.proof) == b""
        return self


def test_both_sides_agree(mechanism: kerberos.Kerberos, keytab: Path) -> None:
    dialogue = Dialogue(mechanism, keytab).complete()
    choice = dialogue.client.respond(dialogue.broker.wrap(OFFER))
    assert choice is not None
    assert dialogue.broker.unwrap(choice) == b"\x01\x00\x00\x00" + f"alice@{REALM}".encode()
    assert dialogue.client.respond(b"") is None


def refused(dialogue: Dialogue, token: bytes) -> str:
    with pytest.raises(SaslAuthenticationError) as caught:
        dialogue.client.respond(token)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 1000
    return text


@pytest.mark.parametrize("length", [1, 65_536, 65_537, 500_000])
def test_garbage_in_place_of_the_proof_is_refused(mechanism: kerberos.Kerberos, keytab: Path, length: int) -> None:
    assert re.search("not Kerberos's|a token of", refused(Dialogue(mechanism, keytab), b"\x60" * length))


def test_proof_of_another_dialogue_is_refused(mechanism: kerberos.Kerberos, keytab: Path) -> None:
    refused(Dialogue(mechanism, keytab), Dialogue(mechanism, keytab).proof)


def test_clients_own_token_is_no_proof(mechanism: kerberos.Kerberos, keytab: Path) -> None:
    dialogue = Dialogue(mechanism, keytab)
    refused(dialogue, dialogue.ticket)


# How the bytes of a wrapped message were rotated (RFC 4121, 4.2.5): its checksum does not cover this number.
ROTATION = (6, 7)


def changed(token: bytes, place: int) -> bytes:
    copy = bytearray(token)
    copy[place] ^= 0x55
    return bytes(copy)


def test_any_change_of_the_encrypted_part_of_the_proof_is_refused(mechanism: kerberos.Kerberos, keytab: Path) -> None:
    """The frame before it has numbers on which nothing depends, and which the library passes over."""
    for place in range(1, 60, 3):
        dialogue = Dialogue(mechanism, keytab)
        refused(dialogue, changed(dialogue.proof, -place))
        dialogue = Dialogue(mechanism, keytab)
        refused(dialogue, dialogue.proof[:-place])


def test_any_change_of_the_offer_is_refused(mechanism: kerberos.Kerberos, keytab: Path) -> None:
    length = len(Dialogue(mechanism, keytab).complete().broker.wrap(OFFER))
    for place in range(length):
        if place not in ROTATION:
            dialogue = Dialogue(mechanism, keytab).complete()
            refused(dialogue, changed(dialogue.broker.wrap(OFFER), place))
        dialogue = Dialogue(mechanism, keytab).complete()
        refused(dialogue, dialogue.broker.wrap(OFFER)[:place])


@pytest.mark.parametrize("offer", [b"", b"\x01\x00\x00", b"\x06\x00\x10\x00", OFFER * 2, b"\x01" * 60_000])
def test_offer_that_is_none_is_refused(mechanism: kerberos.Kerberos, keytab: Path, offer: bytes) -> None:
    dialogue = Dialogue(mechanism, keytab).complete()
    refused(dialogue, dialogue.broker.wrap(offer))


def test_offer_of_another_dialogue_is_refused(mechanism: kerberos.Kerberos, keytab: Path) -> None:
    other = Dialogue(mechanism, keytab).complete()
    refused(Dialogue(mechanism, keytab).complete(), other.broker.wrap(OFFER))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(token=st.binary(max_size=300), steps=st.integers(0, 2))
def test_random_token_is_refused_in_each_step(
    mechanism: kerberos.Kerberos, keytab: Path, token: bytes, steps: int
) -> None:
    dialogue = Dialogue(mechanism, keytab)
    if steps:
        dialogue.complete()
    if steps == 2:
        assert dialogue.client.respond(dialogue.broker.wrap(OFFER)) is not None
        token = token or b"x"  # an empty token is the right end
    refused(dialogue, token)


# ---- over a connection -----------------------------------------------------------------------------------------------


def broker_that_closes(keytab: Path, at: int) -> SecureBroker:
    """It answers `at` tokens of GSSAPI, and closes the connection in place of the next answer."""

    class Closing(SecureBroker):
        def _authenticate(self, request: Any) -> None:
            if len(self.tokens) % 3 == at:
                self.tokens.append(b"")
                request.sock.shutdown(socket.SHUT_RDWR)
            else:
                SecureBroker._authenticate(self, request)

    def begin() -> ServerExchange:
        broker = Acceptor(keytab)
        answers: Iterator[ServerExchange] = iter([broker.prove, lambda _: broker.wrap(OFFER), lambda _: b""])
        return lambda token: next(answers)(token)

    return Closing(exchanges={"GSSAPI": begin})


@pytest.mark.parametrize("at", range(3))
def test_broker_that_closes_is_no_refusal(kdc: Kdc, keytab: Path, at: int) -> None:
    """It may be restarting: the client tries again."""
    with secured(broker_that_closes(keytab, at), "localhost", **client_settings(kdc)) as (rigged, broker):
        error = failure(rigged)
        assert isinstance(error, NetworkError)
        assert len(broker.tokens) == at + 1


def test_no_key_ticket_or_token_is_logged(kdc: Kdc, keytab: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    broker = broker_that_closes(keytab, 2)
    with secured(broker, "localhost", **client_settings(kdc)) as (rigged, _):
        shown = str(failure(rigged)) + repr(vars(rigged.client.connections)) + caplog.text
    listed = kdc.run("klist", "-K", "-k", str(kdc.folder / "alice.keytab"))
    secrets = re.findall(r"\(0x([0-9a-f]+)\)", listed)
    assert secrets
    for token in filter(None, broker.tokens):
        secrets += [token.hex(), repr(token[20:40])[2:-1]]
    assert [secret for secret in secrets if secret in shown] == []
