"""What a transactional producer asks the coordinators: in which order, whom, and when again. One request at a time.

All of it is guarded by the TransactionManager's lock.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from kafkabuf.clock import Clock
from kafkabuf.errors import UnsupportedVersionError
from kafkabuf.network.backoff import ExponentialBackoff
from kafkabuf.network.client import Completion
from kafkabuf.protocol import messages
from kafkabuf.transaction_requests import AddPartitions, Coordinator, TransactionalRequest, TxnOffsetCommit


class Client(Protocol):
    """What is needed of the NetworkClient."""

    @property
    def finalized_features(self) -> Mapping[str, int]: ...
    def least_loaded(self, *, connect: bool) -> int | None: ...
    def ready(self, node_id: int) -> bool: ...
    def takes_ahead(self, node_id: int) -> bool: ...
    def connection_delay(self, node_id: int) -> float: ...
    def api_version(self, node_id: int, api_key: int, supported: range) -> int: ...
    def send_entity(self, node_id: int, entity: Any, context: Any = None) -> None: ...
    def wakeup(self) -> None: ...


class RequestQueue:
    """Requests by priority, then by age, and the coordinators as far as they are known."""

    def __init__(self, client: Client, clock: Clock, backoff: ExponentialBackoff) -> None:
        self._client = client
        self._clock = clock
        self._backoff = backoff
        self._heap: list[tuple[int, int, TransactionalRequest]] = []
        self._count = itertools.count()
        self._coordinators: dict[Coordinator, int | None] = dict.fromkeys(Coordinator)
        self.group = ""  # whose coordinator is known, or looked for
        self.under_way = False

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

    def drop_unsent_partitions(self) -> None:
        """Forget what was never sent, and need not be: the coordinator has not heard of these partitions."""
        self._heap = [place for place in self._heap if not isinstance(place[2], AddPartitions) or place[2].attempts]
        heapq.heapify(self._heap)

    # ---- coordinators ------------------------------------------------------------------------------------------------

    def lacks_coordinator(self, request: TransactionalRequest) -> bool:
        """Whether the one that the request goes to is to be found first."""
        kind = request.coordinator
        if kind is None:
            return False
        if isinstance(request, TxnOffsetCommit) and request.group.group_id != self.group:
            self.group = request.group.group_id
            self._coordinators[kind] = None
        return self._coordinators[kind] is None

    def look_up(self, kind: Coordinator | None) -> None:
        """That coordinator is another one, or gone."""
        if kind is not None:
            self._coordinators[kind] = None

    def found_coordinator(self, kind: Coordinator, node_id: int) -> None:
        self._coordinators[kind] = node_id

    # ---- sending -----------------------------------------------------------------------------------------------------

    def retry(self, request: TransactionalRequest, patience: float | None = None) -> None:
        """Again after the back-off, or `patience` seconds where these are fewer."""
        delay = self._backoff.delay(request.attempts)
        request.not_before = self._clock.monotonic() + (delay if patience is None else min(delay, patience))
        request.attempts += 1
        self.push(request)

    def send_first(self, answered: Callable[[TransactionalRequest, Completion], None]) -> float:
        """Send the first request if its node takes it; seconds until it may be tried again.

        Raises UnsupportedVersionError where the node does not know what is asked, AuthenticationError where it will not
        have us: the request stays in the queue.
        """
        request = self._heap[0][2]
        kind = request.coordinator
        node_id = self._client.least_loaded(connect=True) if kind is None else self._coordinators[kind]
        if node_id is None:
            return self._backoff.delay(0)
        if not self._client.ready(node_id) and not self._client.takes_ahead(node_id):
            return self._client.connection_delay(node_id)
        allowed = range(request.versions.start, min(request.versions.stop, request.newest_version() + 1))
        try:
            version = self._client.api_version(node_id, request.api_key, allowed)
        except UnsupportedVersionError as error:
            text = f"the cluster is too old for what transactional.id asks of it ({type(request).__name__}): {error}"
            raise UnsupportedVersionError(text) from error
        self.pop()
        self.under_way = True
        entity = messages.build_request(request.api_key, version, **request.values())
        self._client.send_entity(node_id, entity, lambda completion: answered(request, completion))
        return float("inf")
