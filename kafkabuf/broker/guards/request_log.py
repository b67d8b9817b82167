"""The last requests of the clients, for tests to assert on. Thread: the event loop."""

from __future__ import annotations

import asyncio
import builtins
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol
from uuid import UUID

from kafkabuf.broker.waiting.slices import Work
from kafkabuf.broker.wire.produce import ProduceResponse
from kafkabuf.clock import Clock
from kafkabuf.errors import TimeoutError
from kafkabuf.protocol.messages import RequestHeader

# A request may name any number of partitions. The log shows the first of them.
_MAX_NAMED = 1000
# Most values in a response have these types, and no error code.
_WITHOUT_ERROR_CODE = (int, str, bytes, type(None))


class Catalogue(Protocol):
    """What the request log needs of the catalogue."""

    def topic_name(self, name: str | UUID) -> str: ...


class Cluster(Protocol):
    """What the request log needs of the cluster."""

    clock: Clock

    @property
    def catalogue(self) -> Catalogue: ...


class Node(Protocol):
    """What the request log needs of the node that was asked."""

    node_id: int

    @property
    def cluster(self) -> Cluster: ...


@dataclass(slots=True)
class LoggedRequest:
    """One request.

    `topics`: each topic that the request names, with the partitions that it names. `error_code`: the first error code
    in the response, 0 without an error, None before the response. `time_ms` is on the cluster's clock.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    node_id: int
    time_ms: int
    topics: dict[str, tuple[int, ...]]
    error_code: int | None = None

    def note_response(self, response: Any) -> None:
        """Thread: the event loop."""
        if isinstance(response, ProduceResponse):
            self.error_code = response.first_error
        else:
            self.error_code = response if isinstance(response, int) else _first_error(response)

    def note_response_in_steps(self, response: Mapping[str, Any]) -> Work[None]:
        """As `note_response`, for a large response: a step for each mapping in it."""
        self.error_code = yield from _first_error_in_steps(response)


Match = Callable[[LoggedRequest], bool]


@dataclass(slots=True, eq=False)
class _Waiter:
    match: Match
    missing: int
    matched: asyncio.Future[LoggedRequest]

    def count(self, request: LoggedRequest) -> None:
        if self.matched.done():
            return
        try:
            self.missing -= self.match(request)
        except Exception as error:  # `match` is the user's: its error goes to the waiter, not to the client
            self.matched.set_exception(error)
            return
        if self.missing <= 0:
            self.matched.set_result(request)


class RequestLog:
    """An entry changes until its response exists. So callers get copies."""

    def __init__(self, size: int) -> None:
        self._entries: deque[LoggedRequest] = deque(maxlen=size)
        self._waiters: set[_Waiter] = set()

    def add(self, node: Node, header: RequestHeader, body: Any) -> LoggedRequest | None:
        """Logs a request. Returns None if the log has the size 0."""
        if not self._entries.maxlen:
            return None
        entry = LoggedRequest(
            header.api_key,
            header.version,
            header.correlation_id,
            header.client_id,
            node.node_id,
            node.cluster.clock.time_ms(),
            _named_partitions(node, body),
        )
        self._entries.append(entry)
        for waiter in self._waiters:
            waiter.count(entry)
        return entry

    def find(self, match: Match) -> list[LoggedRequest]:
        return [replace(entry) for entry in self._entries if match(entry)]

    def clear(self) -> None:
        self._entries.clear()

    async def wait_for(self, match: Match, count: int, seconds: float) -> LoggedRequest:
        """The request with which `count` requests have matched, past requests included. Raises TimeoutError after
        `seconds` of real time."""
        waiter = _Waiter(match, count, asyncio.get_running_loop().create_future())
        for entry in self._entries:
            waiter.count(entry)
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                return replace(await waiter.matched)
        except builtins.TimeoutError:
            raise TimeoutError(
                f"{count - waiter.missing} matching requests came within {seconds:g} s, {count} were expected"
            ) from None
        finally:
            self._waiters.discard(waiter)


def _named_partitions(node: Node, body: Any) -> dict[str, tuple[int, ...]]:
    topics = getattr(body, "topics", None) or getattr(body, "topic_data", None) or ()
    return {_topic_name(node, topic): tuple(_partitions(topic)) for topic in islice(topics, _MAX_NAMED)}


def _topic_name(node: Node, topic: Any) -> str:
    """The name of a topic in a request: `topic` is a name or id, a pair that begins with it, or a message."""
    name_or_id = topic[0] if isinstance(topic, tuple) else _first(topic, "name", "topic", "topic_id")
    return node.cluster.catalogue.topic_name(name_or_id) if isinstance(name_or_id, UUID) else str(name_or_id)


def _partitions(topic: Any) -> Iterator[int]:
    partitions = topic[1] if isinstance(topic, tuple) else _first(topic, "partitions", "partition_indexes")
    for partition in islice(partitions if isinstance(partitions, list | tuple) else (), _MAX_NAMED):
        if isinstance(partition, tuple):
            yield partition[0]
        else:
            yield (
                partition if isinstance(partition, int) else _first(partition, "partition_index", "partition", "index")
            )


def _first(message: Any, *attributes: str) -> Any:
    """The value of the first attribute that `message` has; `message` itself if it has no such attribute."""
    return next((value for name in attributes if (value := getattr(message, name, None)) is not None), message)


def _first_error_in_steps(answer: Any) -> Work[int]:
    if isinstance(answer, Mapping):
        if code := answer.get("error_code"):
            return int(code)
        answer = answer.values()
        yield
    elif not isinstance(answer, list | tuple):
        return _first_error(answer)
    for part in answer:
        if not isinstance(part, _WITHOUT_ERROR_CODE) and (code := (yield from _first_error_in_steps(part))):
            return int(code)
    return 0


def _first_error(answer: Any) -> int:
    """The first error code in a response of a handler: a dict, a sequence, or an object with error_code."""
    if isinstance(answer, dict):
        if code := answer.get("error_code"):
            return int(code)
        answer = answer.values()
    elif not isinstance(answer, (list, tuple)):
        topics = getattr(answer, "topics", None)
        return int(getattr(answer, "error_code", 0)) if topics is None else _first_error(topics)
    for part in answer:
        if not isinstance(part, _WITHOUT_ERROR_CODE) and (code := _first_error(part)):
            return code
    return 0
