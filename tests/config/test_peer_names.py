"""Settings of kafka-python, aiokafka and librdkafka: the error names the setting here that has their meaning."""

from __future__ import annotations

import inspect
import re
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from kafkabuf.config import ProducerConfig, table
from kafkabuf.config.peer_names import PEER_NAMES, PeerName, advice
from kafkabuf.errors import ConfigError

OURS = {row.name for row in table.rows()}
BY_NAME: dict[str, PeerName] = {name: entry for names in PEER_NAMES.values() for name, entry in names.items()}
# confluent-kafka takes these itself and passes the others to librdkafka.
CONFLUENTS_OWN = {"default.topic.config", "logger", "oauth_cb", "on_delivery"}


def refusal(name: str, value: Any = "x") -> str:
    with pytest.raises(ConfigError) as raised:
        ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092", name: value})
    return str(raised.value)


def known(name: str) -> bool:
    return name.replace("_", ".") in OURS or advice(name) is not None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ssl_cafile", "of kafka-python: use ssl.truststore.location; the PEM file of CAs may stay as it is"),
        ("ssl_certfile", "of kafka-python: use ssl.keystore.location; give one PEM file"),
        ("sasl_plain_username", "of kafka-python and aiokafka: use sasl.username"),
        ("max_batch_size", "of aiokafka: use batch.size"),
        ("ssl.ca.location", "of librdkafka: use ssl.truststore.location; name a file"),
        ("message.timeout.ms", "of librdkafka: use delivery.timeout.ms; 0 is not infinite here"),
        ("queue.buffering.max.ms", "of librdkafka: use linger.ms"),
        ("queue_buffering_max_kbytes", "of librdkafka: use buffer.memory; it is in bytes: multiply by 1024"),
        ("compression.codec", "of librdkafka: use compression.type"),
        ("compression.level", "use compression.gzip.level or compression.lz4.level or compression.zstd.level"),
        ("request.required.acks", "of librdkafka: use acks"),
        ("socket.keepalive.enable", "of librdkafka: leave it out: kafkabuf always does that"),
        ("on_delivery", "of librdkafka: give send() a callback(metadata, error)"),
        ("group.id", "of consumers: kafkabuf only produces"),
    ],
)
def test_setting_of_a_peer_leads_to_kafkas_setting(name: str, text: str) -> None:
    assert refusal(name).startswith(f"there is no producer setting {name!r}, a setting ")
    assert text in refusal(name)
    assert refusal(name, None) == refusal(name)


def test_table_names_settings_that_exist_and_explains_the_others() -> None:
    for name, entry in BY_NAME.items():
        assert name.replace("_", ".") not in OURS
        assert {*filter(None, entry.kafka.split(", "))} <= OURS, name
        assert entry.kafka or entry.note, name
        assert not entry.note.endswith(".")


@pytest.mark.parametrize("name", kafka.KafkaProducer.DEFAULT_CONFIG)
def test_setting_of_kafka_python_is_known(name: str) -> None:
    assert known(name)


@pytest.mark.parametrize("name", [*inspect.signature(aiokafka.AIOKafkaProducer).parameters])
def test_setting_of_aiokafka_is_known(name: str) -> None:
    assert known(name)


@pytest.mark.parametrize("name", sorted(PEER_NAMES["librdkafka"].keys() - CONFLUENTS_OWN))
def test_librdkafka_has_the_setting(name: str) -> None:
    """librdkafka complains of the value, or of the next setting, and does not say that this setting is missing."""
    with pytest.raises((confluent_kafka.KafkaException, TypeError, ValueError)) as raised:
        confluent_kafka.Producer({name: "x", "no.such.setting": "x"})
    assert not re.search(f'No such configuration property: "{re.escape(name)}"', str(raised.value))
