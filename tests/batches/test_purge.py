"""purge(): which records fail, which do not, and that the producer goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import AbortableTransactionError, ClosedError, PurgedError
from kafkabuf.protocol.messages import PRODUCE
from tests.memory.pool_support import assert_all_free


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("idempotent", [True, False])
def test_purged_record_fails_and_is_never_sent(cluster: EmbeddedCluster, idempotent: bool) -> None:
    topic = f"queued-{idempotent}"
    servers = cluster.bootstrap_servers
    with KafkaProducer(bootstrap_servers=servers, linger_ms=60_000, enable_idempotence=idempotent) as producer:
        waiting = [producer.send(topic, b"waiting") for _ in range(10)]
        producer.purge(in_flight=False)
        producer.flush(10)
        assert all(isinstance(future.exception(0), PurgedError) for future in waiting)
        assert_all_free(producer.pool)
        later = producer.send(topic, b"later")
        producer.flush(10)
        assert later.result(0).offset == 0
        assert producer.metrics()["producer-metrics"]["record-error-total"] == 10


@pytest.mark.parametrize("in_flight", [True, False])
def test_records_that_are_sent_after_a_purge_are_not_purged(cluster: EmbeddedCluster, in_flight: bool) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=5) as producer:
        producer.partitions_for("later")
        for _ in range(100):
            before = producer.send("later", b"before")
            producer.purge(in_flight=in_flight)
            after = [producer.send("later", b"after") for _ in range(3)]
            producer.flush(10)
            assert all(future.exception(0) is None for future in after)
            assert before.done()
        assert_all_free(producer.pool)


@pytest.mark.parametrize("in_flight", [True, False])
def test_records_in_flight_are_purged_only_on_request(cluster: EmbeddedCluster, in_flight: bool) -> None:
    topic = f"sent-{in_flight}"
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, b"first").result(10)
        cluster.delay_next(PRODUCE, 0.5)
        with cluster_saw_one_more_produce(cluster):
            sent = producer.send(topic, b"sent")
        producer.purge(in_flight=in_flight)
        producer.flush(10)
        assert isinstance(sent.exception(0), PurgedError) == in_flight
        assert producer.send(topic, b"later").result(10).offset == 2  # in order, and once
        producer.flush(10)
        assert_all_free(producer.pool)


class cluster_saw_one_more_produce:
    """Waits at the end of the block until the cluster has received a Produce request."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster

    def __enter__(self) -> None:
        self._cluster.clear_requests()

    def __exit__(self, *_: object) -> None:
        self._cluster.wait_for_request(PRODUCE)


def test_transaction_with_a_purged_record_cannot_be_committed(cluster: EmbeddedCluster) -> None:
    with KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, transactional_id="purged", linger_ms=60_000
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("purged", b"gone")
        producer.purge()
        producer.flush(10)
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        producer.abort_transaction()


def test_purge_of_a_closed_producer_raises(cluster: EmbeddedCluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    producer.close()
    with pytest.raises(ClosedError):
        producer.purge()
