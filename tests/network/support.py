"""A broker under control of the test, and ways to drive a NetworkClient without sleeping."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kafkabuf.clock import Clock, ManualClock
from kafkabuf.config import ProducerConfig
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network._io import Poller
from kafkabuf.network.client import Completion, NetworkClient, Request
from kafkabuf.protocol import messages
from kafkabuf.protocol._frame import Frame

PATIENCE = 10.0  # seconds of real time until something that should happen counts as failed
ALL_VERSIONS = {messages.PRODUCE: (0, 13), messages.METADATA: (0, 13), messages.API_VERSIONS: (0, 4)}

_ORDER = threading.Lock()  # of the responses on one connection


@dataclass
class Received:
    """A request that the fake broker received. The test responds to it."""

    header: messages.RequestHeader
    frame: bytes
    sock: socket.socket
    answered: bool = False
    then: list[Callable[[], object]] = field(default_factory=list)  # responses that must not overtake this one

    def entity(self) -> Any:
        return messages.decode_request(self.frame)[1]

    def reply(self, body: bytes, correlation_id: int | None = None) -> None:
        number = self.header.correlation_id if correlation_id is None else correlation_id
        payload = number.to_bytes(4, "big", signed=True) + body
        self.send_frame(len(payload).to_bytes(4, "big") + payload)

    def send_frame(self, frame: bytes) -> None:
        """Send a response with its length, as it is. Responses that wait behind this request's follow."""
        self.sock.sendall(frame)
        with _ORDER:
            self.answered = True
            then, self.then = self.then, []
        for respond in then:
            respond()

    def reply_entity(self, version: int | None = None, **values: Any) -> None:
        key, version = self.header.api_key, self.header.version if version is None else version
        frame = messages.encode_response(
            key, version, self.header.correlation_id, messages.build_response(key, version, **values)
        )
        self.send_frame(len(frame).to_bytes(4, "big") + frame)


