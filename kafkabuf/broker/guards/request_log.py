"""What clients asked for, the last so many requests of it, for tests to assert on. Thread: the event loop."""

from __future__ import annotations

import asyncio
import builtins
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafkabuf.errors import KafkaError, TimeoutError
from kafkabuf.protocol.messages import RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster.cluster import Node

# A request may name as many partitions as it likes; the log shows the first so many.
_MOST = 1000
# Most of what an answer holds: none of it has an error code.
_PLAIN = (int, str, bytes, type(None))


@dataclass(slots=True)
class LoggedRequest:
    """One request. `topics`: the topics that it names, each with the partitions of it that it names. `error_code`: the
    first that its answer holds, 0 for none, None while there is no answer. `time_ms` is the cluster's clock's."""

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

    def look_at(self, request: LoggedRequest) -> None:
        if self.found.done():
            return
        try:
            self.missing -= self.match(request)
        except Exception as error:  # the match is the user's: what it raises is for who waits, not for the client
            self.found.set_exception(error)
            return
        if self.missing <= 0:
            self.found.set_result(request)


class RequestLog:
    """Entries change until their answer is there; what is handed out are copies."""

    def __init__(self, size: int) -> None:
        self._entries: deque[LoggedRequest] = deque(maxlen=size)
        self._waiters: set[_Waiter] = set()

    def add(self, node: Node, header: RequestHeader, body: Any) -> LoggedRequest | None:
        """None if nothing is logged here."""
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
            waiter.look_at(entry)
        return entry

    def find(self, match: Match) -> list[LoggedRequest]:
        return [replace(one) for one in self._entries if match(one)]

    def clear(self) -> None:
        self._entries.clear()

    async def wait_for(self, match: Match, count: int, seconds: float) -> LoggedRequest:
        """The request that makes it `count`, those of the past included. TimeoutError after so many real seconds."""
        waiter = _Waiter(match, count, asyncio.get_running_loop().create_future())
        for entry in self._entries:
            waiter.look_at(entry)
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
    """Of a topic in a request: a name or id, a pair that begins with it, or a message that has it."""
    found = topic[0] if isinstance(topic, tuple) else _first(topic, "name", "topic", "topic_id")
    if isinstance(found, UUID):
        try:
            return node.cluster.topic(found).name
        except KafkaError:
            pass
    return str(found)


def _partitions(topic: Any) -> Iterator[int]:
    partitions = topic[1] if isinstance(topic, tuple) else _first(topic, "partitions", "partition_indexes")
    for one in islice(partitions if isinstance(partitions, list | tuple) else (), _MOST):
        if isinstance(one, tuple):
            yield one[0]
        else:
            yield one if isinstance(one, int) else _first(one, "partition_index", "partition", "index")


def _first(message: Any, *attributes: str) -> Any:
    """What the first of these attributes holds that is there; the message itself if none is."""
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
