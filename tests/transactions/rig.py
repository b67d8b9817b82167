"""A transactional producer turned by hand: small coordinators for it, and a clock that runs its turns.

A thread that waits on the clock runs the Sender's turns, and time passes while the Sender waits. So a whole commit is
one call in one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafkabuf.clock import Lockable, ManualClock
from kafkabuf.errors import KafkaError, NetworkError, UnsupportedVersionError
from kafkabuf.network.client import Completion, Request
from kafkabuf.protocol import messages
from kafkabuf.protocol._frame import Frame
from kafkabuf.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from kafkabuf.transactions.groups import GroupMetadata
from kafkabuf.transactions.manager import TransactionManager
from kafkabuf.transactions.states import State
from rigs.fake_client import FakeClient, OtherRequest, Sent
from rigs.producer import TOPIC, Rig

NAMES = {
    FIND_COORDINATOR: "find",
    INIT_PRODUCER_ID: "init",
    ADD_PARTITIONS_TO_TXN: "add",
    ADD_OFFSETS_TO_TXN: "offsets",
    TXN_OFFSET_COMMIT: "commit offsets",
    END_TXN: "end",
    PRODUCE: "produce",
}
NEWEST = {FIND_COORDINATOR: 6, INIT_PRODUCER_ID: 5, ADD_PARTITIONS_TO_TXN: 5, ADD_OFFSETS_TO_TXN: 4,
          TXN_OFFSET_COMMIT: 5, END_TXN: 5}  # fmt: skip
LOST = NetworkError("the connection was lost")
REFUSED = NetworkError("cannot connect to broker 2 at h:1: Connection refused")
GROUP = GroupMetadata("readers", 5, "member-1", "instance-1")
GIVEN_ID = 9000
STEP = 0.02  # seconds that a poll takes at most, so that a thread that waits is not late
COORDINATOR = 2  # the node that coordinates transactions and groups

# The end of a request: the error code of its response (0 is success), or the error with which it ended without one.
Fate = int | KafkaError


class TurningClock(ManualClock):
    """A wait runs the Sender's turns until the lock is released or the time-out is over. None: without a time-out."""

    def __init__(self) -> None:
        super().__init__()
        self.turn: Callable[[], object] = lambda: None

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        deadline = float("inf") if timeout is None else self.monotonic() + timeout
        for _ in range(1000):
            if lock.acquire(blocking=False):
                return True
            if self.monotonic() >= deadline:
                return False
            before = self.monotonic()
            self.turn()
            if self.monotonic() == before:
                self.advance(0.001)
        if deadline == float("inf"):
            raise AssertionError("waits for ever")
        self.advance(deadline - self.monotonic())
        return lock.acquire(blocking=False)


@dataclass
class FakeCluster(FakeClient):
    """Answers all requests at the next poll: with success, unless the test sets another fate or holds the API."""

    clock: ManualClock = field(default_factory=ManualClock)
    finalized_features: dict[str, int] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=lambda: dict(NEWEST))
    fates: dict[int, list[Fate]] = field(default_factory=dict)  # API -> fates of the next requests
    held: set[int] = field(default_factory=set)  # APIs that get no response now
    coordinators: list[int] = field(default_factory=lambda: [COORDINATOR])  # named in turn, the last again and again
    epoch: int = -1
    producer_id: int = GIVEN_ID
    waiting: list[OtherRequest] = field(default_factory=list)
    history: list[int] = field(default_factory=list)  # APIs of all requests, Produce included, in order
    after_end: tuple[int, int] | None = None  # the id and epoch in the next EndTxn response

    def api_version(self, node_id: int, api_key: int, supported: tuple[int, int] | range) -> int:
        if api_key == PRODUCE:
            return super().api_version(node_id, api_key, supported)
        if supported[0] > self.newest[api_key]:
            raise UnsupportedVersionError(f"the broker knows {NAMES[api_key]} to version {self.newest[api_key]}")
        return min(self.newest[api_key], supported[-1])

    def send(self, node_id: int, request: Request) -> None:
        super().send(node_id, request)
        self.history.append(PRODUCE)

    def send_entity(self, node_id: int, entity: Any, context: Any = None) -> None:
        asked = OtherRequest(node_id, entity, context)
        self.asked.append(asked)
        self.waiting.append(asked)
        self.history.append(entity.__api_key__)

    def poll(self, timeout: float) -> list[Completion]:
        self.answer_all()
        completions = super().poll(timeout)
        if not completions:
            self.clock.advance(min(timeout, STEP))
        return completions

    def answer_all(self) -> None:
        for sent in list(self.under_way) if PRODUCE not in self.held else []:
            self.answer_produce(sent)
        for asked in [request for request in self.waiting if request.entity.__api_key__ not in self.held]:
            self.waiting.remove(asked)
            self._answer(asked, self._next_fate(asked.entity.__api_key__))

    def answer_produce(self, sent: Sent) -> None:
        fate = self._next_fate(PRODUCE)
        if isinstance(fate, KafkaError):
            self.fail(sent, fate)
        else:
            self.answer(sent, fate)

    def _next_fate(self, api_key: int) -> Fate:
        fates = self.fates.get(api_key)
        return fates.pop(0) if fates else 0

    def _answer(self, asked: OtherRequest, fate: Fate) -> None:
        api_key, version = asked.entity.__api_key__, asked.entity.__version__
        request = Request(api_key, version, lambda _: Frame(), asked.context)
        if isinstance(fate, KafkaError):
            self._completions.append(Completion(request, asked.node_id, None, fate, 0.0))
            return
        entity = messages.build_response(api_key, version, throttle_time=0, **self._values(asked.entity, fate))
        data = messages.encode_response(api_key, version, 1, entity)
        self._completions.append(Completion(request, asked.node_id, data, None, 0.0))

    def _values(self, entity: Any, code: int) -> dict[str, Any]:
        match entity.__api_key__:
            case messages.FIND_COORDINATOR:
                named = self.coordinators[0] if len(self.coordinators) == 1 else self.coordinators.pop(0)
                coordinator = {"node_id": named, "host": "h", "port": 1, "error_code": code, "error_message": None}
                key = entity.coordinator_keys[0] if entity.__version__ >= 4 else ""
                return {**coordinator, "coordinators": [{**coordinator, "key": key}]}
            case messages.INIT_PRODUCER_ID:
                self.epoch += code == 0
                return {"error_code": code, "producer_id": self.producer_id, "producer_epoch": self.epoch}
            case messages.ADD_PARTITIONS_TO_TXN:
                topics = [
                    {
                        "name": topic.name,
                        "results_by_partition": [
                            {"partition_index": number, "partition_error_code": code} for number in topic.partitions
                        ],
                    }
                    for topic in entity.v3_and_below_topics
                ]
                return {"results_by_topic_v3_and_below": topics}
            case messages.TXN_OFFSET_COMMIT:
                topics = [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": partition.partition_index, "error_code": code}
                            for partition in topic.partitions
                        ],
                    }
                    for topic in entity.topics
                ]
                return {"topics": topics}
            case messages.END_TXN:
                if code == 0 and entity.__version__ >= 5:
                    self.producer_id, self.epoch = self.after_end or (self.producer_id, self.epoch + 1)
                return {"error_code": code, "producer_id": self.producer_id, "producer_epoch": self.epoch}
        return {"error_code": code}


