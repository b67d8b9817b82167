"""The last requests of clients, for tests to assert on. Thread: the event loop."""

from __future__ import annotations

import asyncio
import builtins
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol
from uuid import UUID

from kafkabuf.clock import Clock
from kafkabuf.errors import TimeoutError
from kafkabuf.protocol.messages import RequestHeader

# A request may name any number of partitions; the log shows no more than this.
_MOST = 1000
# Most values in an answer are of these types, which have no error code.
_PLAIN = (int, str, bytes, type(None))


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
    """One request. `topics` has the topics that the request names, each with the partitions that the request names.
    `error_code` is the first error code of the answer: 0 without an error, None while there is no answer. `time_ms` is
    the time of the cluster's clock."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    node_id: int
    time_ms: int
    topics: dict[str, tuple[int, ...]]
    error_code: int | None = None

    def note_answer(self, answer: Any) -> None:
        """Thread: the event loop."""
        self.error_code = answer if isinstance(answer, int) else _first_error(answer)


Match = Callable[[LoggedRequest], bool]


@dataclass(slots=True, eq=False)
class _Waiter:
    match: Match
    missing: int
    found: asyncio.Future[LoggedRequest]

    def check(self, request: LoggedRequest) -> None:
        if self.found.done():
            return
        try:
            self.missing -= self.match(request)
        except Exception as error:  # the match is the user's: its error is for the waiting thread, not for the client
            self.found.set_exception(error)
            return
        if self.missing <= 0:
            self.found.set_result(request)


class RequestLog:
    """An entry changes until its answer is there; callers get copies."""

    def __init__(self, size: int) -> None:
        self._entries: deque[LoggedRequest] = deque(maxlen=size)
        self._waiters: set[_Waiter] = set()

    def add(self, node: Node, header: RequestHeader, body: Any) -> LoggedRequest | None:
        """Logs a request. None if the log has no room for any."""
        if not self._entries.maxlen:
            return None
        entry = LoggedRequest(
            header.api_key,
            header.version,
            header.correlation_id,
            header.client_id,
            node.node_id,
            node.cluster.clock.time_ms(),
            _named(node, body),
        )
        self._entries.append(entry)
        for waiter in self._waiters:
            waiter.check(entry)
        return entry

    def find(self, match: Match) -> list[LoggedRequest]:
        return [replace(one) for one in self._entries if match(one)]

    def clear(self) -> None:
        self._entries.clear()

    async def wait_for(self, match: Match, count: int, seconds: float) -> LoggedRequest:
        """The `count`th request that matches, counted from the log's oldest. TimeoutError after `seconds` of real
        time."""
        waiter = _Waiter(match, count, asyncio.get_running_loop().create_future())
        for entry in self._entries:
            waiter.check(entry)
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                return replace(await waiter.found)
        except builtins.TimeoutError:
            raise TimeoutError(
                f"{count - waiter.missing} such requests came within {seconds:g} s, {count} were waited for"
            ) from None
        finally:
            self._waiters.discard(waiter)


def _named(node: Node, body: Any) -> dict[str, tuple[int, ...]]:
    topics = getattr(body, "topics", None) or getattr(body, "topic_data", None) or ()
    return {_name(node, topic): tuple(_partitions(topic)) for topic in islice(topics, _MOST)}


def _name(node: Node, topic: Any) -> str:
    """The name of a topic in a request: the request has a name or id, a pair that begins with it, or a message that
    has it."""
    found = topic[0] if isinstance(topic, tuple) else _first(topic, "name", "topic", "topic_id")
    return node.cluster.catalogue.topic_name(found) if isinstance(found, UUID) else str(found)


def _partitions(topic: Any) -> Iterator[int]:
    partitions = topic[1] if isinstance(topic, tuple) else _first(topic, "partitions", "partition_indexes")
    for one in islice(partitions if isinstance(partitions, list | tuple) else (), _MOST):
        if isinstance(one, tuple):
            yield one[0]
        else:
            yield one if isinstance(one, int) else _first(one, "partition_index", "partition", "index")


def _first(message: Any, *attributes: str) -> Any:
    """The value of the first of these attributes that the message has; the message itself if it has no such
    attribute."""
    return next((found for name in attributes if (found := getattr(message, name, None)) is not None), message)


def _first_error(answer: Any) -> int:
    """The first error code in an answer, as handlers give it: dicts, sequences, or objects with error_code."""
    if isinstance(answer, dict):
        if code := answer.get("error_code"):
            return int(code)
        answer = answer.values()
    elif not isinstance(answer, list | tuple):
        topics = getattr(answer, "topics", None)
        return int(getattr(answer, "error_code", 0)) if topics is None else _first_error(topics)
    for one in answer:
        if not isinstance(one, _PLAIN) and (code := _first_error(one)):
            return code
    return 0
