"""Frames, connections and the poll call, over real sockets."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf.errors import ClosedError, ConfigError, NetworkError
from kafkabuf.network._io import Connection, Poller
from kafkabuf.protocol._frame import Frame
from tests.network.support import PATIENCE, poison, read_exactly, read_to_end

pytestmark = pytest.mark.usefixtures("each_backend")


@pytest.fixture
def poller(each_backend: str) -> Iterator[Poller]:
    poller = Poller()
    assert poller.backend_name == each_backend
    yield poller
    poller.close()


@contextlib.contextmanager
def connected(poller: Poller, **options: Any) -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    with theirs:
        connection = poller.register(ours, "broker 1 at h:9092", **options)
        assert poller.poll(PATIENCE) == [connection]
        assert connection.connected
        yield connection, theirs


def frame_of(*parts: bytes, notify: bool = False, number: int = 0) -> Frame:
    frame = Frame()
    frame.notify = notify
    frame.correlation_id = number
    for part in parts:
        frame.add_bytes(part)
    return frame


def prefixed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def answer_to(number: int, text: bytes = b"") -> bytes:
    return number.to_bytes(4, "big", signed=True) + text


def poll_for_frames(poller: Poller, connection: Connection, count: int) -> list[bytes]:
    frames: list[bytes] = []
    limit = time.monotonic() + PATIENCE
    while len(frames) < count and time.monotonic() < limit:
        poller.poll(0.5)
        frames += connection.take_frames()
    return frames


def poll_for_error(poller: Poller, connection: Connection) -> str:
    limit = time.monotonic() + PATIENCE
    while connection.error is None and time.monotonic() < limit:
        poller.poll(0.5)
    assert connection.closed
    return str(connection.error)


# ---- output ----------------------------------------------------------------------------------------------------------


def test_spans_beyond_iov_max_are_written(poller: Poller) -> None:
    parts = [struct.pack(">i", i) for i in range(5000)]
    with connected(poller) as (connection, theirs):
        connection.send(frame_of(*parts[:10]))
        connection.send(frame_of(*parts[10:]))
        poller.poll(0)
        assert read_exactly(theirs, 20_000) == b"".join(parts)
        assert connection.queued == 0


def test_partial_writes_neither_lose_nor_repeat_bytes(poller: Poller) -> None:
    parts = [os.urandom(size) for size in (1, 3_000_000, 7, 65_536, 2_500_000)]
    received = bytearray()
    with connected(poller) as (connection, theirs):
        reader = threading.Thread(target=lambda: received.extend(read_exactly(theirs, 2 * sum(map(len, parts)))))
        for _ in range(2):
            connection.send(frame_of(*parts))
        poller.poll(0)
        assert connection.queued > 0, "the socket took all at once: nothing was partial"
        reader.start()
        while connection.queued:
            poller.poll(0.5)
        reader.join(PATIENCE)
    assert bytes(received) == b"".join(parts) * 2


def test_written_frame_with_notify_is_reported(poller: Poller) -> None:
    with connected(poller) as (connection, theirs):
        silent, loud = frame_of(b"a" * 100), frame_of(b"b" * 4_000_000, notify=True)
        connection.send(silent)
        assert poller.poll(0) == []
        assert silent.written
        connection.send(loud)
        assert poller.poll(0) == []
        assert not loud.written
        reader = threading.Thread(target=read_exactly, args=(theirs, 4_000_100))
        reader.start()
        limit = time.monotonic() + PATIENCE
        while not loud.written and time.monotonic() < limit:
            news = poller.poll(0.5)
        assert news == [connection]
        reader.join(PATIENCE)


def test_send_refuses_none(poller: Poller) -> None:
    with connected(poller) as (connection, _), pytest.raises(TypeError, match="a Frame, found None"):
        connection.send(None)  # type: ignore[arg-type]


def test_expected_response_of_a_frame_changes_only_while_no_connection_has_the_frame(poller: Poller) -> None:
    with connected(poller, max_in_flight=0) as (connection, _):
        frame = frame_of(b"abcd", notify=False, number=1)
        connection.send(frame)
        for name, value in (("notify", True), ("correlation_id", 2), ("largest_response", 3)):
            before = getattr(frame, name)
            with pytest.raises(ValueError, match="before it is sent"):
                setattr(frame, name, value)
            assert getattr(frame, name) == before
        assert connection.take_back() == [frame]
        frame.notify = True
        connection.send(frame)
        assert poller.poll(0) == [connection]
        assert frame.written


def test_idle_connection_does_not_watch_for_room_to_write(poller: Poller) -> None:
    with connected(poller) as (connection, theirs):
        connection.send(frame_of(b"x" * 1_000_000))
        reader = threading.Thread(target=read_exactly, args=(theirs, 1_000_000))
        reader.start()
        while connection.queued:
            poller.poll(0.5)
        reader.join(PATIENCE)
        start = time.monotonic()
        assert poller.poll(0.03) == []
        assert time.monotonic() - start >= 0.03, "epoll reported a writable socket although there is nothing to write"


def test_at_most_max_in_flight_frames_are_unanswered(poller: Poller) -> None:
    with connected(poller, max_in_flight=2) as (connection, theirs):
        for number, name in enumerate((b"one.", b"two.", b"three", b"four.")):
            connection.send(frame_of(name, notify=name == b"four.", number=number))
        poller.poll(0)
        theirs.setblocking(False)
        assert theirs.recv(100) == b"one.two."
        with pytest.raises(BlockingIOError):
            theirs.recv(1)  # nor the last frame, which gets no response: it must not overtake
        theirs.sendall(prefixed(answer_to(0, b"answer")))
        assert poll_for_frames(poller, connection, 1) == [answer_to(0, b"answer")]
        assert theirs.recv(100) == b"threefour."
        theirs.sendall(prefixed(answer_to(1)) + prefixed(answer_to(2))[:5])
        poll_for_frames(poller, connection, 1)
        theirs.sendall(prefixed(answer_to(2))[5:])
        assert poll_for_frames(poller, connection, 1) == [answer_to(2)]
        for name in (b"five", b"six.", b"7777"):
            connection.send(frame_of(name))
        poller.poll(0)
        assert theirs.recv(100) == b"fivesix."  # a response that arrived in two pieces counts once


def test_poll_starts_waiting_frames_as_responses_arrive(poller: Poller) -> None:
    with connected(poller, max_in_flight=1) as (connection, theirs):
        for number, name in enumerate((b"one.", b"two.", b"last")):
            connection.send(frame_of(name, number=number))

        def answer() -> None:
            for number, name in enumerate((b"one.", b"two.")):
                assert read_exactly(theirs, 4) == name
                theirs.sendall(prefixed(answer_to(number)))

        broker = threading.Thread(target=answer)
        broker.start()
        # One poll starts both: it returns when no frame waits to be started, or after two milliseconds.
        limit = time.monotonic() + PATIENCE
        polls: list[int] = []
        while sum(polls) < 2 and time.monotonic() < limit:
            poller.poll(0.5)
            polls.append(len(connection.take_frames()))
        broker.join(PATIENCE)
        assert read_exactly(theirs, 4) == b"last"


@pytest.mark.parametrize(
    "stray",
    [answer_to(6), answer_to(8), answer_to(-1), answer_to(0), answer_to(2**31 - 1)],
    ids=["twice", "ahead", "-1", "0", "2^31-1"],
)
def test_only_the_next_expected_response_starts_a_waiting_frame(poller: Poller, stray: bytes) -> None:
    with connected(poller, max_in_flight=2) as (connection, theirs):
        for number in (6, 7, 8, 9, 10):
            connection.send(frame_of(b"%4d" % number, number=number))
        poller.poll(0)
        theirs.sendall(prefixed(answer_to(6)))
        poll_for_frames(poller, connection, 1)
        assert theirs.recv(100) == b"   6   7   8"
        theirs.sendall(prefixed(stray))
        assert poll_for_frames(poller, connection, 1) == [stray]
        theirs.sendall(prefixed(answer_to(7)))  # starts no frame either: the owner will close the connection
        assert poll_for_frames(poller, connection, 1) == [answer_to(7)]
        poller.poll(0)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


def test_response_to_an_unwritten_request_starts_no_frame(poller: Poller) -> None:
    with connected(poller, max_in_flight=1) as (connection, theirs):
        connection.send(frame_of(b"x" * 4_000_000, number=1))
        connection.send(frame_of(b"last", number=2))
        poller.poll(0)
        theirs.sendall(prefixed(answer_to(1)))
        poll_for_frames(poller, connection, 1)
        reader = threading.Thread(target=read_exactly, args=(theirs, 4_000_000))
        reader.start()
        while connection.queued > 1:
            poller.poll(0.5)
        reader.join(PATIENCE)
        poller.poll(0)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


def test_correlation_ids_may_wrap_around_to_zero(poller: Poller) -> None:
    """The ring of expected responses grows and wraps around meanwhile."""
    first = 2**31 - 50
    numbers = [(first + place) & 0x7FFFFFFF for place in range(200)]
    with connected(poller, max_in_flight=3) as (connection, theirs):
        sent, answered = 0, 0
        for ahead in (1, 7, 40, 2, 90, 200):
            for number in numbers[sent : answered + ahead]:
                connection.send(frame_of(b"%4d" % (number % 1000), number=number))
            sent = max(sent, min(answered + ahead, len(numbers)))
            while answered < sent:
                poller.poll(0)
                assert read_exactly(theirs, 4) == b"%4d" % (numbers[answered] % 1000)
                theirs.sendall(prefixed(answer_to(numbers[answered])))
                assert poll_for_frames(poller, connection, 1) == [answer_to(numbers[answered])]
                answered += 1
    assert answered == 200


def test_too_long_response_fails_the_connection(poller: Poller) -> None:
    with connected(poller, max_frame=10) as (connection, theirs):
        for number, largest in ((1, 8), (2, 30)):
            frame = frame_of(b"ask.", number=number)
            frame.largest_response = largest
            connection.send(frame)
        poller.poll(0)
        theirs.sendall(prefixed(answer_to(1, b"four")) + prefixed(answer_to(2, b"x" * 26)))
        assert len(poll_for_frames(poller, connection, 2)) == 2
        theirs.sendall(prefixed(b"not asked.."))
        assert "frame of 11 bytes, allowed are 4 to 10 without a request" in poll_for_error(poller, connection)
    with connected(poller) as (connection, theirs):
        frame = frame_of(b"ask.", number=1)
        frame.largest_response = 8
        connection.send(frame)
        poller.poll(0)
        theirs.sendall((9).to_bytes(4, "big"))
        assert "frame of 9 bytes, allowed are 4 to 8;" in poll_for_error(poller, connection)


def test_frame_is_sent_only_once_and_not_empty(poller: Poller) -> None:
    with connected(poller) as (connection, theirs):
        frame = frame_of(b"abc")
        connection.send(frame)
        with pytest.raises(ValueError, match="sent before"):
            connection.send(frame)
        with pytest.raises(ValueError, match="add spans before"):
            frame.add_bytes(b"late")
        with pytest.raises(ValueError, match="frame is empty"):
            connection.send(Frame())
        poller.poll(0)
        assert read_exactly(theirs, 3) == b"abc"


def test_closed_connection_reads_no_span(poller: Poller) -> None:
    with connected(poller) as (connection, theirs):
        payload = bytes(bytearray(b"A" * 8_000_000))
        connection.send(frame_of(payload))
        poller.poll(0)
        connection.close()
        poison(payload)
        poller.poll(0)
        received = read_to_end(theirs)
        assert set(received) == {ord("A")}
        assert len(received) < len(payload)
        with pytest.raises(NetworkError, match="broker 1 at h:9092 is closed"):
            connection.send(frame_of(b"more"))


def test_connection_closed_before_its_first_write_writes_nothing_and_drops_its_frames(poller: Poller) -> None:
    class Slab:
        pass

    with connected(poller) as (closed, theirs), connected(poller) as (open_, their_open):
        slab = Slab()
        gone = weakref.ref(slab)
        frame = frame_of(b"never")
        frame.own(slab)
        closed.send(frame)
        open_.send(frame_of(b"ever"))
        closed.close()
        del slab, frame
        assert gone() is None, "the closed connection keeps a frame that it will never send"
        poller.poll(0)
        assert read_to_end(theirs) == b""
        assert read_exactly(their_open, 4) == b"ever"


def test_frame_is_untouched_until_its_first_byte_is_written(poller: Poller) -> None:
    with connected(poller, max_in_flight=2) as (connection, _):
        frames = [frame_of(b"a"), frame_of(b"b" * 8_000_000), frame_of(b"c"), frame_of(b"d")]
        assert all(frame.untouched for frame in frames)
        for frame in frames:
            connection.send(frame)
        poller.poll(0)
        connection.close()
        assert [frame.untouched for frame in frames] == [False, False, True, True]


def test_to_bytes_joins_all_spans() -> None:
    frame = frame_of(b"ab", b"", b"c")
    assert (frame.nbytes, frame.to_bytes()) == (3, b"abc")


# ---- input -----------------------------------------------------------------------------------------------------------


def test_frames_are_cut_by_their_lengths_however_bytes_arrive(poller: Poller) -> None:
    frames = [b"corr", b"correlated", os.urandom(300)]
    stream = b"".join(map(prefixed, frames))
    with connected(poller) as (connection, theirs):
        for i in range(len(stream)):
            theirs.sendall(stream[i : i + 1])
            poller.poll(0)
        theirs.sendall(stream)
        assert poll_for_frames(poller, connection, 6) == frames * 2


def test_only_a_whole_frame_is_news(poller: Poller) -> None:
    with connected(poller) as (connection, theirs):
        theirs.sendall(prefixed(b"correlated")[:-1])
        assert poller.poll(PATIENCE) == []
        theirs.sendall(b"d")
        assert poller.poll(PATIENCE) == [connection]
        assert connection.take_frames() == [b"correlated"]
        assert connection.take_frames() == []


def test_large_frame_arrives_intact(poller: Poller) -> None:
    payload = os.urandom(7_000_001)
    with connected(poller) as (connection, theirs):
        writer = threading.Thread(target=theirs.sendall, args=(prefixed(payload) + prefixed(b"next"),))
        writer.start()
        assert poll_for_frames(poller, connection, 2) == [payload, b"next"]
        writer.join(PATIENCE)


@pytest.mark.parametrize("length", [-1, 0, 3, 100_000_001, 2**31 - 1, -(2**31)])
def test_impossible_length_fails_the_connection(poller: Poller, length: int) -> None:
    with connected(poller) as (connection, theirs):
        theirs.sendall(prefixed(b"good"))
        assert poll_for_frames(poller, connection, 1) == [b"good"]
        theirs.sendall(length.to_bytes(4, "big", signed=True))
        error = poll_for_error(poller, connection)
        assert re.search(f"broker 1 at h:9092 failed: .* frame of {length} bytes, allowed are 4 to 100000000", error)
        assert theirs.recv(1) == b"", "the socket is still open"


def test_good_frame_ahead_of_an_impossible_length_is_kept(poller: Poller) -> None:
    with connected(poller) as (connection, theirs):
        theirs.sendall(prefixed(b"good") + b"\xff\xff\xff\xff")
        poll_for_error(poller, connection)
        assert connection.take_frames() == [b"good"]


def test_memory_is_allocated_only_as_bytes_arrive(poller: Poller) -> None:
    def address_space() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    with connected(poller) as (connection, theirs):
        before = address_space()
        theirs.sendall((99_999_999).to_bytes(4, "big") + b"x" * 100_000)
        limit = time.monotonic() + 0.2
        while time.monotonic() < limit:
            poller.poll(0.02)
        assert address_space() - before < 8 << 20
        assert connection.error is None


# ---- the end of a connection -----------------------------------------------------------------------------------------


def test_responses_before_the_end_of_the_stream_are_kept(poller: Poller) -> None:
    with connected(poller) as (connection, theirs):
        theirs.sendall(prefixed(b"last words"))
        theirs.close()
        assert "connection to broker 1 at h:9092 failed: the peer closed it" in poll_for_error(poller, connection)
        assert connection.take_frames() == [b"last words"]


def test_response_before_a_failed_write_is_kept(poller: Poller) -> None:
    with connected(poller) as (connection, theirs):
        theirs.sendall(prefixed(b"last words"))
        theirs.close()
        connection.send(frame_of(b"x"))
        assert "Broken pipe" in poll_for_error(poller, connection)
        assert connection.take_frames() == [b"last words"]


def test_write_to_a_dead_peer_fails_the_connection_without_a_signal(poller: Poller) -> None:
    with connected(poller) as (connection, theirs):
        theirs.close()
        connection.send(frame_of(b"x"))
        assert "Broken pipe" in poll_for_error(poller, connection)


def test_reset_is_named_in_the_error(poller: Poller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        connection = poller.register(ours, "broker 1 at h:9092")
        poller.poll(PATIENCE)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        assert "Connection reset by peer" in poll_for_error(poller, connection)


def test_refused_connection_is_not_connected(poller: Poller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    ours = socket.socket()
    ours.setblocking(False)
    ours.connect_ex(address)
    connection = poller.register(ours, "broker 1 at h:9092")
    assert "Connection refused" in poll_for_error(poller, connection)
    assert not connection.connected


def test_failed_connection_leaves_its_neighbour_open(poller: Poller) -> None:
    with connected(poller) as (bad, their_bad), connected(poller) as (good, their_good):
        their_bad.sendall(b"\xff\xff\xff\xff")
        poll_for_error(poller, bad)
        good.send(frame_of(b"ping"))
        their_good.sendall(prefixed(b"pong"))
        assert poll_for_frames(poller, good, 1) == [b"pong"]
        assert read_exactly(their_good, 4) == b"ping"


# ---- waking ----------------------------------------------------------------------------------------------------------


def test_wakeup_before_poll_ends_the_poll(poller: Poller) -> None:
    poller.wakeup()
    start = time.monotonic()
    assert poller.poll(PATIENCE) == []
    assert time.monotonic() - start < PATIENCE / 2


def test_one_wakeup_ends_one_poll(poller: Poller) -> None:
    poller.wakeup()
    poller.poll(PATIENCE)
    start = time.monotonic()
    poller.poll(0.03)
    assert time.monotonic() - start >= 0.03


def test_no_wakeup_is_lost_while_the_owner_falls_asleep(poller: Poller) -> None:
    turns = 3000
    seen = threading.Semaphore(0)
    lost = 0

    def waker() -> None:
        for _ in range(turns):
            poller.wakeup()
            seen.acquire(timeout=PATIENCE)

    thread = threading.Thread(target=waker)
    thread.start()
    for _ in range(turns):
        start = time.monotonic()
        poller.poll(1.0)
        lost += time.monotonic() - start > 0.9
        seen.release()
    thread.join(PATIENCE)
    assert lost == 0


def test_wakeup_gives_the_gil_to_an_owner_that_waits_for_it(poller: Poller) -> None:
    returned: list[float] = []
    polled = threading.Event()

    def own() -> None:
        polled.set()
        poller.poll(PATIENCE)
        returned.append(time.monotonic())

    owner = threading.Thread(target=own)
    owner.start()
    polled.wait(PATIENCE)
    time.sleep(0.01)  # gives the GIL away, so that the owner enters its poll
    interval = sys.getswitchinterval()
    sys.setswitchinterval(2 * PATIENCE)
    try:
        deadline = time.monotonic() + PATIENCE
        poller.wakeup()
        # Only wakeup gives the GIL away below, and only when the owner has waited for it for a while.
        while not returned and time.monotonic() < deadline:
            poller.wakeup()
        assert returned
        assert returned[0] < deadline
    finally:
        sys.setswitchinterval(interval)
        owner.join(PATIENCE)


def test_poll_releases_the_gil_while_it_waits(poller: Poller) -> None:
    thread = threading.Thread(target=poller.poll, args=(PATIENCE,))
    thread.start()
    start = time.monotonic()
    sum(range(100_000))
    poller.wakeup()
    thread.join(PATIENCE)
    assert time.monotonic() - start < PATIENCE / 2


# ---- many connections ------------------------------------------------------------------------------------------------


def test_ready_connections_take_turns(poller: Poller) -> None:
    # More than one wait reports, and each has more bytes than one read takes.
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(connected(poller)) for _ in range(100)]
        for _, theirs in connections:
            theirs.sendall(prefixed(b"x" * 1000) * 100)
        news = {connection for _ in range(2) for connection in poller.poll(PATIENCE)}
        assert news == {connection for connection, _ in connections}


def test_closing_connections_leaves_the_others_their_own_events(poller: Poller) -> None:
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(connected(poller)) for _ in range(40)]
        for connection, _ in connections[::3]:
            connection.close()
        connections.append(opened.enter_context(connected(poller)))
        for number, (connection, theirs) in enumerate(connections):
            if not connection.closed:
                theirs.sendall(prefixed(b"to %d" % number))
                assert poller.poll(PATIENCE) == [connection]
                assert connection.take_frames() == [b"to %d" % number]


def test_unknown_backend_is_refused_with_the_names_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKABUF_POLLER", "kqueue")
    with pytest.raises(ConfigError, match=r"KAFKABUF_POLLER is 'kqueue': unset it, or set it to .*poll"):
        Poller()


# ---- fork ------------------------------------------------------------------------------------------------------------

_FORK = """
import gc, os, socket
from kafkabuf.protocol._frame import Frame
from kafkabuf.network._io import Poller
ours, theirs = socket.socketpair()
poller = Poller()
connection = poller.register(ours, "h:1")
poller.poll(1)
child = os.fork()
if child == 0:
    theirs.close()
    connection.close()
    del poller, connection
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
frame = Frame()
frame.add_bytes(b"ping")
connection.send(frame)
theirs.sendall(b"\\0\\0\\0\\4pong")
poller.poll(1)
assert connection.take_frames() == [b"pong"], connection.error
assert theirs.recv(4) == b"ping"