class TransactionalRig(Rig):
    """Three partitions, whose leaders are nodes 1, 1 and 3. Node 2 is every coordinator."""

    client: FakeCluster

    def __init__(self, *, v2: bool = False, **settings: Any) -> None:
        clock = TurningClock()
        self.cluster = FakeCluster(clock=clock, finalized_features={"transaction.version": 2} if v2 else {})
        defaults: dict[str, Any] = {
"linger_ms": 0, "request_timeout_ms": 500, "delivery_timeout_ms": 10_000,
                    "retry_backoff_ms": 100, "retry_backoff_max_ms": 100, "max_block_ms": 5_000,
                    "transactional_id": "t"}  # fmt: skip
        super().__init__((1, 1, 3), clock=clock, client=self.cluster, **(defaults | settings))
        clock.turn = self.sender.run_once
        state = self.accumulator.producer_state
        assert state is not None
        state.set_producer_id_and_epoch(-1, -1)
        assert self.sender.transactions is not None
        self.manager: TransactionManager = self.sender.transactions

    # ---- the broker's side

    def fate(self, api_key: int, *fates: Fate) -> None:
        """Set the fates of the next requests of an API."""
        self.cluster.fates.setdefault(api_key, []).extend(fates)

    def hold(self, *api_keys: int) -> None:
        self.cluster.held |= set(api_keys)

    def let_go(self, *api_keys: int) -> None:
        self.cluster.held -= set(api_keys)

    def lose(self, node_id: int) -> None:
        """The node cannot be connected to."""
        self.cluster.unready.add(node_id)
        self.cluster.errors[node_id] = REFUSED

    def restore(self, node_id: int) -> None:
        self.cluster.unready.discard(node_id)
        del self.cluster.errors[node_id]

    # ---- the producer's side

    def begun(self) -> TransactionalRig:
        """Begin a transaction, and return the rig."""
        self.manager.init()
        self.manager.begin()
        self.forget()
        return self

    def turns(self, count: int = 5) -> None:
        """Run turns that do not wait. Each answers all requests whose API is not held."""
        for _ in range(count):
            self.sender.run_once(0)

    def until_state(self, state: State) -> None:
        self.until(lambda: self.manager.state is state)

    def until(self, what: Callable[[], bool]) -> None:
        for _ in range(200):
            if what():
                return
            self.sender.run_once(0.1)
        raise AssertionError(f"still {self.manager.state}")

    # ---- the requests

    def forget(self) -> None:
        """Forget the requests so far."""
        self.cluster.history.clear()
        self.cluster.asked.clear()

    @property
    def asked(self) -> list[str]:
        """The names of all requests since `forget`."""
        return [NAMES[api_key] for api_key in self.cluster.history]

    def entities(self, api_key: int) -> list[Any]:
        return [request.entity for request in self.cluster.asked if request.entity.__api_key__ == api_key]

    def assert_usable(self) -> None:
        """Check that a whole transaction succeeds."""
        self.manager.begin()
        future = self.send()
        self.manager.commit()
        assert future.result(0).topic == TOPIC
        assert self.manager.state is State.READY
