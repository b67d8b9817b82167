"""Interceptors: who may look at every record before it is sent, change it, and hear what became of it.

`interceptor.classes` takes objects (not classes, nor their names) with any of these methods:

- `on_send(record) -> ProducerRecord`, in the thread of send(), before serializers and partitioner;
- `on_acknowledgement(metadata, error)`, before the record's own callback and in the same thread, or in the thread of
  send() where that raises: offset and timestamp are -1 then, and so is a partition that was not chosen yet;
- `configure(config)` as the producer opens, `close()` as it closes.

They are asked in order, each about what the one before it returned. One that raises is logged and passed over: it never
keeps a record from being sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.record_metadata import RecordMetadata

log = logging.getLogger("kafkabuf.producer")

_METHODS = ("on_send", "on_acknowledgement")


class ProducerRecord(NamedTuple):
    """What send() was given. `_replace` makes a changed one; `headers` is a list of pairs."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None


def pairs_of(headers: Any) -> list[Any]:
    """Headers as a list, so that who looks at them uses up no iterator. Raises SerializationError."""
    if headers is None:
        return []
    try:
        return list(headers.items() if hasattr(headers, "items") else headers)
    except TypeError as error:
        raise SerializationError(f"headers are pairs (str, bytes or None) or a mapping of them: {error}") from None


class Interceptors:
    """Those of one producer. Raises ConfigError where one is none or cannot be configured."""

    def __init__(self, config: Any) -> None:
        self._all: tuple[Any, ...] = config.interceptor_classes
        for one in self._all:
            if isinstance(one, type) or not any(callable(getattr(one, method, None)) for method in _METHODS):
                raise ConfigError(
                    "interceptor.classes are objects with on_send(record) or on_acknowledgement(metadata, error), "
                    f"found {one!r}"
                )
        for one in self._having("configure"):
            try:
                one.configure(config)
            except Exception as error:
                raise ConfigError(f"the interceptor {one!r} cannot be configured: {error}") from error

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        for one in self._having("on_send"):
            try:
                answer = one.on_send(record)
                if not isinstance(answer, ProducerRecord):
                    raise TypeError(f"on_send returns a ProducerRecord, found {answer!r}")
            except Exception:
                log.warning("%r.on_send raised for a record of %r", one, record.topic, exc_info=True)
            else:
                record = answer
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        for one in self._having("on_acknowledgement"):
            try:
                one.on_acknowledgement(metadata, error)
            except Exception:
                log.warning("%r.on_acknowledgement raised for a record of %r", one, metadata.topic, exc_info=True)

    def on_send_error(self, record: ProducerRecord, error: BaseException) -> None:
        """send() raised: the record has no batch that would tell."""
        partition = -1 if record.partition is None else record.partition
        self.on_acknowledgement(RecordMetadata(record.topic, partition, -1, -1, -1, -1), error)

    def _having(self, method: str) -> Iterable[Any]:
        return [one for one in self._all if callable(getattr(one, method, None))]


def close_all(objects: Iterable[Any]) -> None:
    """close() of the user's objects, each once, where it has one. One that raises is logged."""
    for one in {id(one): one for one in objects}.values():
        close = getattr(one, "close", None)
        if callable(close):
            try:
                close()
            except Exception:
                log.warning("%r.close raised", one, exc_info=True)


class Acknowledgement:
    """The callback of an intercepted record: the interceptors first, then the user's."""

    __slots__ = ("_callback", "_interceptors")

    def __init__(self, interceptors: Interceptors, callback: Callable[..., object] | None) -> None:
        self._interceptors = interceptors
        self._callback = callback

    def __call__(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        self._interceptors.on_acknowledgement(metadata, error)
        if self._callback is not None:
            self._callback(metadata, error)
