"""The requests of a transactional producer to its coordinators: their order, their node, and their retries.

One request is under way at a time. The TransactionManager's lock guards everything here.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaError, UnsupportedVersionError
from kafkabuf.network._request import Completion
from kafkabuf.network.client import NetworkClient
from kafkabuf.protocol import messages
from kafkabuf.transactions.groups import Coordinator
from kafkabuf.transactions.requests import (
    AddOffsets,
    AddPartitions,
    FindCoordinator,
    TransactionalRequest,
    TxnOffsetCommit,
)


@dataclass
class Place:
    """The node of a coordinator, as far as the producer knows it.

    The knowledge is stale once another broker has taken over, or once the node is gone. The producer learns this from

    - a response of the node (NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE);
    - a request to the node that gets no response;
    - a partition's leader that got no response either (`TransactionManager.doubt_coordinator`);
    - the connection to the node, which ended or could not be made (`RequestQueue._unreachable`), while a request waits
      for it or before.

    Each time the producer asks another broker. That broker may not know of the change and name the same node again. So
    the producer asks again after the retry back-off, until the named node takes a request.
    """

    node_id: int | None = None
    asked_last: int | None = None  # the broker that was asked last; None after a coordinator's response without error
    earlier_error: KafkaError | None = None  # the last error of the node's connection before a broker named the node
    took_no_request: bool = False  # the node that a broker named last took no request
    not_before: float = 0.0  # the producer asks no broker before this time


Entry = tuple[int, int, TransactionalRequest]  # priority, age, request

# Coordinators of former keys that the producer remembers: one for each transactional id and group that it has served.
_REMEMBERED = 1_000


class RequestQueue:
    """Requests by priority, then by age, and the coordinators as far as the producer knows them."""

    def __init__(self, client: NetworkClient, clock: Clock, backoff: ExponentialBackoff) -> None:
        self._client = client
        self._clock = clock
        self._backoff = backoff
        self._heap: list[Entry] = []
        self._put_back: Entry | None = None  # an entry that `restore` returns to the heap
        self._count = itertools.count()
        self._places = {kind: Place() for kind in Coordinator}
        self.keys = dict.fromkeys(Coordinator, "")  # the transactional id and the group whose coordinators are in use
        self._remembered: dict[tuple[Coordinator, str], int] = {}  # the nodes of these keys and of former keys
        self.under_way: TransactionalRequest | None = None
        self.trouble: KafkaError | None = None  # the last error; None after a coordinator's response without error
        self.trouble_since = float("inf")

    def __iter__(self) -> Iterator[TransactionalRequest]:
        put_back = () if self._put_back is None else (self._put_back,)
        return (request for _, _, request in (*put_back, *self._heap))

    @property
    def first(self) -> TransactionalRequest | None:
        return self._heap[0][2] if self._heap else None

    def push(self, request: TransactionalRequest) -> None:
        heapq.heappush(self._heap, (request.priority, next(self._count), request))

    def pop(self) -> None:
        heapq.heappop(self._heap)

    def remove(self, request: TransactionalRequest) -> None:
        """Take a request out, if it is in the queue."""
        entry = next((entry for entry in self._heap if entry[2] is request), None)
        if entry is not None:
            self._heap.remove(entry)
            heapq.heapify(self._heap)

    def take_first(self) -> Entry:
        """Take the first request out, in a form that `put_back` takes."""
        return heapq.heappop(self._heap)

    def put_back(self, entry: Entry) -> None:
        """Undo `take_first`. This needs no memory. `restore` follows before anyone takes or reads the first request."""
        self._put_back = entry

    def restore(self) -> None:
        """Complete `put_back`. Without memory nothing changes, and the next call tries again."""
        if self._put_back is not None:
            heapq.heappush(self._heap, self._put_back)
            self._put_back = None

    def clear(self) -> None:
        self._put_back = None
        self._heap.clear()

    def drop_before_abort(self) -> list[TransactionalRequest]:
        """Drop the requests that an abort makes unnecessary, and return them.

        The coordinator does not know of partitions and offsets in requests that were never sent. The abort discards the
        offsets of the other requests.
        """
        self.restore()
        dropped: list[TransactionalRequest] = [
            request
            for request in self
            if request.serves_offsets or (isinstance(request, AddPartitions | AddOffsets) and not request.attempts)
        ]
        self._heap = [entry for entry in self._heap if entry[2] not in dropped]
        heapq.heapify(self._heap)
        return dropped

    # ---- coordinators ------------------------------------------------------------------------------------------------

    def lacks_coordinator(self, request: TransactionalRequest) -> bool:
        """Whether the coordinator that the request goes to must be looked up first."""
        kind = request.coordinator
        if kind is None:
            return False
        if isinstance(request, TxnOffsetCommit) and request.group.group_id != self.keys[kind]:
            self.assign(kind, request.group.group_id)
        return self._places[kind].node_id is None

    def assign(self, kind: Coordinator, key: str) -> None:
        """Use the coordinator of `key` from now on: the remembered node, or the node that a broker will name."""
        self.keys[kind] = key
        self._places[kind] = Place()
        node_id = self._remembered.get((kind, key))
        if node_id is not None:
            self._use(kind, node_id)

    def remember(self, kind: Coordinator, key: str, node_id: int) -> None:
        """Another producer has found the coordinator of `key`."""
        while len(self._remembered) >= _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[kind, key] = node_id

    def coordinator(self, request: TransactionalRequest) -> int | None:
        """The node that the request goes to; None: unknown, or any node."""
        return None if request.coordinator is None else self._places[request.coordinator].node_id

    def look_up(self, kind: Coordinator | None) -> None:
        """Forget the coordinator's node: another node is the coordinator now, or the node is gone."""
        if kind is not None:
            self._forget(kind)

    def _forget(self, kind: Coordinator) -> None:
        self._places[kind].node_id = None
        self._remembered.pop((kind, self.keys[kind]), None)

    def push_lookup(self, request: FindCoordinator) -> None:
        """Queue the lookup of a coordinator. It goes as soon as the producer may ask again."""
        request.not_before = self._places[request.kind].not_before
        self.push(request)

    def found_coordinator(self, kind: Coordinator, key: str, node_id: int) -> None:
        """A broker has named the node of the coordinator of `key`."""
        self.remember(kind, key, node_id)
        if key == self.keys[kind]:
            self._use(kind, node_id)

    def _use(self, kind: Coordinator, node_id: int) -> None:
        place = self._places[kind]
        place.node_id, place.earlier_error = node_id, self._client.last_error(node_id)

    def known_node(self, kind: Coordinator) -> int:
        """The node of the coordinator in use; -1: unknown."""
        node_id = self._places[kind].node_id
        return -1 if node_id is None else node_id

    def _unreachable(self, kind: Coordinator, error: KafkaError) -> None:
        """The named node takes no request: look the coordinator up again, the first time at once."""
        place = self._places[kind]
        place.not_before = self._clock.monotonic() + (self._retry_delay() if place.took_no_request else 0.0)
        place.took_no_request = True
        self._forget(kind)
        self.note_trouble(error)

    def _retry_delay(self) -> float:
        """retry.backoff.ms without growth, as in Java: a transaction waits, and a request costs a broker little."""
        return self._backoff.delay(0)

    # ---- trouble -----------------------------------------------------------------------------------------------------

    def note_trouble(self, error: KafkaError) -> None:
        if self.trouble is None:
            self.trouble_since = self._clock.monotonic()
        self.trouble = error

    def count_trouble_anew(self) -> None:
        """From now on other requests go: their coordinator has not refused any of them yet."""
        if self.trouble is not None:
            self.trouble_since = self._clock.monotonic()

    def forget_trouble(self) -> None:
        """A coordinator has responded without an error: earlier errors no longer explain a delay."""
        self.trouble, self.trouble_since = None, float("inf")
        for place in self._places.values():
            place.asked_last = None

    # ---- sending -----------------------------------------------------------------------------------------------------

    def retry(self, request: TransactionalRequest, error: KafkaError, longest_delay: float | None = None) -> None:
        """Send the request again after retry.backoff.ms, but after `longest_delay` seconds at the latest."""
        self.note_trouble(error)
        delay = self._retry_delay()
        request.not_before = self._clock.monotonic() + (delay if longest_delay is None else min(delay, longest_delay))
        request.attempts += 1
        self.push(request)

    def send_first(self, answered: Callable[[TransactionalRequest, Completion], None]) -> float:
        """Send the first request if its node takes it. Returns the seconds until the next call is due.

        Raises UnsupportedVersionError if the node does not support the request, AuthenticationError if the node refuses
        the client or shows a certificate that the client refuses, and any error of the encoder. After an error the
        request stays in the queue.
        """
        request = self._heap[0][2]
        node_id = self._any_broker(request) if isinstance(request, FindCoordinator) else self.coordinator(request)
        if node_id is None:
            return self._retry_delay()
        if request.coordinator is not None and (error := self._failed_since_named(request.coordinator)) is not None:
            self._unreachable(request.coordinator, error)
            return 0.0
        if not self._client.ready(node_id) and not self._client.takes_ahead(node_id):
            return self._wait_for(node_id, request.coordinator)
        allowed = range(request.versions.start, min(request.versions.stop, request.newest_version() + 1))
        try:
            version = self._client.api_version(node_id, request.api_key, allowed)
        except UnsupportedVersionError as error:
            text = f"the cluster is too old for transactional.id, which needs {type(request).__name__}: {error}"
            raise UnsupportedVersionError(text) from error
        entity = messages.build_request(request.api_key, version, **request.values())
        self._send(request, node_id, entity, lambda completion: answered(request, completion))
        return float("inf")

    def _send(
        self, request: TransactionalRequest, node_id: int, entity: Any, answered: Callable[[Completion], None]
    ) -> None:
        """Send the first request, or raise and change nothing: a request that is sent twice has two responses."""
        request.sent_at = self._clock.monotonic()
        earlier, request.sent_to = request.sent_to, node_id
        self.under_way = request
        entry = self.take_first()
        try:
            self._client.send_entity(node_id, entity, answered)
        except BaseException:
            self.put_back(entry)
            self.under_way = None
            request.sent_to = earlier
            raise
        if request.coordinator is not None:
            self._places[request.coordinator].took_no_request = False

    def _any_broker(self, request: FindCoordinator) -> int | None:
        """The broker to ask; if possible not the broker asked last, which may be cut off and not know of the change."""
        place = self._places[request.kind]
        node_id = self._client.least_loaded(connect=True, avoid=place.asked_last)
        if node_id is not None:
            place.asked_last = node_id
        elif (error := self._client.connection_error()) is not None:
            self.note_trouble(error)
        return node_id

    def _failed_since_named(self, kind: Coordinator) -> KafkaError | None:
        """The error that ended the node's connection, or an attempt to connect, after a broker had named the node.

        The node may be gone for good.
        """
        place = self._places[kind]
        assert place.node_id is not None
        error = self._client.last_error(place.node_id)
        return None if error is place.earlier_error else error

    def _wait_for(self, node_id: int, kind: Coordinator | None) -> float:
        """Seconds until the node may take a request. If the node may never take one, look the coordinator up again."""
        delay = self._client.connection_delay(node_id)
        error = self._client.unreachable(node_id)
        if kind is None or error is None:
            return delay
        self._unreachable(kind, error)
        return 0.0
