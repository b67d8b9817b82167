"""What a shell shows of the public objects: a short line without secrets, and completion without internals."""

from __future__ import annotations

import asyncio

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.aio._futures import BatchEnds
from kafkabuf.aio.futures import AIOBulkReport
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.testing import MockProducer
from rigs.producer import TOPIC, quick_rig
from tests.append.arrow_support import turning

INTERNALS = {"accumulator", "check_open", "detour", "interceptors", "pool", "prepare"}
SECRET = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "pw"}


def test_producer_shows_its_names_its_cluster_and_whether_it_is_open() -> None:
    producer = KafkaProducer({"bootstrap.servers": "127.0.0.1:1", "client.id": "shop", **SECRET})
    assert repr(producer) == "KafkaProducer('shop' to 127.0.0.1:1, open)"
    producer.close(0)
    assert repr(producer) == "KafkaProducer('shop' to 127.0.0.1:1, closed)"
    assert repr(KafkaProducer.__new__(KafkaProducer)) == "KafkaProducer(not open)"


def test_producer_shows_three_addresses_at_most() -> None:
    servers = [f"h{number}:1" for number in range(5)]
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="copier")
    expected = "AIOKafkaProducer('kafkabuf', 'copier' to h0:1,h1:1,h2:1 and 2 more, not started)"
    assert repr(producer) == expected


def test_asyncio_producer_shows_whether_it_runs() -> None:
    async def shown() -> list[str]:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        await producer.start()
        started = repr(producer)
        await producer.stop()
        return [started.rpartition(", ")[2], repr(producer).rpartition(", ")[2]]

    with EmbeddedCluster() as cluster:
        assert asyncio.run(shown()) == ["started)", "stopped)"]


def test_report_shows_its_rows_and_how_many_failed() -> None:
    rig = quick_rig(leaders=(1, 1))
    rig.client.unready.add(1)
    report = rig.producer.send_many(TOPIC, [b"v"] * 3)
    assert repr(report) == "BulkReport(3 rows, pending)"
    rig.clock.advance(1)
    rig.turn()
    assert repr(report) == "BulkReport(3 rows, 3 failed)"
    loop = asyncio.new_event_loop()
    assert repr(AIOBulkReport(report, BatchEnds(loop))) == "AIOBulkReport(3 rows, 3 failed)"
    loop.close()
    rig = turning()
    report = rig.producer.send_many(TOPIC, [b"v"] * 3)
    rig.ack_all()
    assert repr(report) == "BulkReport(3 rows, delivered)"


def test_mock_shows_its_records() -> None:
    mock = MockProducer(auto_complete=False)
    mock.send("t", b"v")
    mock.send("t", b"v")
    mock.complete_next()
    assert repr(mock) == "MockProducer(2 records, 1 pending, open)"
    mock.close()
    assert repr(mock) == "MockProducer(2 records, 1 pending, closed)"


def test_cluster_shows_where_it_listens() -> None:
    cluster = EmbeddedCluster(brokers=2)
    assert repr(cluster) == "EmbeddedCluster(2 brokers, stopped)"
    with cluster:
        assert repr(cluster) == f"EmbeddedCluster(2 brokers, at {cluster.bootstrap_servers})"


@pytest.mark.parametrize("kind", [KafkaProducer, MockProducer])
def test_completion_shows_no_internals(kind: type[KafkaProducer] | type[MockProducer]) -> None:
    producer = kind(bootstrap_servers="127.0.0.1:1")
    completed = set(dir(producer))
    producer.close(0)
    assert not completed & INTERNALS
    assert {"send", "flush", "close", "config", "partitions_for"} <= completed
