"""A script of raw requests for any broker, for every API and version that the embedded broker serves. It records the
responses field by field. The other modules of this folder have its steps; deviations.py has the known differences.

Both brokers get requests with the same names. The script renames the ids that a broker chooses (topics', producers',
members') in the order of their appearance. Of addresses, times, texts and folders it records only that they are there.
It sorts arrays, since the order of Kafka's is often that of a hash table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from kafkabuf.protocol import messages
from kafkabuf.protocol.error_codes import ErrorCode
from kafkabuf.protocol.schema import fields_of
from tests.broker.raw_client import RawClient, error_codes
from tests.broker.transactions.script import heads

# Errors that pass by themselves: a coordinator still loads, or still writes markers.
_TRANSIENT = {14, 15, 16, 51}
# Fields of which the script records only whether they are empty.
_PRESENCE_ONLY = {
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
    "subscription_id",
}
_MEMBERS = {"member_id", "leader"}
_PRODUCERS = {"producer_id"}
CLOSED = "the connection is closed"

Step = Callable[["Conversation", int], None]
# The steps by API key. The script runs each in every version of the API.
STEPS: dict[int, list[Step]] = {}


def step(api_key: int) -> Callable[[Step], Step]:
    """Registers the decorated function as a step of an API."""

    def register(function: Step) -> Step:
        STEPS.setdefault(api_key, []).append(function)
        return function

    return register


@dataclass
class Conversation:
    """A run of the script with one broker. `answers` has the responses by (API key, version, label of the request).

    `topic` has three partitions, and a few records in the first. The names of all other things begin with `name`.
    """

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

    def own(self, suffix: str) -> str:
        """A name for this API and version alone."""
        return f"{self.name}-{suffix}-{self.api_key}-{self.version}"

    def do(self, api_key: int, version: int, **values: Any) -> Any:
        """The response to a request, sent again while it fails with a transient error. CLOSED without a response."""
        for _ in range(400):
            self.client.send(api_key, version, **values)
            if (frame := self.client.receive_frame()) is None:
                self.client.socket.close()
                self.client = RawClient(self.address)
                return CLOSED
            _, answer = messages.decode_response(api_key, version, frame)
            if not _TRANSIENT.intersection(error_codes(answer)):
                break
            time.sleep(0.01)
        return answer

    def ask(self, label: str, **values: Any) -> Any:
        """Send a request of the current API and version, and record the response."""
        return self.record(label, self.do(self.api_key, self.version, **values))

    def record(self, label: str, answer: Any) -> Any:
        key = self.api_key, self.version, label
        assert key not in self.answers, f"two requests have the label {key}"
        self.answers[key] = self.plain(answer)
        return answer

    def plain(self, value: Any, name: str = "") -> Any:
        if hasattr(value, "__flexible__"):
            # Plain fields first: ids are numbered in the order of appearance, and arrays have any order.
            ordered = sorted(fields_of(type(value)), key=lambda item: isinstance(getattr(value, item.name), tuple))
            return {item.name: self.plain(getattr(value, item.name), item.name) for item in ordered}
        if isinstance(value, tuple):
            return sorted((self.plain(item, name) for item in value), key=repr)
        if name in _PRESENCE_ONLY:
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


def versions(address: str) -> dict[int, range]:
    """The APIs and versions that a broker serves by its own account."""
    with RawClient(address) as client:
        answer = client.ask(messages.API_VERSIONS, 3, client_software_name="raw", client_software_version="1")
    return {api.api_key: range(api.min_version, api.max_version + 1) for api in answer.api_keys}


def run(talk: Conversation, wanted: Mapping[int, Iterable[int]]) -> None:
    """Run every step in every version of `wanted`."""
    for api_key, steps in sorted(STEPS.items()):
        for version in wanted.get(api_key, ()):
            talk.api_key, talk.version = api_key, version
            for function in steps:
                function(talk, version)


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, ours, theirs) of every field that differs."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for name in ours:
            yield from differences(ours[name], theirs[name], f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for our_item, their_item in zip(ours, theirs, strict=True):
            yield from differences(our_item, their_item, f"{path}[{_name(our_item, their_item)}]")
    elif path.endswith("error_message"):
        # Where Kafka has a text, the embedded broker must have one. It may have a text where Kafka has none.
        if theirs and not ours:
            yield path, ours, theirs
    elif ours != theirs:
        yield path, ours, theirs


def _name(ours: Any, theirs: Any) -> str:
    """The name of an item of an array, if it is the same on both sides."""
    names = [item.get("name") if isinstance(item, dict) else None for item in (ours, theirs)]
    return str(names[0]) if names[0] is not None and names[0] == names[1] else ""
