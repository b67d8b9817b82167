"""GSSAPI by itself, with a Kerberos library of the test's: tests/kerberos/ has a real KDC and real Kafka."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkabuf import KafkaProducer
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, KafkaError, MissingExtraError, NetworkError, SaslAuthenticationError
from kafkabuf.network.sasl import kerberos
from kafkabuf.network.sasl.gss import Gss
from kafkabuf.network.sasl.kerberos_host import kerberos_host
from kafkabuf.network.sasl.kerberos_login import Login, Source
from kafkabuf.network.sasl.kerberos_settings import credentials_source, service_name
from kafkabuf.network.sasl.mechanisms import jaas_options
from kafkabuf.process.background import CallsInTurn
from tests.network.sasl import fake_gssapi
from tests.network.sasl.fake_gssapi import FakeGssapi, GSSError, kerberos_server
from tests.network.security_support import SecureBroker, failure, secured
from tests.network.support import config_for, produce

ALICE = "alice@REALM"
BROKER = "kafka/kafka.test@REALM"
MODULE = "com.sun.security.auth.module.Krb5LoginModule"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGssapi]:
    fake = FakeGssapi()
    monkeypatch.setitem(sys.modules, "gssapi", fake)
    # No test asks DNS: a short name leads nowhere.
    monkeypatch.setattr("kafkabuf.network.sasl.kerberos.kerberos_host", lambda host: host)
    yield fake
    fake.open.set()


@pytest.fixture
def keytab(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "alice.keytab"
    file.write_bytes(b"\x05\x02")
    return {
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
        "sasl_kerberos_keytab": str(file),
        "sasl_kerberos_principal": ALICE,
    }


def broker(**lies: bytes) -> SecureBroker:
    return SecureBroker(exchanges={"GSSAPI": kerberos_server(ALICE, BROKER, **lies)})


# ---- the exchange ----------------------------------------------------------------------------------------------------


def test_keytab_authenticates(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    with secured(broker(), **keytab) as (rigged, server):
        rigged.connect(0)
        rigged.client.send(0, produce(b"records"))
        rigged.poll_until(lambda: server.requests.qsize())
        assert server.early == []
        # RFC 4752: no layer, a size of 0, the client's name.
        assert server.tokens[:3] == [f"AP-REQ {ALICE} {BROKER}".encode(), b"", b"W:\x01\x00\x00\x00alice@REALM"]


def test_no_call_of_the_library_runs_in_the_senders_thread(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    with secured(broker(), **keytab) as (rigged, _):
        rigged.connect(0)
    assert library.threads == {"kafkabuf-sasl-gssapi"}


def test_connections_share_a_ticket(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    with secured(broker(), **keytab) as (rigged, server):
        rigged.connect(0)
        server.drop_connections()
        rigged.poll_until(lambda: not rigged.client.ready(0))
        rigged.clock.advance(5)
        rigged.connect(0)
    assert sum(call.startswith("log_in") for call in library.calls) == 1


def test_session_is_renewed_on_its_connection(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    server = SecureBroker(exchanges={"GSSAPI": kerberos_server(ALICE, BROKER)}, session_ms=10_000)
    with secured(server, **keytab) as (rigged, _):
        rigged.connect(0)
        before = len(server.handshakes)
        rigged.clock.advance(9.6)
        rigged.poll_until(lambda: len(server.handshakes) > before)
        rigged.connect(0)
        assert len(server.greetings) <= 2  # the bootstrap server and the node: no connection was opened again


@pytest.mark.parametrize(
    ("lies", "words"),
    [
        ({"proof": b"garbage"}, "a token that is not Kerberos's"),
        ({"proof": b"x" * 65537}, "a token of 65537 bytes"),
        ({"proof": b"AP-REP more", "layers": b"AP-REP more"}, "found b'again'"),
        ({"layers": b"\x01\x00\x00\x00"}, "changed on its way"),
        ({"layers": b"W:\x01\x00\x00"}, "of 3 bytes, and not of 4"),
        ({"layers": b"W:\x06\x00\x10\x00"}, r"offer of security layers \(6\) without"),
        ({"layers": b"W:"}, "of 0 bytes"),
        ({"end": b"more"}, "a further token after the last"),
    ],
)
def test_broker_that_lies_is_refused(
    library: FakeGssapi, keytab: dict[str, Any], lies: dict[str, bytes], words: str
) -> None:
    with secured(broker(**lies), **keytab) as (rigged, _):
        error = failure(rigged)
    assert isinstance(error, SaslAuthenticationError)
    with pytest.raises(SaslAuthenticationError, match=words):
        raise error


def exchange_of(library: FakeGssapi, keytab: dict[str, Any]) -> kerberos.KerberosExchange:
    config = config_for(security_protocol="SASL_PLAINTEXT", **keytab)
    made = kerberos.mechanism(config, {}, ManualClock(), lambda: 0.5)
    return made.begin("kafka.test")


def test_broker_that_never_proves_itself_is_refused(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    exchange = exchange_of(library, keytab)
    exchange.respond(b"")
    for _ in range(4):
        assert exchange.respond(b"AP-REP more") == b"again"
    with pytest.raises(SaslAuthenticationError, match="too many"):
        exchange.respond(b"AP-REP more")


def test_context_without_proof_is_refused(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    library.proves = False
    with pytest.raises(SaslAuthenticationError, match="it may be an impostor"):
        exchange_of(library, keytab).respond(b"")


def test_empty_token_never_reaches_the_library(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    exchange = exchange_of(library, keytab)
    exchange.respond(b"")
    with pytest.raises(SaslAuthenticationError, match="no token of Kerberos's"):
        exchange.respond(b"")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.lists(
        st.one_of(
            st.binary(max_size=80), st.sampled_from([b"AP-REP", b"W:\x07\0\0\0", b"W:\x01\0\0\0", b"AP-REP more"])
        ),
        max_size=8,
    )
)
def test_any_tokens_end_in_an_agreement_or_in_an_error(
    library: FakeGssapi, keytab: dict[str, Any], tokens: list[bytes]
) -> None:
    exchange = exchange_of(library, keytab)
    challenges = [b"", *tokens]
    for i, challenge in enumerate(challenges):
        try:
            response = exchange.respond(challenge)
        except KafkaError:
            return
        if response is None:
            # Only after the proof, an offer of layer 1, and an empty end.
            assert challenges[i - 2 : i + 1][0] == b"AP-REP"
            assert challenges[i - 1][2] & 1
            assert challenge == b""
            return


# ---- a KDC that is slow, or not there --------------------------------------------------------------------------------


def kerberos_threads() -> int:
    return sum(thread.name.startswith("kafkabuf-sasl-gssapi") for thread in threading.enumerate())


def test_kdc_that_hangs_costs_one_thread_for_a_host(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    library.open.clear()
    with secured(broker(), **keytab, request_timeout_ms=1000, delivery_timeout_ms=5000) as (rigged, server):
        waiting = rigged.client.connections.authenticator
        assert waiting is not None
        for _ in range(4):
            rigged.poll_until(lambda: waiting.waiting)
            rigged.clock.advance(1.1)
            rigged.poll_until(lambda: not waiting.waiting)
            rigged.clock.advance(2)
        assert len(server.handshakes) >= 4
        error = rigged.client.last_error(-1)
        assert isinstance(error, NetworkError)
        assert str(error).endswith("not established in time: " + kerberos.Kerberos.slow_step)
        assert kerberos_threads() == 1
        library.open.set()
        rigged.connect(0)
    # The attempts that waited for their turn and were given up have asked nobody.
    assert sum(call.startswith("log_in") for call in library.calls) == 1


def test_unreachable_kdc_is_tried_again(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    library.errors["log_in"] = GSSError(fake_gssapi.NO_CREDENTIALS, fake_gssapi.UNREACHABLE)
    with secured(broker(), **keytab) as (rigged, _):
        error = failure(rigged)
        assert type(error) is NetworkError
        assert "no KDC answers" in str(error)
        assert "broker may have refused" not in str(error)
        library.errors.clear()
        rigged.clock.advance(5)
        rigged.connect(0)


def test_login_that_fails_fails_all_who_wait_for_it(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    """They would ask a KDC that does not answer one after the other, for half a minute each."""
    config = config_for(security_protocol="SASL_PLAINTEXT", **keytab)
    login = Login(Source(ALICE, keytab["sasl_kerberos_keytab"], None), config, Gss(), ManualClock(), lambda: 0.5)
    library.open.clear()
    found: list[str] = []
    arrived = threading.Semaphore(0)

    class Lock:
        lock = threading.Lock()

        def __enter__(self) -> None:
            arrived.release()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    login._one_at_a_time = Lock()  # type: ignore[assignment]

    def log_in() -> None:
        try:
            login.credentials()
        except KafkaError as error:
            found.append(str(error))

    threads = [threading.Thread(target=log_in) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert all(arrived.acquire(timeout=10) for _ in threads)
    library.unreachable = True
    library.open.set()
    for thread in threads:
        thread.join(10)
    assert len(found) == 4
    assert all("no KDC answers" in text for text in found)
    assert sum(call.startswith("log_in") for call in library.calls) == 1


# ---- what errors say -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("major", "code", "words"),
    [
        (fake_gssapi.NO_CREDENTIALS, 6, "does not know principal alice@REALM: check its name"),
        (fake_gssapi.NO_CREDENTIALS, 18, "expired or locked"),
        (fake_gssapi.NO_CREDENTIALS, 24, "export the keytab again"),
        (fake_gssapi.NO_CREDENTIALS, 31, "not the present key of principal alice@REALM"),
        (fake_gssapi.NO_CREDENTIALS, 37, "synchronise them"),
        (fake_gssapi.NO_CREDENTIALS, 148, "synchronise them"),
        (fake_gssapi.NO_CREDENTIALS, 154, "krb5.conf names no KDC"),
        (fake_gssapi.NO_CREDENTIALS, 156, "port 88"),
        (fake_gssapi.NO_CREDENTIALS, 195, "has no key of principal alice@REALM"),
        (fake_gssapi.NO_CREDENTIALS, 224, "write user@REALM"),
        (fake_gssapi.FAILURE, 60, "it failed to log in: (the library's text"),
    ],
)
def test_error_of_a_login_says_what_to_do(
    library: FakeGssapi, keytab: dict[str, Any], major: int, code: int, words: str
) -> None:
    library.errors["log_in"] = GSSError(major, code)
    with pytest.raises(NetworkError if code in (154, 156) else SaslAuthenticationError) as caught:
        exchange_of(library, keytab).respond(b"")
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.retriable == (code in (154, 156))


def test_unknown_broker_names_its_principal(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    library.errors["init_sec_context"] = GSSError(fake_gssapi.FAILURE, fake_gssapi.NO_BROKER)
    with pytest.raises(SaslAuthenticationError, match=r"as kafka/kafka\.test: check sasl\.kerberos"):
        exchange_of(library, keytab).respond(b"")


EXPIRED = [GSSError(fake_gssapi.EXPIRED), GSSError(fake_gssapi.EXPIRED_CONTEXT), GSSError(fake_gssapi.FAILURE, 32)]


@pytest.mark.parametrize("error", EXPIRED)
def test_ticket_of_a_keytab_that_ends_under_way_is_no_refusal(
    library: FakeGssapi, keytab: dict[str, Any], error: GSSError
) -> None:
    """The next attempt logs in again."""
    library.errors["init_sec_context"] = error
    with pytest.raises(NetworkError, match="the ticket of principal alice@REALM has expired"):
        exchange_of(library, keytab).respond(b"")


@pytest.mark.parametrize("error", EXPIRED)
def test_expired_ticket_of_a_cache_asks_for_kinit(library: FakeGssapi, keytab: dict[str, Any], error: GSSError) -> None:
    library.caches["DEFAULT"] = ALICE, 100
    library.errors["init_sec_context"] = error
    del keytab["sasl_kerberos_keytab"]
    with pytest.raises(SaslAuthenticationError, match="in the default ticket cache has expired: run kinit again"):
        exchange_of(library, keytab).respond(b"")


def test_missing_ticket_cache_asks_for_kinit(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    del keytab["sasl_kerberos_keytab"], keytab["sasl_kerberos_principal"]
    with pytest.raises(SaslAuthenticationError, match="default ticket cache has no ticket: run kinit"):
        exchange_of(library, keytab).respond(b"")


def test_keytab_that_is_not_there_is_named(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    with pytest.raises(SaslAuthenticationError, match="/nowhere of alice@REALM cannot be read here: No such file"):
        exchange_of(library, keytab | {"sasl_kerberos_keytab": "/nowhere"}).respond(b"")
    assert not any(call.startswith("log_in") for call in library.calls)


def test_missing_package_names_the_extra_and_the_headers(
    monkeypatch: pytest.MonkeyPatch, keytab: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(MissingExtraError, match=r'kafkabuf\[gssapi\]".*apt install libkrb5-dev'):
        KafkaProducer(bootstrap_servers="127.0.0.1:9", security_protocol="SASL_PLAINTEXT", **keytab)


# ---- settings --------------------------------------------------------------------------------------------------------


def source_of(text: str = "", **given: str) -> tuple[str, Source]:
    config = config_for(security_protocol="SASL_PLAINTEXT", **{"sasl_kerberos_service_name": "kafka", **given})
    options = jaas_options(f"{MODULE} required {text};", "GSSAPI") if text else {}
    return service_name(config, options), credentials_source(config, options)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ('useKeyTab=true storeKey=true keyTab="/k" principal="a@R" doNotPrompt=true', Source("a@R", "/k", None)),
        ('useKeyTab="True" keyTab="file:/k" principal="a@R" useTicketCache=true', Source("a@R", "file:/k", None)),
        ("useTicketCache=true renewTGT=true", Source(None, None, None)),
        ('useTicketCache=true ticketCache="/c" principal="a@R" isInitiator=true', Source("a@R", None, "/c")),
    ],
)
def test_jaas_text_gives_the_credentials(text: str, source: Source) -> None:
    assert source_of(text + ' serviceName="kafka"') == ("kafka", source)


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ('useKeyTab=true keyTab="/k"', {}, "name one of them as the principal"),
        ('useKeyTab=true principal="a@R"', {}, "needs keyTab"),
        ('keyTab="/k" principal="a@R"', {}, "keyTab has no effect without useKeyTab=true"),
        ('useKeyTab=false ticketCache="/c"', {}, "ticketCache has no effect without useTicketCache=true"),
        ("useTicketCache=true isInitiator=false", {}, "is for servers"),
        ("useTicketCache=true useFirstPass=true", {}, "options not supported: useFirstPass"),
        ('useTicketCache=true serviceName="other"', {}, "is kafka, and serviceName in sasl.jaas.config is other"),
        ("useTicketCache=true", {"sasl_kerberos_keytab": "/k"}, "both give credentials"),
        ("", {"sasl_kerberos_keytab": "/k"}, "name one of them as the principal"),
        ("", {"sasl_kerberos_service_name": "kafka/host@REALM"}, "found 'kafka/host@REALM'"),
    ],
)
def test_wrong_kerberos_settings_are_refused(text: str, given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source_of(text, **given)
    assert words in str(caught.value)


def test_option_debug_says_what_to_use(caplog: pytest.LogCaptureFixture) -> None:
    source_of("useTicketCache=true debug=true")
    assert "KRB5_TRACE" in caplog.text


def test_command_line_of_librdkafka_is_no_path_of_kinit() -> None:
    with pytest.raises(ConfigError, match=r"sasl\.kerberos\.kinit\.cmd: expected the path of a program"):
        config_for(sasl_kerberos_kinit_cmd='kinit -R -t "%{sasl.kerberos.keytab}"')


# ---- names -----------------------------------------------------------------------------------------------------------


def dns(monkeypatch: pytest.MonkeyPatch, forward: dict[str, str], reverse: dict[str, str]) -> None:
    def lookup(host: str, *_: Any, **__: Any) -> list[Any]:
        if host not in forward:
            raise socket.gaierror(-2, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (forward[host], 0))]

    def reverse_lookup(address: str) -> tuple[str, list[str], list[str]]:
        if address not in reverse:
            raise socket.herror(1, "unknown")
        return reverse[address], [], [address]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setattr(socket, "gethostbyaddr", reverse_lookup)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("kafka1", "kafka1.example.com"),  # a short name gets longer
        ("alias.example.com", "alias.example.com"),  # no name becomes another
        ("KAFKA1.Example.com.", "kafka1.example.com"),
        ("nowhere.example.com", "nowhere.example.com"),
        ("10.0.0.1", "kafka1.example.com"),
        ("10.0.0.2", "10.0.0.2"),  # the name that it leads back to has another address
        ("10.0.0.3", "10.0.0.3"),
    ],
)
def test_host_is_named_as_java_names_it(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    forward = dict.fromkeys(("kafka1", "alias.example.com", "kafka1.example.com"), "10.0.0.1")
    dns(monkeypatch, forward, {"10.0.0.1": "kafka1.example.com", "10.0.0.2": "kafka1.example.com"})
    assert kerberos_host(host) == name


@pytest.mark.parametrize("host", ["a/b", "a@EVIL", "a b", "", "a\0b"])
def test_host_that_would_change_the_principal_is_refused(host: str) -> None:
    with pytest.raises(SaslAuthenticationError, match="cannot be the host"):
        kerberos_host(host)


def test_name_that_dns_gives_never_replaces_the_broker(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    """MIT's library follows aliases and addresses: whoever answers for DNS could choose the broker."""
    library.aliases["kafka.test"] = "evil.example.com"
    assert exchange_of(library, keytab).respond(b"") == f"AP-REQ {ALICE} {BROKER}".encode()


