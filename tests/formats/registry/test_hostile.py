"""The Schema Registry's client against a hostile server."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp

from kafkabuf.errors import (
    ClosedError,
    ConfigError,
    KafkaError,
    NetworkError,
    SchemaRegistryError,
    SerializationError,
)
from kafkabuf.formats import Avro, Protobuf
from kafkabuf.formats.registry import SchemaRegistry
from kafkabuf.formats.registry.resolving import resolve_format
from kafkabuf.formats.registry.transport import LARGEST_BODY
from tests.formats.registry.support import RECORD, FakeRegistry, connect, running
from tests.network.hostile_responses import CHUNKED, MB, OK, compressed_response

pytest_plugins = ["tests.formats.registry.fixtures"]

ROW = pa.table({"a": [7]})


# ---- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "response",
    [
        ("endless", OK + b"\r\n", bytes(MB), 0),
        ("endless", OK + b"Content-Length: 3000000000\r\n\r\n", bytes(MB), 0),
        ("endless", CHUNKED, b"100000\r\n" + bytes(MB) + b"\r\n", 0),
        ("endless", CHUNKED + b"-1\r\n", bytes(MB), 0),
        ("endless", CHUNKED + b"0\r\n", b"X: y\r\n" * 10_000, 0),
        ("endless", OK + b"X: ", bytes(MB), 0),
        ("endless", OK, b"X: y\r\n" * 10_000, 0),
        ("endless", b"HTTP/1.1 500 No\r\n\r\n", bytes(MB), 0),
        ("raw", compressed_response()),
    ],
    ids=["body", "length", "chunks", "chunk", "trailers", "header", "headers", "refusal", "compressed"],
)
def test_response_without_an_end_takes_bounded_memory(fake: FakeRegistry, response: object) -> None:
    registry = connect(fake, **{"max.retries": 0})
    registry.resolve(RECORD, subject="imports")
    fake.faults = [response]
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError, match=fake.url):
            registry.resolve(RECORD, subject="s", timeout=60)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * MB
    _wait_for_threads()


def test_body_that_is_too_large_is_told(fake: FakeRegistry) -> None:
    fake.faults = [("body", 200, b" " * (LARGEST_BODY + 1))]
    with pytest.raises(SchemaRegistryError, match=f"more than {LARGEST_BODY} bytes"):
        connect(fake).resolve(RECORD, subject="s", timeout=60)


@pytest.mark.parametrize(
    "response",
    [
        "drip",
        ("endless", OK + b"X: ", b"y", 0.02),
        ("endless", b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
        ("endless", CHUNKED, b"1\r\n \r\n", 0.02),
    ],
    ids=["body", "header", "continue", "chunks"],
)
def test_thread_of_a_request_that_took_too_long_ends(fake: FakeRegistry, response: object) -> None:
    fake.faults = [response]
    registry = SchemaRegistry({"schema.registry.url": fake.url, "max.retries": 0})
    with pytest.raises(NetworkError, match=f"{fake.url} gave no response within"):
        registry.resolve(RECORD, subject="s", timeout=0.5)
    _wait_for_threads()


def _wait_for_threads() -> None:
    """Wait for the ends of all requests, though the server goes on for ever."""
    deadline = time.monotonic() + 60
    while any(thread.name == "kafkabuf-schema-registry" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the thread of a request goes on"
        time.sleep(0.01)


# ---- what is no response ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "response",
    [
        OK + b'Content-Length: 100\r\n\r\n{"id":5',
        CHUNKED + b'50\r\n{"id":5',
        CHUNKED + b"-5\r\nabc",
        CHUNKED + b"zz\r\nabc",
        b"\x16\x03\x01garbage\r\n\r\n",
    ],
    ids=["truncated", "truncated chunk", "negative chunk", "word for a chunk", "garbage"],
)
def test_response_that_is_cut_short_or_no_http_is_asked_for_again(fake: FakeRegistry, response: bytes) -> None:
    fake.faults = [("raw", response)]
    assert connect(fake).resolve(RECORD, subject="s").id == 100
    fake.faults = [("raw", response)]
    with pytest.raises(NetworkError, match=fake.url):
        connect(fake, **{"max.retries": 0}).resolve(RECORD, subject="t")


@pytest.mark.parametrize("where", ["schema", "name", "subject"])
def test_half_of_a_surrogate_pair_is_refused(fake: FakeRegistry, where: str) -> None:
    reference = {"name": "n", "subject": "s", "version": 1}
    answer = {"id": 5, "schema": '"int"', "references": [reference]}
    (answer if where == "schema" else reference)[where] = "\ud800"
    fake.faults = [("body", 200, json.dumps(answer).encode())]
    with pytest.raises(SchemaRegistryError, match="not that of a Schema Registry"):
        connect(fake, **{"use.latest.version": True}).resolve(None, subject="s")


def test_error_code_of_many_digits_is_left_out(fake: FakeRegistry) -> None:
    fake.faults = [("body", 422, b'{"error_code": ' + b"9" * 4000 + b', "message": "no"}')]
    with pytest.raises(SchemaRegistryError, match=r"no \(status 422\)$"):
        connect(fake).resolve(RECORD, subject="s")


# ---- subjects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", ["", ".", "..", "\ud800", None, 5])
def test_subject_that_is_no_part_of_a_url_is_refused(fake: FakeRegistry, subject: Any) -> None:
    registry = connect(fake)
    for ask in (lambda: registry.resolve(RECORD, subject=subject), lambda: registry.latest(subject)):
        with pytest.raises(ConfigError, match="a subject must be text in UTF-8, and not ''"):
            ask()
    assert fake.seen == []


@pytest.mark.parametrize("subject", ["a/../b", "%2F", "a?x=1#f", "a\nb\0", "+;", "ü x", ".a"])
def test_subject_of_any_characters_is_one_part_of_a_url(fake: FakeRegistry, subject: str) -> None:
    registry = connect(fake)
    assert registry.resolve(RECORD, subject=subject).id == 100
    assert registry.latest(subject).id == 100
    assert list(fake.subjects) == [subject]


# ---- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", ["p w/d", "p\u00a0d", "p'w\\d\"", "pässword"])
def test_secret_is_struck_in_whatever_form_a_server_repeats_it(fake: FakeRegistry, secret: str) -> None:
    settings = {"basic.auth.user.info": f"me:{secret}"}
    for words in (secret, [secret], quote(secret, safe="")):
        fake.faults = [("body", 401, json.dumps({"message": words}).encode())]
        with pytest.raises(SchemaRegistryError, match="status 401") as caught:
            connect(fake, **settings).resolve(RECORD, subject="s")
        for hidden in (secret, secret.replace("\u00a0", r"\xa0"), repr(secret)[1:-1], quote(secret, safe="")):
            assert hidden not in str(caught.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_secret_of_the_environments_proxy_is_struck(
    fake: FakeRegistry, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may repeat what it refuses, in a reason or in a body."""
    words = b"bad s3cret/Word bWU6czNjcmV0L1dvcmQ="
    body = json.dumps({"message": words.decode()}).encode()
    head = b"HTTP/1.1 407 " + words + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    fake.faults = [("raw", head + body)]
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(f"{scheme}_proxy", fake.url.replace("//", "//me:s3cret%2FWord@"))
    registry = connect(fake, **{"schema.registry.url": f"{scheme}://registry.invalid:1", "max.retries": 0})
    with pytest.raises(KafkaError, match=r"407.*bad \*+ \*+|bad \*+ \*+.*407|CONNECT .* with status 407") as caught:
        registry.resolve(RECORD, subject="s")
    assert "s3cret" not in repr(caught.value.__context__)
    assert len(fake.seen) == 1


