"""Interceptors: the user's objects that see every record before it is sent, may change it, and see its outcome.

`interceptor.classes` takes objects (not classes or their names) with any of these methods:

- `on_send(record) -> ProducerRecord`: send() calls it in its own thread, before serializers and partitioner;
- `on_acknowledgement(metadata, error)`: called before the record's own callback and in the same thread. If send()
  raises, send() calls it; offset and timestamp are -1 then. The partition is -1 too if the record names no partition.
  A method with a third parameter named `headers` gets the record's headers too, the list that the last on_send left
  (KIP-512);
- `configure(config)`, called when the producer opens; `close()`, called when it closes.

The interceptors run in order, and each gets the record that the previous one returned. If an interceptor raises, the
producer logs the error and ignores the interceptor's result; the record is sent all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.process.producer_log import log_as, producer_log
from kafkabuf.record_metadata import RecordMetadata

log = producer_log("kafkabuf.producer")

_METHODS = ("on_send", "on_acknowledgement")


class ProducerRecord(NamedTuple):
    """The arguments of a send(). `_replace` returns a changed copy; `headers` is a list of pairs."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None


def pairs_of(headers: Any) -> list[Any]:
    """Headers as a list, so that interceptors and serializers do not exhaust an iterator. Raises SerializationError."""
    if headers is None:
        return []
    try:
        return list(headers.items() if hasattr(headers, "items") else headers)
    except TypeError as error:
        raise SerializationError(
            f"headers must be pairs of (str, bytes or None), or a mapping from str to bytes or None: {error}"
        ) from None


class Interceptors:
    """The interceptors of one producer. Raises ConfigError for an object that is not an interceptor, and for an
    interceptor whose configure() raises."""

    def __init__(self, config: Any) -> None:
        self._all: tuple[Any, ...] = config.interceptor_classes
        self._client_id: str = config.client_id
        for interceptor in self._all:
            if isinstance(interceptor, type) or not any(
                callable(getattr(interceptor, method, None)) for method in _METHODS
            ):
                raise ConfigError(
                    "interceptor.classes must be objects with on_send(record) or on_acknowledgement(metadata, error), "
                    f"found {interceptor!r}"
                )
        for interceptor in self._with_method("configure"):
            try:
                interceptor.configure(config)
            except Exception as error:
                raise ConfigError(f"configure() of the interceptor {interceptor!r} raised: {error}") from error
        self._listeners = [(listener, _takes_headers(listener)) for listener in self._with_method("on_acknowledgement")]
        # Whether each record needs an acknowledgement() of its own.
        self.take_headers = any(takes_headers for _, takes_headers in self._listeners)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        for interceptor in self._with_method("on_send"):
            try:
                result = interceptor.on_send(record)
                if not isinstance(result, ProducerRecord):
                    raise TypeError(f"on_send must return a ProducerRecord, found {result!r}")
            except Exception:
                self._warn("%r.on_send raised for a record of %r", interceptor, record.topic)
            else:
                record = result
        return record

    def acknowledgement(self, record: ProducerRecord, callback: Callable[..., object] | None = None) -> Acknowledgement:
        """The callback of a record that on_send() returned."""
        return Acknowledgement(self, callback, record.headers if self.take_headers else None)

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None, headers: Any) -> None:
        for interceptor, takes_headers in self._listeners:
            try:
                if takes_headers:
                    interceptor.on_acknowledgement(metadata, error, headers=headers)
                else:
                    interceptor.on_acknowledgement(metadata, error)
            except Exception:
                self._warn("%r.on_acknowledgement raised for a record of %r", interceptor, metadata.topic)

    def on_send_error(self, record: ProducerRecord, error: BaseException) -> None:
        """Called when send() raised: the record is in no batch, so no end of a batch calls the interceptors."""
        partition = -1 if record.partition is None else record.partition
        self.on_acknowledgement(RecordMetadata(record.topic, partition, -1, -1, -1, -1), error, record.headers)

    def _warn(self, text: str, *arguments: object) -> None:
        with log_as(self._client_id):
            log.warning(text, *arguments, exc_info=True)

    def _with_method(self, method: str) -> Iterable[Any]:
        return [interceptor for interceptor in self._all if callable(getattr(interceptor, method, None))]


def _takes_headers(interceptor: Any) -> bool:
    try:
        return "headers" in inspect.signature(interceptor.on_acknowledgement).parameters
    except (TypeError, ValueError):  # a callable without a signature, such as some of C
        return False


def close_all(objects: Iterable[Any]) -> None:
    """Call close() of each of the user's objects that has it, once for each object. Log the errors of close()."""
    for user_object in {id(user_object): user_object for user_object in objects}.values():
        close = getattr(user_object, "close", None)
        if callable(close):
            try:
                close()
            except Exception:
                log.warning("%r.close raised", user_object, exc_info=True)


class Acknowledgement:
    """The callback of an intercepted record: it calls the interceptors first, then the user's callback."""

    __slots__ = ("_callback", "_headers", "_interceptors")

    def __init__(self, interceptors: Interceptors, callback: Callable[..., object] | None, headers: Any) -> None:
        self._interceptors = interceptors
        self._callback = callback
        self._headers = headers

    def __call__(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        self._interceptors.on_acknowledgement(metadata, error, self._headers)
        if self._callback is not None:
            self._callback(metadata, error)
