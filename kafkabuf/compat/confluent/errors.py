"""kafkabuf's errors as confluent-kafka's: KafkaError, a description with a code, and KafkaException, which carries it.

Where confluent-kafka is installed, both are its own classes. The first error imports it; a producer without errors
never does. Elsewhere the classes of this module take their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, NoReturn

from kafkabuf import errors
from kafkabuf.compat.confluent.settings import in_librdkafkas_names
from kafkabuf.compat.shared.errors import peer_module
from kafkabuf.protocol.error_codes import ErrorCode

# librdkafka's codes of errors that do not come from a broker: -199 and up.
_LOCAL_NAMES = """
    _BAD_MSG _BAD_COMPRESSION _DESTROY _FAIL _TRANSPORT _CRIT_SYS_RESOURCE _RESOLVE _MSG_TIMED_OUT _PARTITION_EOF
    _UNKNOWN_PARTITION _FS _UNKNOWN_TOPIC _ALL_BROKERS_DOWN _INVALID_ARG _TIMED_OUT _QUEUE_FULL _ISR_INSUFF
    _NODE_UPDATE _SSL _WAIT_COORD _UNKNOWN_GROUP _IN_PROGRESS _PREV_IN_PROGRESS _EXISTING_SUBSCRIPTION
    _ASSIGN_PARTITIONS _REVOKE_PARTITIONS _CONFLICT _STATE _UNKNOWN_PROTOCOL _NOT_IMPLEMENTED _AUTHENTICATION
    _NO_OFFSET _OUTDATED _TIMED_OUT_QUEUE _UNSUPPORTED_FEATURE _WAIT_CACHE _INTR _KEY_SERIALIZATION
    _VALUE_SERIALIZATION _KEY_DESERIALIZATION _VALUE_DESERIALIZATION _PARTIAL _READ_ONLY _NOENT _UNDERFLOW
    _INVALID_TYPE _RETRY _PURGE_QUEUE _PURGE_INFLIGHT _FATAL _INCONSISTENT _GAPLESS_GUARANTEE _MAX_POLL_EXCEEDED
    _UNKNOWN_BROKER _NOT_CONFIGURED _FENCED _APPLICATION _ASSIGNMENT_LOST _NOOP _AUTO_OFFSET_RESET _LOG_TRUNCATION
    _INVALID_DIFFERENT_RECORD _DESTROY_BROKER
"""
LOCAL = {name: code for code, name in enumerate(_LOCAL_NAMES.split(), -199)}


class AllBrokersDownError(errors.NetworkError):
    """No broker that the client knows can be reached."""


# The first class of an error's bases that is listed here names its code. An error that is not listed has the broker's.
_CODES: dict[type[errors.KafkaError], str] = {
    errors.TimeoutError: "_TIMED_OUT",
    errors.BufferExhaustedError: "_QUEUE_FULL",
    errors.ConfigError: "_INVALID_ARG",
    errors.ClosedError: "_DESTROY",
    errors.IllegalStateError: "_STATE",
    errors.PurgedError: "_PURGE_QUEUE",
    errors.TransactionAbortedError: "_PURGE_QUEUE",
    errors.SerializationError: "_INVALID_ARG",
    AllBrokersDownError: "_ALL_BROKERS_DOWN",
    errors.NetworkError: "_TRANSPORT",
    errors.SslAuthenticationError: "_SSL",
    errors.AuthenticationError: "_AUTHENTICATION",
    errors.UnknownTopicOrPartitionError: "_UNKNOWN_TOPIC",
    errors.InvalidPartitionsError: "_UNKNOWN_PARTITION",
    errors.UnsupportedVersionError: "_UNSUPPORTED_FEATURE",
    errors.ProducerFencedError: "_FENCED",
    errors.InvalidProducerEpochError: "_FENCED",
}


class OwnKafkaError:
    """confluent-kafka's KafkaError, where confluent-kafka is not installed. A number compares with its code."""

    def __init__(
        self,
        error: int,
        reason: str | None = None,
        fatal: bool = False,
        retriable: bool = False,
        txn_requires_abort: bool = False,
    ) -> None:
        self._code = error
        self._reason = reason or self.name()
        self._fatal = fatal
        self._retriable = retriable
        self._txn_requires_abort = txn_requires_abort

    def code(self) -> int:
        return self._code

    def name(self) -> str:
        """The code's name: `_MSG_TIMED_OUT`, `MSG_SIZE_TOO_LARGE`."""
        return _names().get(self._code, f"ERR_{self._code}?")

    def str(self) -> str:
        return self._reason

    def fatal(self) -> bool:
        return self._fatal

    def retriable(self) -> bool:
        return self._retriable

    def txn_requires_abort(self) -> bool:
        return self._txn_requires_abort

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OwnKafkaError):
            return self._code == other._code
        return self._code == other if isinstance(other, int) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._code)

    def __bool__(self) -> bool:
        return self._code != 0

    def __repr__(self) -> str:  # type: ignore[valid-type]
        fatal = "FATAL," if self._fatal else ""
        return f'KafkaError{{{fatal}code={self.name()},val={self._code},str="{self._reason}"}}'

    __str__ = __repr__