def test_proxy_that_the_client_cannot_use_is_told_without_its_secret(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "gopher://me:s3cret@127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"(?i)proxy") as caught:
        connect(fake).resolve(RECORD, subject="s")
    assert "s3cret" not in f"{caught.value} {caught.value.__context__!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize("status", [302, 303, 307, 308])
def test_no_redirect_takes_the_credentials_to_another_host(fake: FakeRegistry, status: int) -> None:
    with running(FakeRegistry()) as elsewhere:
        location = elsewhere.url.encode() + b"/subjects?of=them"
        fake.faults = [("raw", b"HTTP/1.1 %d No\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % (status, location))]
        with pytest.raises(SchemaRegistryError, match="redirects are not followed") as caught:
            connect(fake, **{"basic.auth.user.info": "me:secret"}).resolve(RECORD, subject="s")
        assert caught.value.status == status
        assert "of=them" not in str(caught.value)
        assert elsewhere.seen == []


# ---- schemas that cannot be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"use.schema.id": 100}, {"use.latest.version": True}])
@pytest.mark.parametrize(
    "wrong",
    [{"schema": "nothing"}, {"schema": "[" * 5000}, {"schema": RECORD, "schemaType": "JSON"}],
    ids=["no type", "depth", "kind"],
)
def test_schema_that_cannot_be_used_is_asked_for_again(
    fake: FakeRegistry, settings: dict[str, Any], wrong: dict[str, Any]
) -> None:
    """A schema of an id serves for ever, and a wrong response must not."""
    fake.subjects["t-value"] = [{"schema": RECORD, "id": 100, "version": 1}]
    fake.faults = [("body", 200, json.dumps({"id": 100, "version": 1} | wrong).encode())]
    registry = connect(fake, **settings)
    with pytest.raises(SerializationError):
        resolve_format(registry, Avro(), "t", "value", None, 60)
    for _ in range(2):
        assert resolve_format(registry, Avro(), "t", "value", None, 60).format.encode(ROW) == [b"\0\0\0\0\x64\x0e"]
    assert len(fake.seen) == 2


def test_protobuf_schema_without_the_message_is_named_and_asked_for_again(fake: FakeRegistry) -> None:
    own = Protobuf(Timestamp)
    other = base64.b64encode(FileDescriptorProto(name="other.proto").SerializeToString()).decode()
    fake.subjects["t-value"] = [{"schema": own.schema, "schemaType": "PROTOBUF", "id": 100, "version": 1}]
    fake.faults = [("body", 200, json.dumps({"schema": other, "schemaType": "PROTOBUF"}).encode())]
    settings = {"use.schema.id": 100, "id.compatibility.strict": False}
    registry = connect(fake, **settings)
    with pytest.raises(SerializationError, match=r"the schema 100 of t-value in the registry: .* no message"):
        resolve_format(registry, own, "t", "value", None, 60)
    assert resolve_format(registry, own, "t", "value", None, 60).format.schema == own.schema


# ---- forks, signals, threads -----------------------------------------------------------------------------------------


def test_child_of_a_fork_in_a_wait_leaves_its_parents_request_alone(fake: FakeRegistry) -> None:
    """A signal handler forks while the registry is asked, and in the child it raises through the call."""
    fake.faults = ["silent"]
    registry = SchemaRegistry({"schema.registry.url": fake.url, "max.retries": 0})
    children: list[int] = []

    def fork(*_: object) -> None:
        children.append(os.fork())
        if children == [0]:
            raise KeyboardInterrupt

    def interrupt() -> None:
        _wait_until(lambda: bool(fake.seen))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, fork)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(NetworkError, match="gave no response within"):
            registry.resolve(RECORD, subject="s", timeout=3)
    except KeyboardInterrupt:
        os._exit(0 if children == [0] else 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join(10)
    assert os.waitpid(children[0], 0)[1] == 0


def test_interrupt_ends_a_call_and_its_thread(fake: FakeRegistry) -> None:
    fake.faults = ["silent"]
    registry = SchemaRegistry({"schema.registry.url": fake.url, "max.retries": 0})

    def interrupt() -> None:
        _wait_until(lambda: bool(fake.seen))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        registry.resolve(RECORD, subject="s", timeout=60)
    thread.join(10)
    _wait_for_threads()
    assert registry.resolve(RECORD, subject="s", timeout=60).id == 100


def test_fork_while_another_thread_waits_leaves_both_processes_a_registry(fake: FakeRegistry) -> None:
    fake.faults = ["silent"]
    registry = SchemaRegistry({"schema.registry.url": fake.url, "max.retries": 0})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(registry.resolve, RECORD, subject="s", timeout=60)
        _wait_until(lambda: bool(fake.seen))
        child = os.fork()
        if child == 0:
            try:
                assert registry.resolve(RECORD, subject="t", timeout=60).id == 100
                registry.close()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert not waiting.done(), "the child's close() is no close() of the parent"
        registry.close()
        with pytest.raises(ClosedError):
            waiting.result(20)


def _wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
