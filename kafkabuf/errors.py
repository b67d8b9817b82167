"""Every error kafkabuf raises, named as Java's exceptions are, with the ending `Error`.

Each knows its Kafka error code (-1 where it never crosses the wire) and whether sending again can help. Those that mean
what a built-in exception means derive from it as well, so that `except TimeoutError` works as a Python user expects.
"""

from __future__ import annotations

import builtins
from typing import Any


class KafkaError(Exception):
    """Root of all. `code` is the protocol's error code, `retriable` whether the same request may succeed later."""

    code: int = -1
    retriable: bool = False
    # True where the client's picture of the cluster is stale: metadata is refreshed before the retry.
    invalid_metadata: bool = False
    # Of a send_arrow or send_many that failed: the rows before the one at fault, which are sent, and
    # the BulkReport of those.
    rows_queued: int = 0
    report: Any = None


class RetriableError(KafkaError):
    retriable = True


class InvalidMetadataError(RetriableError):
    invalid_metadata = True


# ---- raised by the client itself -------------------------------------------------------------------------------------


class ConfigError(KafkaError, ValueError):
    """A setting that does not exist, is out of range, or contradicts another (Kafka's ConfigException)."""


class TimeoutError(RetriableError, builtins.TimeoutError):
    """Something did not happen within the time it was given: metadata, an acknowledgement, a flush."""

    code = 7


class BufferExhaustedError(TimeoutError):
    """`max.block.ms` passed before `buffer.memory` had room for the record (Kafka's BufferExhaustedException)."""

    code = -1


class AllocationTooLargeError(KafkaError, ValueError):
    """A single request for more memory than the whole pool owns; waiting could never satisfy it."""


class ClosedError(KafkaError, RuntimeError):
    """The producer, pool or broker was closed; nothing more can be sent through it."""


class IllegalStateError(KafkaError, RuntimeError):
    """A method was called that has no meaning in the producer's present state; the state is unchanged."""


class AbortableTransactionError(KafkaError):
    """The transaction cannot be committed: call abort_transaction(), and the producer can begin the next one."""


class FatalTransactionError(KafkaError):
    """Nothing more can be done with this producer: close it."""


class PurgedError(KafkaError):
    """KafkaProducer.purge() gave the record up; whether the broker has it is not known where it had been sent."""


class TransactionAbortedError(KafkaError):
    """The record was never sent: its transaction was aborted first."""


class CommitFailedError(KafkaError):
    """The offsets cannot be committed: the consumer that read them has lost its place in the group."""


class SerializationError(KafkaError, TypeError):
    """A key, value or header cannot become bytes: give a bytes-like object or configure a serializer."""


class NullHeaderKeyError(SerializationError):
    """A row of Arrow data has a header without a key, which Kafka does not have; the other rows may be sent."""


class NetworkError(InvalidMetadataError):
    """A connection failed or was closed before the answer came."""

    code = 13


class ProtocolError(NetworkError):
    """A broker's answer was not what the protocol says; the connection it came by was closed."""


class AuthenticationError(KafkaError, PermissionError):
    """One side could not prove to the other who it is; trying again does not help (Kafka's AuthenticationException)."""


class SslAuthenticationError(AuthenticationError):
    """The TLS handshake failed: an untrusted or wrong certificate, or no version or cipher in common."""


class SaslAuthenticationError(AuthenticationError):
    """The broker refused the credentials, or could not prove that it knows them."""

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
    """Bytes that are not what the protocol says they are: wrong CRC, length or count."""

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
    """The record is larger than `max.request.size`, `buffer.memory` or what the topic accepts."""

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
    """No protocol version is known to both sides, or the broker cannot do what was asked."""

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
    """The transaction is not in a state in which this can be done."""

    code = 48


class InvalidProducerIdMappingError(KafkaError):
    """The producer id is not the one that belongs to the transactional id."""

    code = 49


class InvalidTransactionTimeoutError(KafkaError, ValueError):
    """`transaction.timeout.ms` is larger than the broker's `transaction.max.timeout.ms`."""

    code = 50


class ConcurrentTransactionsError(RetriableError):
    """The transactional id's former transaction is still being ended."""

    code = 51


class TransactionCoordinatorFencedError(KafkaError):
    code = 52


class TransactionalIdAuthorizationError(FatalTransactionError, PermissionError):
    code = 53


class OperationNotAttemptedError(KafkaError):
    """Nothing was tried with this partition, because another one of the same request failed."""

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


class ThrottlingQuotaExceededError(RetriableError):
    code = 89


class ProducerFencedError(FatalTransactionError):
    """Another producer with the same transactional id was started since."""

    code = 90


class MemberIdRequiredError(KafkaError):
    code = 79


class PreferredLeaderNotAvailableError(InvalidMetadataError):
    code = 80


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
    """A transaction that has not ended would commit an offset of this partition."""

    code = 88


class UnknownTopicIdError(InvalidMetadataError):
    code = 100


class TransactionalIdNotFoundError(KafkaError):
    code = 105


class TransactionAbortableError(AbortableTransactionError):
    """The transaction must be aborted; the producer can go on with the next one (KIP-890)."""

    code = 120


class RebootstrapRequiredError(RetriableError):
    """What the client knows of the cluster is too old: it begins again with `bootstrap.servers` (KIP-1102)."""

    code = 129


def _classes_by_code() -> dict[int, type[KafkaError]]:
    # A code may be shared by a client-side class: the broker's own class, declared later, is the one that answers.
    found: dict[int, type[KafkaError]] = {}
    pending = list(KafkaError.__subclasses__())
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if cls.__dict__.get("code", -1) > 0:
            found[cls.code] = cls
    found[TimeoutError.code] = RequestTimedOutError
    return found


_BY_CODE = _classes_by_code()


def printable(text: str, longest: int = 1000) -> str:
    """What a broker said, fit for a line of a log: what would begin another line, or hide one, as its escape."""
    if len(text) > longest:
        text = f"{text[:longest]}..."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def error_for_code(code: int, message: str | None = None) -> KafkaError:
    """The error that stands for a protocol error code; an unknown code gives an UnknownServerError that names it."""
    cls = _BY_CODE.get(code)
    message = printable(message) if message else None
    if cls is None:
        return UnknownServerError(message or f"the broker answered with error code {code}")
    return cls(message or f"the broker answered {cls.__name__.removesuffix('Error')} (error code {code})")
