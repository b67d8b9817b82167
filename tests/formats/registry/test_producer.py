"""KafkaProducer and AIOKafkaProducer with the settings of a Schema Registry, on the embedded cluster."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, TimeoutError
from kafkabuf.formats import Avro
from tests.formats.avro.support import written
from tests.formats.registry.support import OTHER, RECORD, FakeRegistry, running

SENTINEL = "s3ntin3l"
TABLE = pa.table({"a": [1, 2]})
VALUES = [b"\0\0\0\0\x64" + written(json.loads(RECORD), {"a": number}) for number in (1, 2)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, default_partitions=1) as cluster:
        yield cluster


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as registry:
        yield registry


def settings_of(cluster: EmbeddedCluster, fake: FakeRegistry, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": cluster.bootstrap_servers, "schema.registry.url": fake.url} | more


def values(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [message.value for message in cluster.messages(topic)]


def test_producer_asks_the_registry_of_its_settings(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with KafkaProducer(settings_of(cluster, fake)) as producer:
        producer.send_arrow(TABLE, "plain", value_format=Avro(RECORD)).result()
    assert values(cluster, "plain") == VALUES
    assert fake.subjects.keys() == {"plain-value"}


def test_producer_without_the_setting_asks_nobody(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_arrow(TABLE, "bare", value_format=Avro(RECORD)).result()
    assert values(cluster, "bare") == Avro(RECORD).encode(TABLE)


def test_record_without_a_format_asks_nobody(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with KafkaProducer(settings_of(cluster, fake)) as producer:
        producer.send_arrow(pa.table({"value": ["v"], "id": ["k"]}), "raw", key="id").result()
        producer.send("raw", b"w").result()
    assert values(cluster, "raw") == [b"v", b"w"]
    assert fake.seen == []


def test_copy_of_a_producer_has_the_settings_and_credentials(cluster: EmbeddedCluster) -> None:
    basic = "Basic bWU6czNudGluM2w="
    with running(FakeRegistry(authorization=basic)) as fake:
        user = fake.url.replace("//", f"//me:{SENTINEL}@")
        with KafkaProducer(settings_of(cluster, fake, **{"schema.registry.url": user})) as producer:
            copy = pickle.loads(pickle.dumps(producer))
            assert SENTINEL not in f"{producer!r} {producer.config!r} {producer.__dict__!r}"
        with copy:
            copy.send_arrow(TABLE, "copied", value_format=Avro(RECORD)).result()
    assert values(cluster, "copied") == VALUES


def test_forked_child_asks_with_a_client_of_its_own(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with KafkaProducer(settings_of(cluster, fake)) as producer:
        producer.send_arrow(TABLE, "forked", value_format=Avro(RECORD)).result()
        assert producer._registry is not None
        producer._registry._cache._lock.acquire()  # as another thread of the parent may hold it for ever
        child = os.fork()
        if child == 0:
            try:
                producer.send_arrow(TABLE, "forked", value_format=Avro(RECORD)).result()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        producer._registry._cache._lock.release()
        assert os.waitpid(child, 0)[1] == 0
    assert values(cluster, "forked") == VALUES * 2
    assert len(fake.seen) == 2


def test_callback_does_not_wait_for_the_registry(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    """The Sender runs callbacks: while one waits, no record gets its outcome."""
    with KafkaProducer(settings_of(cluster, fake)) as producer:
        for topic in ("known", "unknown"):
            producer.partitions_for(topic)
        producer.send_arrow(TABLE, "known", value_format=Avro(RECORD)).result()
        outcome: Future[list[Any]] = Future()

        def callback(*_: object) -> None:
            found: list[Any] = []
            for topic in ("known", "unknown"):
                try:
                    found.append(producer.send_arrow(TABLE, topic, value_format=Avro(RECORD)).rows)
                except Exception as error:
                    found.append(error)
            outcome.set_result(found)

        producer.send("known", b"first", callback=callback)
        rows, error = outcome.result(30)
    assert rows == 2
    assert isinstance(error, TimeoutError)
    assert "a callback cannot wait for the Schema Registry" in str(error)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"schema.registry.url": None, "schema.registry.max.retries": 1}, r"schema\.registry\.url is missing"),
        ({"schema.registry.max.retrys": 1}, r"did you mean schema\.registry\.max\.retries"),
        ({"auto.register.schemas": "false"}, r"did you mean schema\.registry\.auto\.register\.schemas"),
        ({"schema.registry.max.retries": -1}, r"schema\.registry\.max\.retries: .* found -1"),
        ({"schema.registry.schema.id.framing": "both"}, "'prefix' or 'header'"),
        (
            {"schema.registry.use.latest.version": True, "schema.registry.auto.register.schemas": True},
            "auto.register.schemas and use.latest.version are both set",
        ),
    ],
)
@pytest.mark.parametrize("kind", [KafkaProducer, AIOKafkaProducer])
def test_wrong_setting_is_refused_before_the_producer_opens(
    cluster: EmbeddedCluster, fake: FakeRegistry, kind: Any, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        kind(settings_of(cluster, fake, **given))


# ---- asyncio ---------------------------------------------------------------------------------------------------------


def test_loop_goes_on_while_the_registry_is_silent(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    async def test() -> None:
        async with AIOKafkaProducer(settings_of(cluster, fake)) as producer:
            fake.faults = ["silent"]
            sending = asyncio.create_task(producer.send_arrow(TABLE, "aio", value_format=Avro(RECORD)))
            async with asyncio.timeout(30):
                while not fake.seen:
                    await asyncio.sleep(0.001)
                await producer.send_and_wait("aio", b"meanwhile")
                assert not sending.done()
                fake.released.set()  # the silent request ends without a response, and the client asks again
                await (await sending).result()

    asyncio.run(test())
    assert values(cluster, "aio") == [b"meanwhile", *VALUES]


def test_refusal_reaches_the_task(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    fake.subjects["refused-value"] = [{"schema": OTHER, "id": 7}]
    fake.compatible = False

    async def test() -> None:
        async with AIOKafkaProducer(settings_of(cluster, fake)) as producer:
            with pytest.raises(Exception, match="incompatible: TYPE_MISMATCH") as caught:
                await producer.send_arrow(TABLE, "refused", value_format=Avro(RECORD))
            assert caught.value.rows_queued == 0  # type: ignore[attr-defined]

    asyncio.run(test())


def test_serializer_with_the_prefix_of_a_registry_writes_it(cluster: EmbeddedCluster, fake: FakeRegistry) -> None:
    with KafkaProducer(settings_of(cluster, fake), value_serializer=Avro(RECORD, prefix=b"\0\0\0\0\x64")) as producer:
        producer.send("prefixed", {"a": 1}).result(10)
    assert [message.value for message in cluster.messages("prefixed")] == VALUES[:1]
