"""The request path as a fuzzer sees it: a node answers any bytes or closes the connection, at a bounded cost.

`Target` serves a request over a socket pair, in an event loop that it turns by hand, and measures what the request
costs another client:

- its wait: the longest turn of the loop, since a request that comes as a turn begins waits for the whole turn; or the
  time to the response of a second client, if that is longer. Time in which the thread was ready and the machine ran
  something else does not count.
- memory: the peak of the process's resident memory above what it held before, while the client does not read.

The corpus (corpus.txt) has a request of every API in every version, taken from the script of tests/conformance.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kafkabuf.broker import apis
from kafkabuf.broker.guards.request_log import LoggedRequest
from kafkabuf.protocol import messages
from kafkabuf.protocol.error_codes import ErrorCode
from tests.broker.raw_client import batch, error_codes
from tests.hostile.fuzz_requests.measures import Client, Log, Meter, Selector
from tests.hostile.fuzz_requests.worlds import PASSWORD, TOPIC, USER, FuzzError, World, few_descriptors
from tests.needs import SANITIZED

CORPUS = Path(__file__).with_name("corpus.txt")
# The prefix of all names in the corpus.
NAME = "f"
MAX_REQUEST = 1 << 20
MAX_WAIT = 0.1
MAX_MEMORY = 64 << 20
# Under sanitizers everything takes longer, and freed memory is kept for a while. FUZZ_SLOWER=10 is for a machine whose
# processors serve others too: caches and clock rates are theirs.
SLOWER = 30 if SANITIZED else int(os.environ.get("FUZZ_SLOWER", "1"))
# A world serves so many requests, or serves for so long, before a new world takes its place. What it makes, changes or
# deletes, folders above all, has more time: a topic of thousands of partitions must live to see its deletion.
GENERATION = 1_000
_WORLD_SECONDS, _THING_SECONDS = 3.0, 0.002
# The first partition of TOPIC has so many batches of a megabyte.
_BATCHES = 12
# More lines than these, and than half of the requests, are a flood: each node logs ten, and then a count a second.
_FEW_LINES = 60
# Between two requests passes this time on the cluster's clock. After an expensive request, or a number of requests,
# passes the time after which the cluster looks after its logs.
_STEP_SECONDS, _CHECK_SECONDS, _CHECK_EVERY = 0.002, 1.1, 25
_COSTLY = 0.01
# A parked request is given up, or gets this time.
_PATIENCE = 40.0
# Slices of work may pause for so long.
_PAUSE_SECONDS = 0.02
_KAFKA_STORAGE_ERROR, _UNKNOWN_SERVER_ERROR = 56, -1
# As in Kafka, an ACL with ANY or MATCH, which are for filters, fails its request so, and so does a classic member of a
# consumer group whose subscription is malformed.
_UNKNOWN_IN_KAFKA_TOO = (messages.CREATE_ACLS, messages.JOIN_GROUP)
_CHANGES_TOPICS = {
    messages.METADATA, messages.CREATE_TOPICS, messages.DELETE_TOPICS, messages.CREATE_PARTITIONS,
}  # fmt: skip
_LENGTH = struct.Struct(">i")
# The client id of the second client.
_PROBER = "probe"


@dataclass(frozen=True)
class Case:
    """A request. `expect`: "accepted" (no error code in the response), "refused" (an error code in it), or "" for
    anything. `mechanism`: SaslHandshake names it before. `descriptors`: so many files can be opened meanwhile.
    `origin`: how the request was made."""

    frame: bytes
    expect: str = ""
    mechanism: str = ""
    descriptors: int | None = None
    origin: str = ""

    @property
    def api_key(self) -> int:
        return struct.unpack_from(">h", self.frame)[0] if len(self.frame) > 1 else -1


class Cost(NamedTuple):
    """Seconds that another client waits, and bytes."""

    wait: float
    memory: int


def corpus() -> list[bytes]:
    return [bytes.fromhex(line) for line in CORPUS.read_text().split()]


def api_of(frame: bytes) -> tuple[int, int]:
    """(API key, version)"""
    key, version = struct.unpack_from(">hh", frame)
    return key, version


class Target:
    """Raises FuzzError for a broken promise, and what the broker raised while it served a request. `turned` is called
    after each turn of the loop, with the number of things that the cluster has made, changed or deleted for the
    request."""

    def __init__(self, kind: str = "memory", turned: Callable[[int], None] = lambda things: None) -> None:
        apis.load()
        self._kind = kind
        self._logger = logging.getLogger("kafkabuf")
        self._before = self._logger.level, self._logger.propagate
        self.log = Log()
        self._logger.addHandler(self.log)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._meter = Meter()
        self._tell = turned
        self._selector = Selector(self._turned)
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self.loop.set_exception_handler(self.log.loop_failed)
        self._room = bytearray(1 << 18)
        self._probe_frame = _framed(_probe())
        self._world: World | None = None
        self._client: Client | None = None
        self.served = self._things = 0
        self._crowded = False
        # Seconds: of all requests of this world, the greatest wait of a request, and the wait of the second client
        # since it asked (None: it asks nothing).
        self._worked = self._longest = 0.0
        self._asked: float | None = None

    def close(self) -> None:
        self.end()
        self.loop.close()
        self._meter.close()
        self._logger.removeHandler(self.log)
        self._logger.level, self._logger.propagate = self._before

    # ---- worlds

    @property
    def world(self) -> World:
        self.begin()
        assert self._world is not None
        return self._world

    def begin(self) -> None:
        """Make the world, if there is none."""
        if self._world is not None:
            return
        world = self._world = World(self._kind, self.loop)
        self.served, self.log.lines, self._worked = 0, 0, 0.0
        self._things, self._crowded = 0, False
        self._prober = Client(self.loop, world)
        if self._kind == "sasl":
            self._exchange(self._prober, messages.SASL_HANDSHAKE, 1, mechanism="PLAIN")
            self._exchange(self._prober, messages.SASL_AUTHENTICATE, 1, auth_bytes=f"\0{USER}\0{PASSWORD}".encode())
        else:
            partitions = [{"index": 0, "records": _megabyte()}]
            for _ in range(_BATCHES):
                data = [{"name": TOPIC, "partition_data": partitions}]
                self._exchange(self._prober, messages.PRODUCE, 9, acks=1, timeout=1000, topic_data=data)

    def end(self) -> None:
        """Give the world up; the next request gets another."""
        if self._world is None:
            return
        world, self._world = self._world, None
        self._asked = None
        self._hang_up()
        self._prober.close()
        self._settle()
        world.close()
        self._settle()
        ctypes.CDLL(None).malloc_trim(0)

    def finish(self, generator: Any) -> None:
        """What must hold at the end of a generation. Raises FuzzError."""
        self._hang_up()
        self._settle()
        if self.log.lines > max(_FEW_LINES, self.served // 2):
            raise FuzzError("log", f"{self.log.lines} warnings for {self.served} requests: a client floods the log")
        self.world.finish(generator)
        self.log.take()

    @property
    def old(self) -> bool:
        """Whether the world has served enough, or has no room for more."""
        return self._crowded or self.served >= GENERATION or self._tired

    @property
    def _tired(self) -> bool:
        return self._worked > _WORLD_SECONDS + _THING_SECONDS * self.world.things()

    def things_at_end(self) -> int:
        """More than the end of the generation makes, changes and deletes: it starts a few clusters."""
        return 10 * self.world.partitions()

    def _turned(self) -> None:
        # A deletion takes logs away.
        self._tell(0 if self._world is None else max(self._world.things() - self._things, 0))

    def _settle(self) -> None:
        for _ in range(5):
            self._turn()

    # ---- requests

    def __call__(self, frame: bytes) -> None:
        """Serve a frame. A measurement that is too large is made again, since the machine may have been busy."""
        if self._world is not None and (self.served >= 5 * GENERATION or self._tired):
            self.end()
        for attempt in (1, 2, 3):
            try:
                self.serve(Case(frame))
                return
            except FuzzError as error:
                if error.kind not in ("wait", "memory") or attempt == 3:
                    raise

    def serve(self, case: Case) -> Cost:
        """Serve a request, and check the promises."""
        world = self.world
        self._things = world.things()
        client = self._connected(case)
        self.served += 1
        held = self._meter.forget_peak()
        self._longest = 0.0
        before = next(self._newest_entries(), None)
        began = self._meter.seconds()
        with few_descriptors(case.descriptors):
            memory = self._carry(client, memoryview(_framed(case.frame)), held)
        if client.connection.parked:
            self._wait_or_leave(client, case)
        self._pass_time(self._longest > _COSTLY or self.served % _CHECK_EVERY == 0)
        cost = Cost(self._longest, max(memory, self._meter.peak() - held))
        self._worked += self._meter.seconds() - began
        self._check(case, client, cost, before)
        if client.closed or client.connection.parked or case.mechanism:
            self._hang_up()
        if case.api_key in _CHANGES_TOPICS:
            world.check()
            self._crowded = world.crowded()
        return cost

    def _connected(self, case: Case) -> Client:
        if case.mechanism:
            self._hang_up()
        if self._client is None:
            self._client = Client(self.loop, self.world)
            if case.mechanism:
                self._exchange(self._client, messages.SASL_HANDSHAKE, 1, mechanism=case.mechanism)
        self._client.forget()
        return self._client

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
            self._turn()

    def _exchange(self, client: Client, key: int, version: int, **values: Any) -> None:
        """A request that nobody measures."""
        entity = messages.build_request(key, version, **values)
        rest = memoryview(_framed(messages.encode_request(key, version, 1, "fuzz", entity)))
        client.forget()
        while not client.whole():
            rest = client.push(rest)
            self._turn()
            client.drain(self._room)
            assert not client.closed, "the node closed the connection"

    def _carry(self, client: Client, rest: memoryview, held: int) -> int:
        """Send a request, wait until the node rests, and only then read. A second client asks once the request is
        there, and again as long as it is expensive. Returns the growth of the memory before the client reads."""
        peak, asked = 0, False
        while True:
            rest = client.push(rest)
            busy = self._turn() or self._soon()
            if not rest and not asked:
                self._ask()
                asked = busy = True
            if busy:
                continue
            if not peak:
                peak = self._meter.peak() - held
            if not client.drain(self._room):
                break
        if self._asked is not None:
            raise FuzzError("silence", "the second client got no response")
        return peak

    def _turn(self) -> bool:
        """One turn of the loop; returns whether anything happened in it."""
        ready: Any = self.loop._ready  # type: ignore[attr-defined]
        busy = bool(ready)
        began = self._meter.seconds()
        self.loop.stop()
        self.loop.run_forever()
        took = self._meter.seconds() - began
        self._longest = max(self._longest, took)
        if self._asked is not None:
            self._hear(took)
        return busy or self._selector.events > 0 or bool(ready)

    def _ask(self) -> None:
        self._prober.forget()
        self._prober.push(memoryview(self._probe_frame))
        self._asked = 0.0

    def _hear(self, took: float) -> None:
        """The second client's wait grows by a turn. It asks again while the request is expensive."""
        assert self._asked is not None
        self._asked += took
        self._prober.drain(self._room)
        if self._prober.closed:
            raise FuzzError("silence", "the node closed the second client's connection")
        if self._prober.whole():
            self._longest = max(self._longest, self._asked)
            self._asked = None
            if took > _COSTLY:
                self._ask()

    def _soon(self) -> bool:
        """Wait for the pause between two slices of work. The cluster's clock has a timer of its own."""
        own = self.world.cluster.timer._armed if self._world is not None else None
        now = self.loop.time()
        for timer in self.loop._scheduled:  # type: ignore[attr-defined]
            if timer is not own and not timer.cancelled() and timer.when() - now < _PAUSE_SECONDS:
                time.sleep(max(0.0, timer.when() - now))
                return True
        return False

    def _wait_or_leave(self, client: Client, case: Case) -> None:
        if len(case.frame) % 2:
            self.world.clock.advance(_PATIENCE)
            self._advance()
            while self._turn() or client.drain(self._room):
                pass

    def _pass_time(self, long: bool) -> None:
        """Time passes on the cluster's clock: the node looks after its logs, and requests and sessions end."""
        self.world.clock.advance(_CHECK_SECONDS if long else _STEP_SECONDS)
        due = self.world.cluster.timer.next_expiry()
        if due is not None and due <= self.world.clock.monotonic():
            self._advance()
            while self._turn():
                pass

    def _advance(self) -> None:
        self.loop.call_soon(self.world.cluster.timer.advance)

    # ---- promises

    def _newest_entries(self) -> Iterator[LoggedRequest]:
        """The requests in the cluster's log, the newest first, without those of the second client."""
        logged = reversed(self.world.cluster.request_log._entries)
        return (entry for entry in logged if entry.client_id != _PROBER)

    def _check(self, case: Case, client: Client, cost: Cost, before: LoggedRequest | None) -> None:
        """`before`: the newest request in the log before this request, which may not come into the log."""
        self.log.take()
        size = len(case.frame)
        if cost.memory > MAX_MEMORY and not SANITIZED:
            raise FuzzError("memory", f"{cost.memory >> 20} MiB more: {MAX_MEMORY >> 20} MiB are allowed, for {size} "
                                      f"bytes")  # fmt: skip
        if cost.wait > MAX_WAIT * SLOWER:
            raise FuzzError("wait", f"another client waits for {cost.wait * 1000:.0f} ms: {MAX_WAIT * 1000:.0f} ms are "
                                    f"allowed, for {size} bytes")  # fmt: skip
        if not client.received:
            if case.expect == "accepted":
                raise FuzzError("refused", "a valid request got no response")
            return
        newest = next(self._newest_entries(), None)
        code = None if newest is None or newest is before else newest.error_code
        unknown = code == _UNKNOWN_SERVER_ERROR and case.api_key not in _UNKNOWN_IN_KAFKA_TOO
        if code and (unknown or (code == _KAFKA_STORAGE_ERROR and case.descriptors is None)):
            raise FuzzError("error code", f"the response has the error {ErrorCode(code).name}")
        if case.expect:
            self._check_response(case, client)

    def _check_response(self, case: Case, client: Client) -> None:
        key, version = api_of(case.frame)
        codes = set(error_codes(messages.decode_response(key, version, bytes(client.response[4:]))[1])) - {0}
        if codes and case.expect == "accepted":
            raise FuzzError("refused", f"a valid request got {', '.join(ErrorCode(code).name for code in codes)}")
        # OAUTHBEARER refuses a token with a message, and then waits until the client has seen it (RFC 7628).
        if not codes and case.expect == "refused" and b'"invalid_token"' not in client.response:
            raise FuzzError("accepted", "a request that must be refused was accepted")


@cache
def _megabyte() -> bytes:
    return batch([b"x" * 1_000_000])


def _framed(frame: bytes) -> bytes:
    return _LENGTH.pack(len(frame)) + frame


def _probe() -> bytes:
    """What the second client asks."""
    entity = messages.build_request(messages.METADATA, 9, topics=[], allow_auto_topic_creation=False)
    return messages.encode_request(messages.METADATA, 9, 1, _PROBER, entity)
