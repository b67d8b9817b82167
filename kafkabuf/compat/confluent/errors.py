"""kafkabuf's errors as confluent-kafka's: KafkaError, a description with a code, and KafkaException, which carries it.

Where confluent-kafka is installed, both are its own classes. The first error imports it; a producer without errors
never does. Elsewhere the classes of this module take their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from kafkabuf import errors
from kafkabuf.compat.confluent.settings import in_librdkafkas_names
from kafkabuf.compat.shared.errors import peer_module

# librdkafka's codes of errors that do not come from a broker.
LOCAL = {
    "_BAD_MSG": -199,
    "_BAD_COMPRESSION": -198,
    "_DESTROY": -197,
    "_FAIL": -196,
    "_TRANSPORT": -195,
    "_CRIT_SYS_RESOURCE": -194,
    "_RESOLVE": -193,
    "_MSG_TIMED_OUT": -192,
    "_PARTITION_EOF": -191,
    "_UNKNOWN_PARTITION": -190,
    "_FS": -189,
    "_UNKNOWN_TOPIC": -188,
    "_ALL_BROKERS_DOWN": -187,
    "_INVALID_ARG": -186,
    "_TIMED_OUT": -185,
    "_QUEUE_FULL": -184,
    "_ISR_INSUFF": -183,
    "_NODE_UPDATE": -182,
    "_SSL": -181,
    "_WAIT_COORD": -180,
    "_UNKNOWN_GROUP": -179,
    "_IN_PROGRESS": -178,
    "_PREV_IN_PROGRESS": -177,
    "_EXISTING_SUBSCRIPTION": -176,
    "_ASSIGN_PARTITIONS": -175,
    "_REVOKE_PARTITIONS": -174,
    "_CONFLICT": -173,
    "_STATE": -172,
    "_UNKNOWN_PROTOCOL": -171,
    "_NOT_IMPLEMENTED": -170,
    "_AUTHENTICATION": -169,
    "_NO_OFFSET": -168,
    "_OUTDATED": -167,
    "_TIMED_OUT_QUEUE": -166,
    "_UNSUPPORTED_FEATURE": -165,
    "_WAIT_CACHE": -164,
    "_INTR": -163,
    "_KEY_SERIALIZATION": -162,
    "_VALUE_SERIALIZATION": -161,
    "_KEY_DESERIALIZATION": -160,
    "_VALUE_DESERIALIZATION": -159,
    "_PARTIAL": -158,
    "_READ_ONLY": -157,
    "_NOENT": -156,
    "_UNDERFLOW": -155,
    "_INVALID_TYPE": -154,
    "_RETRY": -153,
    "_PURGE_QUEUE": -152,
    "_PURGE_INFLIGHT": -151,
    "_FATAL": -150,
    "_INCONSISTENT": -149,
    "_GAPLESS_GUARANTEE": -148,
    "_MAX_POLL_EXCEEDED": -147,
    "_UNKNOWN_BROKER": -146,
    "_NOT_CONFIGURED": -145,
    "_FENCED": -144,
    "_APPLICATION": -143,
    "_ASSIGNMENT_LOST": -142,
    "_NOOP": -141,
    "_AUTO_OFFSET_RESET": -140,
    "_LOG_TRUNCATION": -139,
    "_INVALID_DIFFERENT_RECORD": -138,
    "_DESTROY_BROKER": -137,
}


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


# The names of brokers' codes that kafkabuf has no class for, or a class of another name.
_BROKERS_NAMES = {
    -1: "UNKNOWN",
    2: "INVALID_MSG",
    3: "UNKNOWN_TOPIC_OR_PART",
    4: "INVALID_MSG_SIZE",
    6: "NOT_LEADER_FOR_PARTITION",
    7: "REQUEST_TIMED_OUT",
    10: "MSG_SIZE_TOO_LARGE",
    11: "STALE_CTRL_EPOCH",
    13: "NETWORK_EXCEPTION",
    17: "TOPIC_EXCEPTION",
    28: "INVALID_COMMIT_OFFSET_SIZE",
    29: "TOPIC_AUTHORIZATION_FAILED",
    30: "GROUP_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    36: "TOPIC_ALREADY_EXISTS",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    56: "KAFKA_STORAGE_ERROR",
    57: "LOG_DIR_NOT_FOUND",
    58: "SASL_AUTHENTICATION_FAILED",
    60: "REASSIGNMENT_IN_PROGRESS",
    61: "DELEGATION_TOKEN_AUTH_DISABLED",
    62: "DELEGATION_TOKEN_NOT_FOUND",
    63: "DELEGATION_TOKEN_OWNER_MISMATCH",
    64: "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    65: "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    66: "DELEGATION_TOKEN_EXPIRED",
    67: "INVALID_PRINCIPAL_TYPE",
    70: "FETCH_SESSION_ID_NOT_FOUND",
    71: "INVALID_FETCH_SESSION_EPOCH",
    72: "LISTENER_NOT_FOUND",
    73: "TOPIC_DELETION_DISABLED",
    77: "STALE_BROKER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    85: "NO_REASSIGNMENT_IN_PROGRESS",
    91: "RESOURCE_NOT_FOUND",
    92: "DUPLICATE_RESOURCE",
    93: "UNACCEPTABLE_CREDENTIAL",
    94: "INCONSISTENT_VOTER_SET",
    95: "INVALID_UPDATE_VERSION",
    96: "FEATURE_UPDATE_FAILED",
    97: "PRINCIPAL_DESERIALIZATION_FAILURE",
    103: "INCONSISTENT_TOPIC_ID",
    114: "MISMATCHED_ENDPOINT_TYPE",
    115: "UNSUPPORTED_ENDPOINT_TYPE",
    116: "UNKNOWN_CONTROLLER_ID",
    117: "UNKNOWN_SUBSCRIPTION_ID",
    118: "TELEMETRY_TOO_LARGE",
    119: "INVALID_REGISTRATION",
    121: "INVALID_RECORD_STATE",
    122: "SHARE_SESSION_NOT_FOUND",
    123: "INVALID_SHARE_SESSION_EPOCH",
    124: "FENCED_STATE_EPOCH",
    125: "INVALID_VOTER_KEY",
    126: "DUPLICATE_VOTER",
    127: "VOTER_NOT_FOUND",
    130: "STREAMS_INVALID_TOPOLOGY",
    131: "STREAMS_INVALID_TOPOLOGY_EPOCH",
    132: "STREAMS_TOPOLOGY_FENCED",
    133: "SHARE_SESSION_LIMIT_REACHED",
}


@cache
def _names() -> dict[int, str]:
    return _constants() | {code: name for name, code in LOCAL.items()}


def _constants() -> dict[int, str]:
    """The names of brokers' codes: those of kafkabuf's classes in capitals, except for the names above."""
    names = {0: "NO_ERROR"}
    for code in range(1, 130):
        error = errors.error_for_code(code)
        if type(error) is not errors.UnknownServerError:
            words = type(error).__name__.removesuffix("Error")
            names[code] = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in words).lstrip("_")
    return names | _BROKERS_NAMES


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


@contextmanager
def peers_errors() -> Iterator[None]:
    """Raises kafkabuf's errors as KafkaExceptions."""
    try:
        yield
    except errors.KafkaError as error:
        raise exception(error) from error
