"""kafkabuf's errors as kafka-python's, so that a program's `except kafka.errors.KafkaTimeoutError` still works.

Where kafka-python is installed, an error that leaves the face belongs to kafkabuf's class and to kafka-python's. The
first error imports kafka-python; a producer without errors never does.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from kafkabuf import errors
from kafkabuf.compat.shared.errors import converted, peer_module
from kafkabuf.errors import KafkaError

# The classes of kafka.errors for errors that have no code, or another class than their code names. The first class that
# the installed version has counts.
_BY_CLASS: dict[type[KafkaError], tuple[str, ...]] = {
    errors.ConfigError: ("KafkaConfigurationError",),
    errors.TimeoutError: ("KafkaTimeoutError",),
    errors.ClosedError: ("IllegalStateError",),
    errors.IllegalStateError: ("IllegalStateError",),
    errors.PurgedError: ("Cancelled",),
    errors.TransactionAbortedError: ("TransactionAbortedError",),
    errors.CommitFailedError: ("CommitFailedError",),
    errors.NetworkError: ("KafkaConnectionError",),
    errors.SslAuthenticationError: ("KafkaConnectionError",),
    errors.AuthenticationError: ("SaslAuthenticationFailedError", "AuthenticationFailedError"),
    errors.RetriableError: ("RetriableError",),
    errors.KafkaError: ("KafkaError",),
}


_NAMES_HERE = {
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.keystore.certificate.chain": "ssl_certfile",
    "ssl.keystore.key": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.oauthbearer.token.provider": "sasl_oauth_token_provider",
}


def from_wait(error: KafkaError) -> Any:
    """The error of a call that got no metadata or memory in time, as kafka-python's class too.

    kafka-python tells no reason for that: it raises KafkaTimeoutError whatever passes by itself, such as a topic that
    does not exist yet. The error stays kafkabuf's, with its reason.
    """
    return as_peer(error, "KafkaTimeoutError") if error.retriable else as_peer(error)


def as_peer(error: KafkaError | None, *preferred: str) -> Any:
    """The error as an instance of kafka-python's class too; unchanged where kafka-python is not installed.

    `preferred` are names of classes that come before the class that belongs to the error.
    """
    if error is None or hasattr(type(error), "of"):
        return error
    # mypy takes the hash of an error, which an instance has, for that of its class.
    both = _class_for(type(error), preferred)  # type: ignore[arg-type]
    return error if both is None else converted(error, both, _NAMES_HERE)


@cache
def _class_for(own: type[KafkaError], preferred: tuple[str, ...] = ()) -> type[KafkaError] | None:
    kafka_errors = _kafka_errors()
    if kafka_errors is None:
        return None
    peer = _counterpart(own, preferred, kafka_errors)
    members = {
        "__module__": "kafkabuf.compat.kafka_python",
        "__doc__": own.__doc__,
        "__str__": BaseException.__str__,  # without kafka-python's prefix: the text has no other class's name
        "__hash__": BaseException.__hash__,
        "__eq__": BaseException.__eq__,
        "__reduce__": _reduce,
        "of": own,
        "preferred": preferred,
        **({"errno": peer.errno} if hasattr(peer, "errno") else {}),
    }
    return type(peer.__name__, (own, peer), members)


def _counterpart(own: type[KafkaError], preferred: tuple[str, ...], kafka_errors: ModuleType) -> type[Any]:
    for ancestor in own.__mro__:
        names = preferred or _BY_CLASS.get(ancestor, ())
        for name in names:
            if hasattr(kafka_errors, name):
                return getattr(kafka_errors, name)  # type: ignore[no-any-return]
        code = ancestor.__dict__.get("code", -1)
        if code > 0 and code in kafka_errors.kafka_errors:
            return kafka_errors.kafka_errors[code]  # type: ignore[no-any-return]
    return kafka_errors.KafkaError  # type: ignore[no-any-return]


def _reduce(self: Any) -> tuple[Any, ...]:
    return _rebuilt, (self.of, self.args, self.preferred)


def _rebuilt(own: type[KafkaError], args: tuple[Any, ...], preferred: tuple[str, ...] = ()) -> Any:
    """Unpickle an error, as kafka-python's class too where the reading process has kafka-python."""
    return as_peer(own(*args), *preferred)


@cache
def _kafka_errors() -> ModuleType | None:
    return peer_module("kafka.errors")
