"""One script of raw requests for any broker, for every API in every version that is served here: what it answers,
field by field. The steps are in the other modules of this folder, what may differ, and why, in deviations.py.

Both brokers are asked about the same names. Ids that a broker chooses (topics', producers', members') are renamed in
the order in which they appear; addresses, times, texts and folders count only as being there. The order of arrays does
not count, for Kafka's is often that of a hash table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient
from tests.broker.transaction_script import heads

# What passes by itself: coordinators that are loading, markers that are being written.
_TRANSIENT = {14, 15, 16, 51}
# Fields of which only counts whether there is something.
_VAGUE = {
    "error_message",
    "cluster_id",
    "host",
    "port",
    "log_dir",
    "total_bytes",
    "usable_bytes",
    "last_timestamp",
    "transaction_start_time",
    "finalized_features_epoch",
}
_MEMBERS = {"member_id", "leader"}
_PRODUCERS = {"producer_id"}
CLOSED = "the connection is closed"

Step = Callable[["Conversation", int], None]
# By API key: what is done in each of its versions.
STEPS: dict[int, list[Step]] = {}


def step(api_key: int) -> Callable[[Step], Step]:
    """The decorated function asks, in a version that it is given, about one API."""

    def register(function: Step) -> Step:
        STEPS.setdefault(api_key, []).append(function)
        return function

    return register


@dataclass
class Conversation:
    """`answers` by (API key, version, name of the step). `topic` has three partitions and a few records in the first;
    `name` is what everything else that is made here begins with."""

    address: str
    name: str
    client: RawClient
    answers: dict[tuple[int, int, str], Any] = field(default_factory=dict)
    api_key: int = -1
    version: int = -1
    topic_id: UUID | None = None
    _ids: dict[str, dict[Any, str]] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"{self.name}-t"

    def own(self, what: str) -> str:
        """A name that belongs to this API and version."""
        return f"{self.name}-{what}-{self.api_key}-{self.version}"

    def do(self, api_key: int, version: int, **values: Any) -> Any:
        """Asks, again and again while what hinders passes by itself; unrecorded. CLOSED if there is no answer."""
        for _ in range(400):
            self.client.send(api_key, version, **values)
            if (frame := self.client.receive_frame()) is None:
                self.client.socket.close()
                self.client = RawClient(self.address)
                return CLOSED
            _, answer = messages.decode_response(api_key, version, frame)
            if not _TRANSIENT.intersection(_codes(answer)):
                break
            time.sleep(0.01)
        return answer

    def ask(self, what: str, **values: Any) -> Any:
        """Asks in the API and version whose turn it is, and records the answer."""
        return self.record(what, self.do(self.api_key, self.version, **values))

    def record(self, what: str, answer: Any) -> Any:
        key = self.api_key, self.version, what
        assert key not in self.answers, f"two steps are called {key}"
        self.answers[key] = self.plain(answer)
        return answer

    def plain(self, value: Any, name: str = "") -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            # Plain fields first: ids are numbered in the order of appearance, and arrays come in any order.
            found = sorted(fields(value), key=lambda one: isinstance(getattr(value, one.name), tuple))
            return {one.name: self.plain(getattr(value, one.name), one.name) for one in found}
        if isinstance(value, tuple):
            return sorted((self.plain(one, name) for one in value), key=repr)
        if name in _VAGUE:
            return bool(value)
        if isinstance(value, ErrorCode):
            return value.name
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, UUID):
            return self._named("topic", value)
        if (name in _MEMBERS and value) or (name in _PRODUCERS and value >= 0):
            return self._named("member" if name in _MEMBERS else "producer", value)
        if name == "records" and value is not None:
            return heads(bytes(value))
        return isinstance(value, datetime) or value

    def _named(self, kind: str, value: Any) -> str:
        known = self._ids.setdefault(kind, {})
        return known.setdefault(value, f"{kind} {len(known) + 1}")


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, ErrorCode):
        yield int(value)
    elif isinstance(value, tuple):
        for one in value:
            yield from _codes(one)
    elif is_dataclass(value):
        for one in fields(value):
            yield from _codes(getattr(value, one.name))


def versions(address: str) -> dict[int, range]:
    """What a broker says that it serves."""
    with RawClient(address) as client:
        answer = client.ask(messages.API_VERSIONS, 3, client_software_name="raw", client_software_version="1")
    return {one.api_key: range(one.min_version, one.max_version + 1) for one in answer.api_keys}


def run(talk: Conversation, wanted: Mapping[int, Iterable[int]]) -> None:
    """Every step, for every version that is wanted."""
    for api_key, steps in sorted(STEPS.items()):
        for version in wanted.get(api_key, ()):
            talk.api_key, talk.version = api_key, version
            for one in steps:
                one(talk, version)


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, ours, theirs) of every field that is not the same."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for name in ours:
            yield from differences(ours[name], theirs[name], f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            yield from differences(one, other, f"{path}[{_name(one, other)}]")
    elif path.endswith("error_message"):
        # Whether there is a text: where Kafka has one there has to be one here, and there may be more here.
        if theirs and not ours:
            yield path, ours, theirs
    elif ours != theirs:
        yield path, ours, theirs


def _name(ours: Any, theirs: Any) -> str:
    """What an item of an array is called, if it is one thing on both sides."""
    names = [one.get("name") if isinstance(one, dict) else None for one in (ours, theirs)]
    return str(names[0]) if names[0] is not None and names[0] == names[1] else ""
