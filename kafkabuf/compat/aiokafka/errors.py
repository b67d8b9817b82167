"""kafkabuf's errors as aiokafka's: an error of both libraries, so that `except aiokafka.errors.X` goes on working."""

from __future__ import annotations

from functools import cache
from typing import Any

from kafkabuf import errors
from kafkabuf.compat.shared.errors import converted
from kafkabuf.errors import KafkaError
from kafkabuf.tracebacks import without_ours

try:
    from aiokafka import errors as peer
except ImportError:  # then no program can name aiokafka's errors
    peer = None

# Where aiokafka raises an error of the client instead of the broker's error, or has no code for it. A class that is not
# listed has the place of its nearest base; then its error code decides.
_NAMES: dict[type[KafkaError], str] = {
    errors.AuthenticationError: "AuthenticationFailedError",
    errors.BufferExhaustedError: "KafkaTimeoutError",
    errors.ClosedError: "ProducerClosed",
    errors.CommitFailedError: "CommitFailedError",
    errors.ConfigError: "KafkaConfigurationError",
    errors.IllegalStateError: "IllegalOperation",
    errors.InvalidProducerEpochError: "ProducerFenced",
    errors.NetworkError: "KafkaConnectionError",
    errors.ProducerFencedError: "ProducerFenced",
    errors.TimeoutError: "KafkaTimeoutError",
}


_NAMES_HERE = {
    "ssl.truststore.location": "the ssl_context",
    "ssl.keystore.location": "the ssl_context",
    "batch.size": "max_batch_size",
    "max.block.ms": "request_timeout_ms",
    "delivery.timeout.ms": "linger_ms + 2 x request_timeout_ms",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.oauthbearer.token.provider": "sasl_oauth_token_provider",
}


class UnknownPartitionError(errors.InvalidPartitionsError, AssertionError):
    """aiokafka raises AssertionError for a partition that the topic does not have."""


def peer_error(error: KafkaError) -> KafkaError:
    """The error with the same text, of a class that is also aiokafka's. The error itself where there is no aiokafka."""
    if isinstance(error, errors.InvalidPartitionsError):
        kind: type[KafkaError] = UnknownPartitionError
    else:
        kind = type(error)
    # mypy takes the hash of an error, which an instance has, for that of its class.
    both = _class_of_both(kind)  # type: ignore[arg-type]
    if isinstance(error, both):
        return without_ours(error)
    return converted(error, both, _NAMES_HERE)


@cache
def _class_of_both(kind: type[KafkaError]) -> type[KafkaError]:
    if peer is None:
        return kind
    theirs = _class_of_peer(kind)
    if issubclass(kind, theirs):
        return kind
    return type(kind.__name__, (kind, theirs), {"__module__": __name__, "__doc__": kind.__doc__})


def _class_of_peer(kind: type[KafkaError]) -> type[Exception]:
    for base in kind.__mro__:
        if base in _NAMES:
            return getattr(peer, _NAMES[base])  # type: ignore[no-any-return]
        code: Any = base.__dict__.get("code", -1)
        if code > 0:
            known: dict[int, type[Exception]] = peer.kafka_errors
            return known.get(code, _base())
    return _base()


def _base() -> type[Exception]:
    base: type[Exception] = peer.KafkaError
    return base
