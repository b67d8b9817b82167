"""The requests of a transactional producer to its coordinators: their order, their node, and when they are repeated.

One request is under way at a time. The TransactionManager's lock guards all of it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaError, UnsupportedVersionError
from kafkabuf.metadata.groups import Coordinator
from kafkabuf.network._request import Completion
from kafkabuf.protocol import messages
from kafkabuf.transactions.requests import (
    AddOffsets,
    AddPartitions,
    FindCoordinator,
    TransactionalRequest,
    TxnOffsetCommit,
)


class Client(Protocol):
    """What is needed of the NetworkClient."""

    @property
    def finalized_features(self) -> Mapping[str, int]: ...
    def least_loaded(self, *, connect: bool, rather_not: int | None = None) -> int | None: ...
    def nobody(self) -> KafkaError | None: ...
    def ready(self, node_id: int) -> bool: ...
    def takes_ahead(self, node_id: int) -> bool: ...
    def connection_delay(self, node_id: int) -> float: ...
    def unreachable(self, node_id: int) -> KafkaError | None: ...
    def last_error(self, node_id: int) -> KafkaError | None: ...
    def api_version(self, node_id: int, api_key: int, supported: range) -> int: ...
    def send_entity(self, node_id: int, entity: Any, context: Any = None) -> None: ...
    def wakeup(self) -> None: ...


@dataclass
class Place:
    """Where a coordinator is, as far as is known.

    That is stale once another broker has taken over, or the one it names is gone. Who says so: its own answer
    (NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE); a request to it that gets no answer; a partition's leader that got
    none either (`TransactionManager.doubt_coordinator`); and the connection that ended or could not be made, be it
    while a request waits for it or before (`RequestQueue._unreachable`). Each time another broker is asked, which may
    not have heard of it and name the same node again. So that is repeated, the retry back-off between, until the node
    that is named takes a request.
    """

    node_id: int | None = None
    informant: int | None = None  # the broker that was asked last, since a coordinator has last answered well
    past_error: KafkaError | None = None  # what the node's connection had last failed with when the node was named
    in_vain: bool = False  # the node that was named last took no request
    not_before: float = 0.0  # no broker is asked earlier


class RequestQueue:
    """Requests by priority, then by age, and the coordinators as far as they are known."""

    def __init__(self, client: Client, clock: Clock, backoff: ExponentialBackoff) -> None:
        self._client = client
        self._clock = clock
        self._backoff = backoff
        self._heap: list[tuple[int, int, TransactionalRequest]] = []
        self._count = itertools.count()
        self._places = {kind: Place() for kind in Coordinator}
        self.group = ""  # whose coordinator is known, or looked for
        self.under_way: TransactionalRequest | None = None
        self.trouble: KafkaError | None = None  # what went wrong last, since a coordinator has last answered well
        self.trouble_since = float("inf")

    def __iter__(self) -> Iterator[TransactionalRequest]:
        return (request for _, _, request in self._heap)

    @property
    def first(self) -> TransactionalRequest | None:
        return self._heap[0][2] if self._heap else None

    def push(self, request: TransactionalRequest) -> None:
        heapq.heappush(self._heap, (request.priority, next(self._count), request))

    def pop(self) -> None:
        heapq.heappop(self._heap)

    def clear(self) -> None:
        self._heap.clear()

    def drop_what_aborting_spares(self) -> list[TransactionalRequest]:
        """Forget what was never sent, for the coordinator has not heard of it, and what serves offsets, which the abort
        would discard: what was dropped."""
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
        """Whether the one that the request goes to is to be found first."""
        kind = request.coordinator
        if kind is None:
            return False
        if isinstance(request, TxnOffsetCommit) and request.group.group_id != self.group:
            self.group = request.group.group_id
            self._places[kind] = Place()
        return self._places[kind].node_id is None

    def coordinator(self, request: TransactionalRequest) -> int | None:
        """The node that the request goes to, if that is known."""
        return None if request.coordinator is None else self._places[request.coordinator].node_id

    def look_up(self, kind: Coordinator | None) -> None:
        """That coordinator is another one, or gone."""
        if kind is not None:
            self._places[kind].node_id = None

    def push_lookup(self, request: FindCoordinator) -> None:
        """Ask for a coordinator, as soon as that may be done again."""
        request.not_before = self._places[request.kind].not_before
        self.push(request)

    def found_coordinator(self, kind: Coordinator, node_id: int) -> None:
        place = self._places[kind]
        place.node_id, place.past_error = node_id, self._client.last_error(node_id)

    def _unreachable(self, kind: Coordinator, error: KafkaError) -> None:
        """The node that was named takes no request: look for another, at once the first time."""
        place = self._places[kind]
        place.not_before = self._clock.monotonic() + (self._retry_delay() if place.in_vain else 0.0)
        place.in_vain = True
        place.node_id = None
        self.note_trouble(error)

    def _retry_delay(self) -> float:
        """retry.backoff.ms, always the same, as in Java: a transaction waits, and a request costs a broker little."""
        return self._backoff.delay(0)

    # ---- trouble -----------------------------------------------------------------------------------------------------

    def note_trouble(self, error: KafkaError) -> None:
        if self.trouble is None:
            self.trouble_since = self._clock.monotonic()
        self.trouble = error

    def forget_trouble(self) -> None:
        """A coordinator has answered: what comes now is another matter."""
        self.trouble, self.trouble_since = None, float("inf")
        for place in self._places.values():
            place.informant = None

    # ---- sending -----------------------------------------------------------------------------------------------------

    def retry(self, request: TransactionalRequest, error: KafkaError, patience: float | None = None) -> None:
        """Again after retry.backoff.ms, or `patience` seconds where these are fewer."""
        self.note_trouble(error)
        delay = self._retry_delay()
        request.not_before = self._clock.monotonic() + (delay if patience is None else min(delay, patience))
        request.attempts += 1
        self.push(request)

    def send_first(self, answered: Callable[[TransactionalRequest, Completion], None]) -> float:
        """Send the first request if its node takes it; seconds until it may be tried again.

        Raises UnsupportedVersionError where the node does not know what is asked, AuthenticationError where it will not
        have us, and whatever encoding a value raises that has no bytes: the request stays in the queue.
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
            text = f"the cluster is too old for what transactional.id asks of it ({type(request).__name__}): {error}"
            raise UnsupportedVersionError(text) from error
        entity = messages.build_request(request.api_key, version, **request.values())
        self._client.send_entity(node_id, entity, lambda completion: answered(request, completion))
        self.pop()
        self.under_way = request
        request.sent_to, request.sent_at = node_id, self._clock.monotonic()
        if request.coordinator is not None:
            self._places[request.coordinator].in_vain = False
        return float("inf")

    def _any_broker(self, request: FindCoordinator) -> int | None:
        """The broker to ask: not the broker that was asked last, which may be cut off and not know of the change."""
        place = self._places[request.kind]
        node_id = self._client.least_loaded(connect=True, rather_not=place.informant)
        if node_id is not None:
            place.informant = node_id
        elif (error := self._client.nobody()) is not None:
            self.note_trouble(error)
        return node_id

    def _failed_since_named(self, kind: Coordinator) -> KafkaError | None:
        """What has ended the connection, or an attempt at one, since the node was named: it may be gone for good."""
        place = self._places[kind]
        assert place.node_id is not None
        error = self._client.last_error(place.node_id)
        return None if error is place.past_error else error

    def _wait_for(self, node_id: int, kind: Coordinator | None) -> float:
        """Seconds until a node that takes no request now may take one. One that may never again is looked up."""
        delay = self._client.connection_delay(node_id)
        error = self._client.unreachable(node_id)
        if kind is None or error is None:
            return delay
        self._unreachable(kind, error)
        return 0.0
