"""Settings under librdkafka's names, in `-X` and in properties files: people bring them from kcat and confluent-kafka.

A name whose value means the same here becomes Kafka's. The others stay, and ProducerConfig says what to use instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kafkabuf.config.peer_names import PEER_NAMES
from kafkabuf.errors import ConfigError

# The notes of these settings tell of restrictions: ProducerConfig refuses a value that does not fit.
_RESTRICTED = {
    "message.max.bytes": "max.request.size",
    "message.timeout.ms": "delivery.timeout.ms",
    "partitioner": "partitioner.class",
    "ssl.ca.location": "ssl.truststore.location",
}
_SAME = _RESTRICTED | {
    name: peer.kafka
    for name, peer in PEER_NAMES["librdkafka"].items()
    if peer.kafka and "," not in peer.kafka and not peer.note
}
# librdkafka names two files, and Kafka takes the text of both.
_TEXTS = {
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}


def in_kafkas_names(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with Kafka's names where the value means the same. Raises ConfigError for a file of a key or a
    certificate that cannot be read."""
    return {
        _TEXTS.get(name, _SAME.get(name, name)): _text(name, value) if name in _TEXTS else value
        for name, value in settings.items()
    }


def _text(name: str, path: str) -> str:
    try:
        return Path(path).read_text("latin-1")
    except OSError as error:
        raise ConfigError(f"{name}: {path!r} cannot be read: {error.strerror}") from None