# ---- renewal ---------------------------------------------------------------------------------------------------------


def logins(library: FakeGssapi) -> int:
    return sum(call.startswith("log_in") for call in library.calls)


def test_ticket_is_renewed_before_it_ends(library: FakeGssapi, keytab: dict[str, Any]) -> None:
    """At 0.8 + 0.05 x 0.5 of its life, though no connection needs it then."""
    library.lifetime = 1000
    with secured(broker(), **keytab, connections_max_idle_ms=-1) as (rigged, _):
        rigged.connect(0)
        rigged.clock.advance(824)
        rigged.settle()
        assert logins(library) == 1
        library.age = 825
        rigged.clock.advance(2)
        rigged.poll_until(lambda: logins(library) == 2)
        assert len(library.caches) == 2  # the old ticket may be in use


def test_renewal_that_fails_is_tried_again_and_keeps_the_ticket(
    library: FakeGssapi, keytab: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    library.lifetime = 1000
    with secured(broker(), **keytab, connections_max_idle_ms=-1) as (rigged, server):
        rigged.connect(0)
        library.errors["log_in"] = GSSError(fake_gssapi.NO_CREDENTIALS, fake_gssapi.UNREACHABLE)
        rigged.clock.advance(830)
        rigged.poll_until(lambda: "could not be renewed" in caplog.text)
        rigged.poll_until(lambda: not rigged.client.in_flight(0))  # else Metadata times out in the next 50 seconds
        rigged.clock.advance(50)
        rigged.settle()
        assert logins(library) == 2, "it did not wait for sasl.kerberos.min.time.before.relogin"
        rigged.clock.advance(11)
        rigged.poll_until(lambda: logins(library) == 3)
        server.drop_connections()
        rigged.poll_until(lambda: not rigged.client.ready(0))
        rigged.clock.advance(5)
        rigged.connect(0)  # with the ticket that is there
        assert logins(library) == 3


def test_ticket_that_has_ended_is_replaced_by_the_next_authentication(
    library: FakeGssapi, keytab: dict[str, Any]
) -> None:
    library.lifetime = 1000
    config = config_for(security_protocol="SASL_PLAINTEXT", **keytab)
    made = kerberos.mechanism(config, {}, ManualClock(), lambda: 0.5)
    made.begin("kafka.test").respond(b"")
    library.age = 1000
    made.begin("kafka.test").respond(b"")
    assert logins(library) == 2


@pytest.mark.parametrize("outcome", ["renewed", "refused", "by another", "unchanged"])
def test_ticket_cache_is_renewed_by_kinit(
    library: FakeGssapi,
    keytab: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    outcome: str,
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        if outcome == "renewed":
            library.caches["/c"] = ALICE, 1800
        return subprocess.CompletedProcess(command, 0 if outcome != "refused" else 1, b"", b"kinit: ticket\nexpired")

    caplog.set_level(logging.INFO, "kafkabuf.network")
    monkeypatch.setattr(subprocess, "run", run)
    library.caches["/c"] = ALICE, 1000
    clock = ManualClock()
    config = config_for(security_protocol="SASL_PLAINTEXT", sasl_kerberos_service_name="kafka")
    login = Login(Source(None, None, "/c"), config, Gss(), clock, lambda: 0.0)
    assert login.renew(lambda: None) == float("inf")  # nothing is known yet
    login.credentials()
    start = clock.monotonic()
    assert login.renew(lambda: None) == start + 800
    library.age = 500
    clock.advance(500)
    login.credentials()  # the same ticket
    assert login.renew(lambda: None) == start + 800
    library.age = 801
    clock.advance(301)
    if outcome == "by another":
        library.caches["/c"] = ALICE, 1801
    done = threading.Event()
    assert login.renew(done.set) == start + 861  # the next attempt, should this one fail
    assert done.wait(10)
    assert commands == ([] if outcome == "by another" else [["/usr/bin/kinit", "-R", "-c", "/c"]])
    if outcome in ("renewed", "by another"):
        assert login.renew(lambda: None) > start + 1590
    else:
        expected = r"status 1: kinit: ticket\nexpired" if outcome == "refused" else "no ticket that can be renewed"
        assert expected in caplog.text
        assert login.renew(lambda: None) == start + 861


# ---- calls in turn ---------------------------------------------------------------------------------------------------


def test_calls_run_in_order_and_a_call_that_nobody_holds_is_left_out() -> None:
    calls, ran = CallsInTurn("test-calls"), list[int]()
    first, done = threading.Event(), threading.Event()
    begun = threading.Event()

    def block() -> None:
        begun.set()
        assert first.wait(10)

    held = [calls.start(block, lambda: None)]
    assert begun.wait(10)
    held.append(calls.start(lambda: ran.append(1), lambda: None))
    calls.start(lambda: ran.append(2), lambda: None)
    held.append(calls.start(lambda: ran.append(3), done.set))
    first.set()
    assert done.wait(10)
    assert ran == [1, 3]
    again = threading.Event()
    held.append(calls.start(lambda: ran.append(4), again.set))
    assert again.wait(10)
    assert ran == [1, 3, 4]


def test_calls_fail_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    woken: list[bool] = []
    call = CallsInTurn("test-calls").start(lambda: 1, lambda: woken.append(True))
    assert call.done
    assert woken == [True]
    with pytest.raises(KafkaError, match="can't start new thread"):
        call.result()