class FakeBroker:
    """One listener on loopback. It responds to ApiVersions if `greets` is set, and to Metadata if `cluster` is set.

    The test responds to all other requests.
    """

    def __init__(self, *, versions: dict[int, tuple[int, int]] | None = None, greets: bool = True, reads: bool = True):
        self.versions = ALL_VERSIONS if versions is None else versions
        self.greets = greets
        self.reads = reads  # False: requests after the handshake stay in the socket
        self.cluster: dict[str, Any] | None = None
        self.requests: queue.Queue[Received] = queue.Queue()
        self.greetings: list[Received] = []
        self.metadata_requests: list[Received] = []
        self.sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def next_request(self) -> Received:
        return self.requests.get(timeout=PATIENCE)

    def close(self) -> None:
        # Closed only when no thread is left: one that has just begun would read from what is no socket any more.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(PATIENCE)
        self.drop_connections()
        for thread in self._threads:
            thread.join(PATIENCE)
        for sock in [self._listener, *self.sockets]:
            sock.close()

    def drop_connections(self) -> None:
        for sock in list(self.sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.sockets.append(sock)
                self._threads.append(threading.Thread(target=self._serve, args=(sock,), daemon=True))
                self._threads[-1].start()

    def handle(self, request: Received) -> bool:
        """A subclass handles further requests here. True: it has responded to the request, or will."""
        return False

    def _serve(self, sock: socket.socket) -> None:
        before: Received | None = None  # the test's newest request
        with contextlib.suppress(OSError):
            while (frame := _read_frame(sock)) is not None:
                request = Received(messages.decode_request_header(frame), frame, sock)
                if request.header.api_key == messages.API_VERSIONS and self.greets:
                    self.greetings.append(request)
                    keys = [{"api_key": k, "min_version": a, "max_version": b} for k, (a, b) in self.versions.items()]
                    request.reply_entity(error_code=0, api_keys=keys)
                    if not self.reads:
                        return
                elif self.handle(request):
                    continue
                elif request.header.api_key == messages.METADATA and self.cluster is not None:
                    self.metadata_requests.append(request)
                    _behind(before, partial(request.reply_entity, **self.cluster))
                else:
                    before = request
                    self.requests.put(request)


def _behind(before: Received | None, respond: Callable[[], object]) -> None:
    """Respond once the request before has its response: a broker responds in order."""
    with _ORDER:
        waits = before is not None and not before.answered
        if before is not None and waits:
            before.then.append(respond)
    if not waits:
        respond()


def _read_frame(sock: socket.socket) -> bytes | None:
    prefix = read_exactly(sock, 4)
    return read_exactly(sock, int.from_bytes(prefix, "big")) if prefix else None


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """`count` bytes, or fewer if the stream ends before."""
    data = bytearray()
    while len(data) < count and (part := sock.recv(min(count - len(data), 1 << 20))):
        data += part
    return bytes(data)


def read_to_end(sock: socket.socket) -> bytes:
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(1 << 20):
            data += part
    return bytes(data)


def cluster_of(*brokers: FakeBroker, topics: dict[str, int] | None = None) -> dict[str, Any]:
    """Values of a Metadata response: the brokers as 0, 1, ..., and topics with their number of partitions.

    The brokers lead the partitions in turn.
    """
    return {
        "brokers": [{"node_id": i, "host": b.host, "port": b.port} for i, b in enumerate(brokers)],
        "controller_id": 0,
        "topics": [topic_of(name, [i % len(brokers) for i in range(n)]) for name, n in (topics or {}).items()],
    }


def topic_of(name: str, leaders: list[int], *, error: int = 0, epoch: int = 0, topic_id: Any = None) -> dict[str, Any]:
    partitions = [
        {
            "error_code": 0,
            "partition_index": index,
            "leader_id": leader,
            "leader_epoch": epoch,
            "replica_nodes": [leader],
            "isr_nodes": [leader],
        }
        for index, leader in enumerate(leaders)
    ]
    return {"error_code": error, "name": name, "topic_id": topic_id, "is_internal": False, "partitions": partitions}


def config_for(*brokers: FakeBroker | tuple[str, int], **settings: Any) -> ProducerConfig:
    servers = tuple(broker.address if isinstance(broker, FakeBroker) else broker for broker in brokers)
    return ProducerConfig.from_mapping({"bootstrap.servers": servers or (("127.0.0.1", 9),)}, settings)


@dataclass
class Rig:
    """A client on a manual clock, driven by the test's thread."""

    client: NetworkClient
    metadata: Metadata
    clock: ManualClock
    poller: Poller

    def poll_until(self, condition: Callable[[], object]) -> list[Completion]:
        """Poll until the condition holds. Returns the completions of all polls."""
        done: list[Completion] = []
        limit = time.monotonic() + PATIENCE
        while not condition():
            done += self.client.poll(0.02)
            assert time.monotonic() < limit, "it did not happen"
        return done

    def completions(self, count: int) -> list[Completion]:
        done: list[Completion] = []
        limit = time.monotonic() + PATIENCE
        while len(done) < count:
            done += self.client.poll(0.02)
            assert time.monotonic() < limit, f"{len(done)} of {count} requests completed"
        return done

    def settle(self) -> list[Completion]:
        """Poll until a poll in which nothing happened."""
        return self.client.poll(0.05) + self.client.poll(0.05)

    def connect(self, node_id: int = 0) -> None:
        """Poll until the metadata names the node and the node takes requests."""
        self.poll_until(lambda: node_id < 0 or node_id in self.metadata.snapshot.brokers)
        self.poll_until(lambda: self.client.ready(node_id))


@contextlib.contextmanager
def rig(*brokers: FakeBroker | tuple[str, int], clock: Clock | None = None, **parts: Any) -> Iterator[Rig]:
    """`parts`: settings, or connector, resolver and random of the client. The default `random` gives no jitter."""
    manual = clock if isinstance(clock, ManualClock) else ManualClock()
    injected = {name: parts.pop(name) for name in ("connector", "resolver", "random") if name in parts}
    injected.setdefault("random", lambda: 0.5)
    config = config_for(*brokers, **parts)
    metadata = Metadata(config, manual, random=lambda: 0.5)
    poller = Poller()
    client = NetworkClient(config, manual, metadata, poller, **injected)
    try:
        yield Rig(client, metadata, manual, poller)
    finally:
        client.close()


@contextlib.contextmanager
def brokers(count: int = 1, **options: Any) -> Iterator[list[FakeBroker]]:
    """Fake brokers that name each other in their metadata, and a topic t with a partition on each."""
    made = [FakeBroker(**options) for _ in range(count)]
    for broker in made:
        broker.cluster = cluster_of(*made, topics={"t": count})
    try:
        yield made
    finally:
        for broker in made:
            broker.close()


@contextlib.contextmanager
def one_broker(**settings: Any) -> Iterator[tuple[Rig, FakeBroker]]:
    """A client connected to broker 0."""
    with brokers() as (broker,), rig(broker, **settings) as rigged:
        rigged.connect(0)
        yield rigged, broker


def produce(
    payload: bytes = b"records", *, answered: bool = True, context: Any = None, version: int = 3, **options: Any
) -> Request:
    """A Produce request with `payload` as its body: the fake broker does not decode it."""

    def build(correlation_id: int) -> Frame:
        # The client id is null.
        header = messages.encode_request_header(messages.PRODUCE, version, correlation_id, None)
        frame = Frame()
        frame.add_bytes((len(header) + len(payload)).to_bytes(4, "big") + header)
        frame.add_bytes(payload)
        return frame

    return Request(messages.PRODUCE, version, build, context, answered, **options)


def poison(payload: bytes) -> None:
    """Overwrite a bytes object in place, as the next owner of a slab overwrites the slab."""
    ctypes.memset(ctypes.cast(ctypes.c_char_p(payload), ctypes.c_void_p), 0xDD, len(payload))
