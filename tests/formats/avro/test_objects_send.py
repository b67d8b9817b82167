"""Avro(schema) as serializer: send(), send_many() and the producer of an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats import Avro
from kafkabuf.testing import MockProducer

SCHEMA: Any = {
    "type": "record", "name": "R",
    "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": ["null", "string"], "default": None}],
}  # fmt: skip
VALUE = Avro(SCHEMA, prefix=b"\0\0\0\0\7")
ENCODED = b"\0\0\0\0\7\x02\x02\x02a"


def test_send_and_send_many_encode_keys_and_values() -> None:
    with EmbeddedCluster() as cluster:
        with KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, key_serializer=Avro("long"), value_serializer=VALUE
        ) as producer:
            producer.send("t", {"id": 1, "text": "a"}, key=5).result()
            producer.send("t", None).result()
            producer.send_many("t", [{"id": 1, "text": "a"}, None]).result()
        records = [(message.key, message.value) for message in cluster.messages("t")]
    assert sorted(records, key=repr) == sorted(
        [(b"\x0a", ENCODED), (None, None), (None, ENCODED), (None, None)], key=repr
    )


def test_producer_of_an_event_loop_encodes_values() -> None:
    async def run(servers: str) -> None:
        async with AIOKafkaProducer(bootstrap_servers=servers, value_serializer=VALUE) as producer:
            await producer.send_and_wait("t", {"id": 1, "text": "a"})

    with EmbeddedCluster() as cluster:
        asyncio.run(run(cluster.bootstrap_servers))
        assert [message.value for message in cluster.messages("t")] == [ENCODED]


@pytest.mark.parametrize("field", ["key", "value"])
def test_format_without_a_schema_is_no_serializer(field: str) -> None:
    options: dict[str, Any] = {f"{field}_serializer": Avro()}
    with pytest.raises(ConfigError, match=rf"Avro\(\) without a schema .* and a {field} has none"):
        MockProducer(**options)


def test_error_begins_with_the_field_that_does_not_fit() -> None:
    with MockProducer(key_serializer=Avro("long"), value_serializer=VALUE) as producer:
        with pytest.raises(SerializationError, match=r"value\.id of type str does not fit Avro's long"):
            producer.send("t", {"id": "1"})
        with pytest.raises(SerializationError, match="key of type str does not fit Avro's long"):
            producer.send("t", {"id": 1}, key="k")