# The other way round: a child that still holds the descriptor must not keep the parent's connection open.
stay, go = os.pipe()
child = os.fork()
if child == 0:
    theirs.close()
    os.close(go)
    os.read(stay, 1)
    os._exit(0)
connection.close()
theirs.settimeout(5)
assert theirs.recv(1) == b""
assert poller.poll(0.01) == []
os.close(go)
os.waitpid(child, 0)
theirs.close()
"""


def test_forked_child_neither_breaks_nor_keeps_its_parents_connection() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", _FORK], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_closed_poller_holds_no_descriptor_and_writes_to_none(each_backend: str) -> None:
    poller = Poller()
    with connected(poller) as (_, theirs):
        poller.close()
        assert theirs.recv(1) == b""
    reading, writing = os.pipe()  # may have the numbers of the Poller's descriptors
    try:
        poller.close()
        poller.wakeup()
        os.set_blocking(reading, False)
        with pytest.raises(BlockingIOError):
            os.read(reading, 1)
        assert os.write(writing, b"ours") == 4
    finally:
        os.close(reading)
        os.close(writing)
    with pytest.raises(ClosedError, match="closed"):
        poller.poll(0)
    left, right = socket.socketpair()
    with left, right, pytest.raises(ClosedError, match="closed"):
        poller.register(left, "broker 1 at h:9092")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the test lists the descriptors of the process")
def test_descriptors_end_with_close_and_not_with_the_object() -> None:
    before = os.listdir("/proc/self/fd")
    poller = Poller()
    assert os.listdir("/proc/self/fd") != before
    poller.close()
    assert os.listdir("/proc/self/fd") == before
