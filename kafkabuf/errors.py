"""Every error that kafkabuf raises. The names are those of Java's exceptions, with the ending `Error`.

Each class has its Kafka error code (-1 for an error that never crosses the wire) and says whether a retry can succeed.
An error with the meaning of a built-in exception also derives from it, so that `except TimeoutError` works as a Python
user expects.
"""

from __future__ import annotations

import builtins
from typing import Any


class KafkaError(Exception):
    """Base class of all errors. `code` is the protocol's error code; `retriable` says whether a retry may succeed."""

    code: int = -1
    retriable: bool = False
    # True if the client's metadata is stale: the client refreshes it before the retry.
    invalid_metadata: bool = False
    # Set by send_arrow() and send_many() when they raise: the number of rows before the faulty row, which are sent all
    # the same, and the BulkReport of these rows. BulkReport.result() sets `report` to itself.
    rows_queued: int = 0
    report: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the report, which has batches of this process."""
        state = {name: value for name, value in self.__dict__.items() if name != "report"}
        return type(self), self.args, state


class RetriableError(KafkaError):
    retriable = True


class InvalidMetadataError(RetriableError):
    invalid_metadata = True


# ---- raised by the client itself -------------------------------------------------------------------------------------


class ConfigError(KafkaError, ValueError):
    """A setting that does not exist, is out of range, or contradicts another (Kafka's ConfigException)."""


class MissingExtraError(KafkaError, ImportError):
    """An optional part of kafkabuf needs a package that is not installed. The text says what to install."""


class TimeoutError(RetriableError, builtins.TimeoutError):
    """An operation did not end within its time-out: a wait for metadata, an acknowledgement or a flush."""

    code = 7


class BufferExhaustedError(TimeoutError):
    """`max.block.ms` passed before `buffer.memory` had room for the record (Kafka's BufferExhaustedException)."""

    code = -1


class AllocationTooLargeError(KafkaError, ValueError):
    """One allocation needs more memory than the whole pool has; no wait could satisfy it."""


class ClosedError(KafkaError, RuntimeError):
    """The producer, pool or broker was closed and accepts no further calls."""


class IllegalStateError(KafkaError, RuntimeError):
    """The method is not allowed in the producer's present state; the call left the state unchanged."""


class AbortableTransactionError(KafkaError):
    """The transaction cannot be committed: call abort_transaction(), and the producer can begin the next one."""


class FatalTransactionError(KafkaError):
    """This producer can only be closed."""


class PurgedError(KafkaError):
    """KafkaProducer.purge() dropped the record. If the record was in flight, the broker may still have appended it."""


class TransactionAbortedError(KafkaError):
    """The record was never sent, because its transaction was aborted first."""


class CommitFailedError(KafkaError):
    """The offsets cannot be committed: the consumer that read them is no longer a member of the group's generation."""


class SerializationError(KafkaError, TypeError):
    """A key, value or header cannot become bytes: give a bytes-like object or configure a serializer."""


class NullHeaderKeyError(SerializationError):
    """A row of Arrow data has a header without a key, which Kafka does not allow; the other rows may be sent."""


class SchemaRegistryError(KafkaError):
    """The Schema Registry refused a request, or gave a response that cannot be used. The text has its own words.

    `status` is the HTTP status, and `error_code` the registry's code, such as 42201 for an invalid schema. Each is -1
    if the response has none. `retriable` is True after a status that may pass, such as 503.
    """

    status: int = -1
    error_code: int = -1


class RefusedWithOthersError(KafkaError):
    """The broker refused other records of the record's batch, and with them the whole batch (KIP-467).

    Nothing is wrong with the record itself: it can be sent again.
    """


class NetworkError(InvalidMetadataError):
    """A connection failed or was closed before the response came."""

    code = 13


class ProtocolError(NetworkError):
    """A broker's response violated the protocol; the client closed the connection."""


class AuthenticationError(KafkaError, PermissionError):
    """The client or the broker failed to authenticate; a retry does not help (Kafka's AuthenticationException)."""


class SslAuthenticationError(AuthenticationError):
    """The TLS handshake failed: an untrusted or wrong certificate, or no common TLS version or cipher."""


class SaslAuthenticationError(AuthenticationError):
    """The broker refused the credentials, or failed to prove that it knows them (SCRAM)."""

    code = 58


class UnsupportedSaslMechanismError(AuthenticationError):
    code = 33


class IllegalSaslStateError(AuthenticationError):
    code = 34


class UnknownServerError(KafkaError):
    code = -1


# ---- the broker's error codes ----------------------------------------------------------------------------------------


class OffsetOutOfRangeError(KafkaError):
    code = 1


class CorruptMessageError(RetriableError):
    """The bytes of a message or batch are corrupt: wrong CRC, length or count."""

    code = 2


class UnknownTopicOrPartitionError(InvalidMetadataError):
    code = 3


class InvalidFetchSizeError(KafkaError):
    code = 4


class LeaderNotAvailableError(InvalidMetadataError):
    code = 5


class NotLeaderOrFollowerError(InvalidMetadataError):
    code = 6


class RequestTimedOutError(RetriableError):
    code = 7


class BrokerNotAvailableError(KafkaError):
    code = 8


class ReplicaNotAvailableError(InvalidMetadataError):
    code = 9


class RecordTooLargeError(KafkaError, ValueError):
    """The record is larger than `max.request.size`, `buffer.memory` or the topic's `max.message.bytes`."""

    code = 10


class OffsetMetadataTooLargeError(KafkaError):
    code = 12


class CoordinatorLoadInProgressError(RetriableError):
    code = 14


class CoordinatorNotAvailableError(RetriableError):
    code = 15


class NotCoordinatorError(RetriableError):
    code = 16


class InvalidTopicError(KafkaError, ValueError):
    code = 17


class RecordListTooLargeError(KafkaError):
    code = 18


class NotEnoughReplicasError(RetriableError):
    code = 19


class NotEnoughReplicasAfterAppendError(RetriableError):
    code = 20


class InvalidRequiredAcksError(KafkaError):
    code = 21


class IllegalGenerationError(KafkaError):
    code = 22


class UnknownMemberIdError(KafkaError):
    code = 25


class InvalidSessionTimeoutError(KafkaError):
    code = 26


class RebalanceInProgressError(KafkaError):
    code = 27


class InconsistentGroupProtocolError(KafkaError):
    code = 23


class InvalidGroupIdError(KafkaError, ValueError):
    code = 24


class TopicAuthorizationError(KafkaError, PermissionError):
    code = 29


class GroupAuthorizationError(KafkaError, PermissionError):
    code = 30


class ClusterAuthorizationError(KafkaError, PermissionError):
    code = 31


class InvalidTimestampError(KafkaError, ValueError):
    code = 32


class UnsupportedVersionError(KafkaError):
    """Client and broker have no protocol version in common, or the broker does not support the request."""

    code = 35


class TopicExistsError(KafkaError):
    code = 36


class InvalidPartitionsError(KafkaError, ValueError):
    code = 37


class InvalidReplicationFactorError(KafkaError, ValueError):
    code = 38


class InvalidReplicaAssignmentError(KafkaError, ValueError):
    code = 39


class InvalidConfigError(KafkaError):
    code = 40


class NotControllerError(RetriableError):
    code = 41


class InvalidRequestError(KafkaError, ValueError):
    code = 42


class UnsupportedForMessageFormatError(KafkaError):
    code = 43


class PolicyViolationError(KafkaError):
    code = 44


class OutOfOrderSequenceNumberError(KafkaError):
    code = 45


class DuplicateSequenceNumberError(KafkaError):
    code = 46


class InvalidProducerEpochError(KafkaError):
    code = 47


class InvalidTxnStateError(KafkaError):
    """The transaction's present state does not allow the request."""

    code = 48


class InvalidProducerIdMappingError(KafkaError):
    """The producer id does not belong to the transactional id."""

    code = 49


class InvalidTransactionTimeoutError(KafkaError, ValueError):
    """`transaction.timeout.ms` is larger than the broker's `transaction.max.timeout.ms`."""

    code = 50


class ConcurrentTransactionsError(RetriableError):
    """The coordinator is still ending the previous transaction of the transactional id."""

    code = 51


class TransactionCoordinatorFencedError(KafkaError):
    code = 52


class TransactionalIdAuthorizationError(FatalTransactionError, PermissionError):
    code = 53


class SecurityDisabledError(KafkaError):
    """The cluster has no authorizer, and so no ACLs."""

    code = 54


class OperationNotAttemptedError(KafkaError):
    """The broker skipped this partition, because another partition of the same request failed."""

    code = 55


class KafkaStorageError(InvalidMetadataError):
    code = 56


class UnknownProducerIdError(KafkaError):
    code = 59


class NonEmptyGroupError(KafkaError):
    code = 68


class GroupIdNotFoundError(KafkaError):
    code = 69


class FencedLeaderEpochError(InvalidMetadataError):
    code = 74


class UnknownLeaderEpochError(RetriableError):
    code = 75


class UnsupportedCompressionTypeError(KafkaError):
    code = 76


class OffsetNotAvailableError(RetriableError):
    """A new leader does not know yet up to where its log is committed."""

    code = 78


class ThrottlingQuotaExceededError(RetriableError):
    code = 89


class ProducerFencedError(FatalTransactionError):
    """Another producer with the same transactional id has been started since."""

    code = 90


class MemberIdRequiredError(KafkaError):
    code = 79


class PreferredLeaderNotAvailableError(InvalidMetadataError):
    code = 80


class GroupMaxSizeReachedError(KafkaError):
    code = 81


class FencedInstanceIdError(KafkaError):
    code = 82


class EligibleLeadersNotAvailableError(InvalidMetadataError):
    code = 83


class ElectionNotNeededError(InvalidMetadataError):
    code = 84


class GroupSubscribedToTopicError(KafkaError):
    code = 86


class InvalidRecordError(KafkaError):
    code = 87


class UnstableOffsetCommitError(RetriableError):
    """An offset of this partition belongs to a transaction that has not ended."""

    code = 88


class UnknownTopicIdError(InvalidMetadataError):
    code = 100


class TransactionalIdNotFoundError(KafkaError):
    code = 105


class FencedMemberEpochError(KafkaError):
    """The member of a consumer group has an epoch that its coordinator does not know: it must join again (KIP-848)."""

    code = 110


class UnreleasedInstanceIdError(KafkaError):
    """Another member of the consumer group has this group.instance.id and has not left (KIP-848)."""

    code = 111


class UnsupportedAssignorError(KafkaError):
    code = 112


class StaleMemberEpochError(KafkaError):
    """A consumer commits or fetches offsets with an epoch that is not its present epoch (KIP-848)."""

    code = 113


class TransactionAbortableError(AbortableTransactionError):
    """The transaction must be aborted; the producer can begin the next transaction (KIP-890)."""

    code = 120


class InvalidRegularExpressionError(KafkaError, ValueError):
    code = 128


class RebootstrapRequiredError(RetriableError):
    """The client's metadata is too old: the client connects to `bootstrap.servers` again (KIP-1102)."""

    code = 129


def _classes_by_code() -> dict[int, type[KafkaError]]:
    # TimeoutError, a class of the client, also has code 7. From a broker code 7 means RequestTimedOutError.
    classes: dict[int, type[KafkaError]] = {}
    pending = list(KafkaError.__subclasses__())
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if cls.__dict__.get("code", -1) > 0:
            classes[cls.code] = cls
    classes[TimeoutError.code] = RequestTimedOutError
    return classes


_BY_CODE = _classes_by_code()


def printable(text: str, longest: int = 1000) -> str:
    """A broker's text made safe for one line of a log: shortened, and each unprintable character as its escape."""
    if len(text) > longest:
        text = f"{text[:longest]}..."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(error: BaseException) -> str:
    """An error's repr, safe for one line of a log. An error of the user's may raise there: then its type's name."""
    try:
        return printable(repr(error))
    except Exception:
        return f"an error of type {type(error).__name__}"


def host_port(host: str, port: int) -> str:
    """An address for a message, or for `bootstrap.servers`: an IPv6 address stands in brackets."""
    host = printable(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def error_for_code(code: int, message: str | None = None) -> KafkaError:
    """The error for a protocol error code. An unknown code gives an UnknownServerError that names the code."""
    cls = _BY_CODE.get(code)
    message = printable(message) if message else None
    if cls is None:
        return UnknownServerError(message or f"the broker responded with error code {code}")
    return cls(message or f"the broker responded with {cls.__name__.removesuffix('Error')} (error code {code})")