class OwnKafkaException(Exception):
    """confluent-kafka's KafkaException, where confluent-kafka is not installed: `args[0]` is the KafkaError."""


# Brokers' codes whose names in librdkafka are not Kafka's, and codes that librdkafka does not know.
_OTHER_NAMES = {
    -1: "UNKNOWN",
    0: "NO_ERROR",
    2: "INVALID_MSG",
    3: "UNKNOWN_TOPIC_OR_PART",
    4: "INVALID_MSG_SIZE",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MSG_SIZE_TOO_LARGE",
    11: "STALE_CTRL_EPOCH",
    17: "TOPIC_EXCEPTION",
}
_NOT_THERE = {98, 99, 101, 102, 104, 106, 107, 108, 109}


@cache
def _names() -> dict[int, str]:
    brokers = {int(code): code.name.upper() for code in ErrorCode if code not in _NOT_THERE}
    return brokers | _OTHER_NAMES | {code: name for name, code in LOCAL.items()}


for _code, _name in _names().items():
    setattr(OwnKafkaError, _name, _code)


class Classes(NamedTuple):
    """KafkaError and KafkaException."""

    error: Any
    exception: Any


@cache
def classes() -> Classes:
    """confluent-kafka's classes, or this module's where confluent-kafka is not installed."""
    peer = peer_module("confluent_kafka")
    if peer is None:
        return Classes(OwnKafkaError, OwnKafkaException)
    return Classes(peer.KafkaError, peer.KafkaException)


def new_error(name: str, text: str, *, retriable: bool = False, fatal: bool = False, abort: bool = False) -> Any:
    """The KafkaError of one of librdkafka's own codes, by its name."""
    text = in_librdkafkas_names(text)
    return classes().error(LOCAL[name], text, fatal=fatal, retriable=retriable, txn_requires_abort=abort)


def call_error(error: errors.KafkaError, *, of_broker: bool = False, of_transaction: bool = False) -> Any:
    """The error of a call as a KafkaError; `of_broker`: with the broker's code, and not one of librdkafka's own.

    In librdkafka only the errors of transactional calls tell whether they are retriable: for all others retriable() is
    False, those of error_cb and of records among them.
    """
    cause = error.__cause__ if isinstance(error.__cause__, errors.KafkaError) else error
    # An epoch that is too old ends a producer of librdkafka. Below, abort_transaction() finds out whether it does.
    fenced = isinstance(cause, errors.InvalidProducerEpochError) and cause is not error
    fatal = isinstance(error, errors.FatalTransactionError) or fenced
    abort = isinstance(error, errors.AbortableTransactionError) and not fatal
    kind = cause if abort or fatal else error
    code = error.code if of_broker else _code_of(kind, default=LOCAL["_FATAL" if fatal else "_FAIL"])
    retriable = of_transaction and error.retriable and not abort
    text = in_librdkafkas_names(str(error))
    return classes().error(code, text, fatal=fatal, retriable=retriable, txn_requires_abort=abort)


def record_error(error: errors.KafkaError) -> Any:
    """The error of a record as a KafkaError."""
    if isinstance(error, errors.TimeoutError):
        return new_error("_MSG_TIMED_OUT", f"Local: Message timed out: {error}")
    return call_error(error)


def _code_of(error: errors.KafkaError, default: int) -> int:
    for ancestor in type(error).__mro__:
        if ancestor in _CODES:
            return LOCAL[_CODES[ancestor]]
        if ancestor.__dict__.get("code", -1) > 0:
            return error.code
    return default


def exception(error: errors.KafkaError, *, of_transaction: bool = False) -> Any:
    """The error of a call as a KafkaException."""
    return classes().exception(call_error(error, of_transaction=of_transaction))


def refuse(error: errors.KafkaError) -> NoReturn:
    """Raise the error of produce() as confluent-kafka does."""
    if isinstance(error, errors.BufferExhaustedError):
        raise BufferError(f"Local: Queue full: {error}") from None
    if isinstance(error, TypeError):  # key, value or headers are not bytes
        raise TypeError(str(error)) from None
    raise exception(error) from None


@contextmanager
def peers_errors() -> Iterator[None]:
    """Raises kafkabuf's errors as KafkaExceptions."""
    try:
        yield
    except errors.KafkaError as error:
        raise exception(error) from error
