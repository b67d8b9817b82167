"""send(), send_many() and the producer of an event loop with a format as serializer, and a Schema Registry."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import (
    ClosedError,
    ConfigError,
    KafkaError,
    NetworkError,
    SchemaRegistryError,
    SerializationError,
    TimeoutError,
)
from kafkabuf.formats import Avro, Json, Protobuf
from kafkabuf.formats.registry import SchemaRegistry
from rigs.producer import TOPIC, Rig
from tests.formats.avro.support import written
from tests.formats.registry.support import OTHER, RECORD, WIDER, FakeRegistry, running

ONE, TWO = ({"a": number} for number in (1, 2))


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, default_partitions=1) as cluster:
        yield cluster


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as registry:
        yield registry


def settings_of(cluster: EmbeddedCluster, fake: FakeRegistry, **more: Any) -> dict[str, Any]:
    own = {"bootstrap.servers": cluster.bootstrap_servers, "schema.registry.url": fake.url}
    return own | {"value.serializer": Avro(RECORD)} | {name.replace("_", "."): value for name, value in more.items()}


def framed(number: int, value: dict[str, int], schema: str = RECORD) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + written(json.loads(schema), value)


def values(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [message.value for message in cluster.messages(topic)]


# ---- the bytes, and who is asked -------------------------------------------------------------------------------------


def test_first_send_to_a_topic_registers_and_later_ones_ask_nobody(
    cluster: EmbeddedCluster, fake: FakeRegistry
) -> None:
    with KafkaProducer(settings_of(cluster, fake, key_serializer=Avro('"long"'))) as producer:
        for value in (ONE, TWO):
            producer.send("first", value, key=7)
            producer.send("second", value)
        producer.send_many("first", [ONE, TWO], [None, 7]).result()
    key, value = (fake.subjects[f"first-{field}"][0]["id"] for field in ("key", "value"))
    assert values(cluster, "first") == [framed(value, ONE), framed(value, TWO)] * 2
    keyed = b"\0\0\0\0" + bytes([key, 14])
    assert [message.key for message in cluster.messages("first")] == [keyed, keyed, None, keyed]
    assert values(cluster, "second") == [framed(fake.subjects["second-value"][0]["id"], value) for value in (ONE, TWO)]
    assert sorted(fake.subjects) == ["first-key", "first-value", "second-value"]
    assert len(fake.seen) == 3


def test_null_needs_no_schema(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with KafkaProducer(settings_of(cluster, fake, key_serializer=Avro('"long"'))) as producer:
        producer.send("nulls").result()
        producer.send_many("nulls", [None]).result()
    assert [(message.key, message.value) for message in cluster.messages("nulls")] == [(None, None)] * 2
    assert fake.seen == []


@pytest.mark.parametrize("send", ["send", "send_many", "aio"])
def test_header_that_names_the_schema_follows_the_records_own(
    cluster: EmbeddedCluster, fake: FakeRegistry, send: str
) -> None:
    own = [("h", b"1")]
    settings = settings_of(cluster, fake, schema_registry_schema_id_framing="header")
    topic = f"headers-{send}"
    if send == "aio":

        async def run() -> None:
            async with AIOKafkaProducer(settings) as producer:
                await producer.send_and_wait(topic, ONE, headers=own)
                await producer.send_and_wait(topic, None, headers=own)

        asyncio.run(run())
    else:
        with KafkaProducer(settings) as producer:
            if send == "send":
                producer.send(topic, ONE, headers=own)
                producer.send(topic, None, headers=own)
            else:
                producer.send_many(topic, [ONE, None], headers=[own, own]).result()
    guid = b"\1" + UUID(fake.subjects[f"{topic}-value"][0]["guid"]).bytes
    first, second = cluster.messages(topic)
    assert (first.value, second.value) == (written(json.loads(RECORD), ONE), None)
    assert [list(first.headers), list(second.headers)] == [[*own, ("__value_schema_id", guid)], own]
    assert own == [("h", b"1")]


def test_producer_of_an_event_loop_waits_in_a_thread(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    async def run() -> None:
        async with AIOKafkaProducer(settings_of(cluster, fake)) as producer:
            fake.faults = ["silent"]
            sending = asyncio.create_task(producer.send("loop", ONE))
            async with asyncio.timeout(30):
                while not fake.seen:
                    await asyncio.sleep(0.001)
                assert not sending.done()
                fake.released.set()
                await (await sending)
            await producer.send_and_wait("loop", TWO)
            await (await producer.send_many("loop", [ONE])).result()

    asyncio.run(run())
    assert values(cluster, "loop") == [framed(100, ONE), framed(100, TWO), framed(100, ONE)]
    assert len(fake.seen) == 2  # the silent request was asked again


@pytest.mark.parametrize("format", [Avro(), Avro(RECORD)])
def test_latest_schema_of_the_registry_encodes_the_objects(
    cluster: EmbeddedCluster, fake: FakeRegistry, format: Avro
) -> None:
    topic = f"latest-{format.schema is None}"
    fake.subjects[f"{topic}-value"] = [{"schema": WIDER, "id": 7, "version": 1, "subject": f"{topic}-value"}]
    settings = settings_of(cluster, fake, schema_registry_use_latest_version=True, value_serializer=format)
    with KafkaProducer(settings) as producer:
        producer.send(topic, ONE).result()
    assert values(cluster, topic) == [framed(7, {"a": 1, "b": 0}, WIDER)]


def test_response_that_is_stale_is_asked_for_again(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with KafkaProducer(settings_of(cluster, fake, schema_registry_latest_cache_ttl_sec=0)) as producer:
        producer.send("stale", ONE).result()
        fake.subjects.clear()  # somebody deletes the subject
        producer.send("stale", TWO).result()
    assert fake.subjects.keys() == {"stale-value"}


def test_interceptor_may_send_to_another_topic(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    class Elsewhere:
        def on_send(self, record: Any) -> Any:
            return record._replace(topic="elsewhere")

    settings = settings_of(cluster, fake, interceptor_classes=[Elsewhere()])
    with KafkaProducer(settings) as producer:
        producer.send("given", ONE).result()
        producer.send_many("given", [TWO]).result()
    assert values(cluster, "elsewhere") == [framed(100, ONE), framed(100, TWO)]
    assert fake.subjects.keys() == {"elsewhere-value"}


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KafkaProducer, AIOKafkaProducer])
@pytest.mark.parametrize("field", ["key", "value"])
def test_serializer_whose_schema_would_be_derived_is_refused(
    cluster: EmbeddedCluster, fake: FakeRegistry, kind: Any, field: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{field}.serializer is Avro\(\) without a schema.*give Avro\(schema="):
        kind(settings_of(cluster, fake, **{f"{field}_serializer": Avro()}))


def test_header_needs_a_record_format_with_headers(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    more = {"record_magic": 1, "enable_idempotence": False, "schema_registry_schema_id_framing": "header"}
    with pytest.raises(ConfigError, match=r"record\.magic is 1"):
        KafkaProducer(settings_of(cluster, fake, **more))


def test_send_arrow_does_not_apply_the_serializer(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with (
        KafkaProducer(settings_of(cluster, fake)) as producer,
        pytest.raises(ConfigError, match=r"cannot apply value\.serializer"),
    ):
        producer.send_arrow(pa.table({"value": [b"v"]}), "arrow")


def refusal(call: Callable[[], Any]) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("send", ["send", "send_many"])
def test_refusal_comes_at_the_call_in_the_registrys_own_words(
    cluster: EmbeddedCluster, fake: FakeRegistry, send: str
) -> None:
    topic = f"refused-{send}"
    fake.subjects[f"{topic}-value"] = [{"schema": OTHER, "id": 7}]
    fake.compatible = False
    with KafkaProducer(settings_of(cluster, fake)) as producer:
        call = (
            (lambda: producer.send(topic, ONE)) if send == "send" else (lambda: producer.send_many(topic, [None, ONE]))
        )
        error = refusal(call)
        assert isinstance(error, SchemaRegistryError)
        assert "incompatible: TYPE_MISMATCH" in str(error)
        if send == "send_many":
            assert error.rows_queued == 1
        fake.compatible = True
        producer.send(topic, ONE).result()  # no error is remembered


def test_registry_that_is_down_or_unknown_fails_the_call(cluster: EmbeddedCluster) -> None:
    with running(FakeRegistry(authorization="Basic other")) as fake:
        with KafkaProducer(settings_of(cluster, fake, schema_registry_max_retries=0)) as producer:
            error = refusal(lambda: producer.send("down", ONE))
            assert isinstance(error, SchemaRegistryError)
            assert "Unauthorized" in str(error)
            fake.faults = ["close"]
            assert isinstance(refusal(lambda: producer.send("down", ONE)), NetworkError)


def test_silent_registry_takes_max_block_ms_and_no_more(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    fake.faults = ["silent"] * 50
    with KafkaProducer(settings_of(cluster, fake, max_block_ms=300)) as producer:
        producer.partitions_for("silent")
        error = refusal(lambda: producer.send("silent", ONE))
    assert isinstance(error, TimeoutError)
    assert fake.url in str(error)


def test_object_that_does_not_fit_is_named_as_without_a_registry(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with (
        KafkaProducer(settings_of(cluster, fake)) as producer,
        pytest.raises(SerializationError, match=r"value\.a of type str does not fit Avro's long"),
    ):
        producer.send("misfit", {"a": "1"})


def test_callback_does_not_wait_for_the_registry(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with KafkaProducer(settings_of(cluster, fake)) as producer:
        for topic in ("known-here", "unknown-here"):
            producer.partitions_for(topic)
        producer.send("known-here", ONE).result()
        outcome: Future[KafkaError] = Future()

        def callback(*_: object) -> None:
            try:
                producer.send("known-here", ONE)
                outcome.set_result(refusal(lambda: producer.send("unknown-here", ONE)))
            except BaseException as error:
                outcome.set_exception(error)

        producer.send("known-here", TWO, callback=callback)
        error = outcome.result(30)
    assert isinstance(error, TimeoutError)
    assert "a callback cannot wait for the Schema Registry" in str(error)


# ---- the end of a wait -----------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[KafkaProducer[Any, Any]], Any]] = {
    "send": lambda producer: producer.send("closed", ONE),
    "send_many": lambda producer: producer.send_many("closed", [ONE]),
    "send_arrow": lambda producer: producer.send_arrow(pa.table({"a": [1]}), "closed", value_format=Avro(RECORD)),
}


@pytest.mark.parametrize("fault", ["silent", "close"])
@pytest.mark.parametrize("name", CALLS)
def test_close_ends_a_call_that_waits_for_the_registry(
    cluster: EmbeddedCluster, fake: FakeRegistry, name: str, fault: str
) -> None:
    """A silent registry keeps the call in a request; one that closes the connection, in the pause before the next."""
    fake.faults = [fault] * 1000
    pauses = {"schema_registry_retries_wait_ms": 30_000, "schema_registry_retries_max_wait_ms": 30_000}
    settings = settings_of(cluster, fake, **pauses)
    if name == "send_arrow":
        del settings["value.serializer"]
    producer: KafkaProducer[Any, Any] = KafkaProducer(settings)
    producer.partitions_for("closed")
    outcome: Future[KafkaError] = Future()
    thread = threading.Thread(target=lambda: outcome.set_result(refusal(lambda: CALLS[name](producer))))
    thread.start()
    asked = threading.Event()
    while not fake.seen:
        asked.wait(0.001)
    producer.close()
    error = outcome.result(10)
    thread.join(10)
    assert isinstance(error, ClosedError)
    assert str(error) == "the producer is closed"
    if name != "send":
        assert error.rows_queued == 0


def test_interrupt_while_the_registry_is_asked_counts_the_rows_before_it(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    rig.accumulator.topic_queues("other", [1])
    registry = SchemaRegistry({"url": fake.url}, clock=rig.clock)
    resolve = registry.resolve

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if named["subject"] == "other-value":
            raise KeyboardInterrupt
        return resolve(*arguments, **named)

    monkeypatch.setattr(registry, "resolve", interrupted)
    rig.producer.registry = registry
    table = pa.table({"a": range(3), "topic": [TOPIC, TOPIC, "other"]})
    with pytest.raises(KeyboardInterrupt) as caught:
        rig.producer.send_arrow(table, value_format=Avro(RECORD))
    rig.ack_all()
    error: Any = caught.value
    assert error.rows_queued == 2
    assert error.report.result().offset.tolist() == [0, 1]


def test_json_without_a_schema_is_refused_beside_a_registry(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with pytest.raises(ConfigError):
        KafkaProducer(settings_of(cluster, fake, value_serializer=Json()))


def test_json_and_protobuf_objects_have_the_frame_of_their_registered_schema(
    cluster: EmbeddedCluster, fake: FakeRegistry
) -> None:
    schema = {"type": "object", "title": "One"}
    with KafkaProducer(settings_of(cluster, fake, value_serializer=Json(schema=schema))) as producer:
        producer.send("json", ONE).result()
    with KafkaProducer(settings_of(cluster, fake, value_serializer=Protobuf(Timestamp))) as producer:
        producer.send("protobuf", Timestamp(seconds=5)).result()
        with pytest.raises(SerializationError, match="has no field"):
            producer.send("protobuf", ONE)
    number = fake.subjects["json-value"][0]["id"]
    assert values(cluster, "json") == [b"\0" + number.to_bytes(4, "big") + b'{"a":1}']
    number = fake.subjects["protobuf-value"][0]["id"]
    assert values(cluster, "protobuf") == [b"\0" + number.to_bytes(4, "big") + b"\0" + b"\x08\x05"]
