"""An idempotent producer loses, repeats and reorders no record while leaders of real Apache Kafka move or die."""

from __future__ import annotations

import threading

from kafkabuf import KafkaProducer
from rigs.real_cluster import RealCluster
from tests.real.consumers import read_with_confluent

PARTITIONS = 3
BATCH_SIZE = 16_384
BEFORE_A_KILL = 4_000  # records acknowledged
BURST, PAUSE = 100, 0.01  # keeps a few batches in flight
LONG_PAUSE = 0.1  # leaves the processors to a node that starts again
PADDING = b"." * 1000
PATIENCE = 60.0


class Feed(threading.Thread):
    """Sends numbered records until stop(). The number decides the partition."""

    def __init__(self, producer: KafkaProducer, topic: str) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.acknowledged = 0
        self.errors: list[BaseException] = []
        self.pause = PAUSE  # between two bursts
        self._producer, self._topic = producer, topic
        self._stopping = threading.Event()
        self._news = threading.Condition()

    def run(self) -> None:
        while not self._stopping.is_set():
            number = self.sent
            self._producer.send(
                self._topic, b"%d" % number + PADDING, partition=number % PARTITIONS, callback=self._on_acknowledgement
            )
            self.sent += 1
            if self.sent % BURST == 0:
                self._stopping.wait(self.pause)

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE)

    def await_more(self, records: int) -> None:
        """Wait until so many further records are acknowledged."""
        with self._news:
            wanted = self.acknowledged + records
            assert self._news.wait_for(lambda: self.acknowledged >= wanted or self.errors, PATIENCE)

    def _on_acknowledgement(self, metadata: object, error: BaseException | None) -> None:
        with self._news:
            self.acknowledged += 1
            if error is not None:
                self.errors.append(error)
            self._news.notify_all()


def test_leader_named_by_a_refusal_is_used_without_back_off(real_cluster: RealCluster) -> None:
    # KIP-951. The back-off of some 10 s applies to Metadata requests, too.
    real_cluster.create_topic("moving")
    with KafkaProducer(
        bootstrap_servers=real_cluster.bootstrap_servers,
        linger_ms=0,
        retry_backoff_ms=10_000,
        retry_backoff_max_ms=10_000,
        enable_idempotence=False,  # InitProducerId would wait for the back-off, too
    ) as producer:
        assert producer.send("moving", b"first").result(PATIENCE).offset == 0
        real_cluster.move_leader("moving")
        with KafkaProducer(bootstrap_servers=real_cluster.bootstrap_servers, linger_ms=0) as other:
            assert other.send("moving", b"second").result(PATIENCE)  # the new leader leads by now
        assert producer.send("moving", b"third").result(7)


def kill_leader(cluster: RealCluster, topic: str, partition: int, feed: Feed) -> int:
    """Kill the leader while records are sent, and wait until the next leader acknowledges some; returns the node."""
    feed.await_more(BEFORE_A_KILL)
    killed = cluster.leader(topic, partition)
    cluster.kill(killed)
    feed.await_more(BEFORE_A_KILL)
    return killed


# The last test of this file, since it leaves a node dead.
def test_killed_leader_loses_repeats_and_reorders_no_record(real_cluster: RealCluster) -> None:
    topic = "failover"
    real_cluster.create_topic(topic, PARTITIONS)
    with KafkaProducer(
        bootstrap_servers=real_cluster.bootstrap_servers, enable_idempotence=True, batch_size=BATCH_SIZE
    ) as producer:
        feed = Feed(producer, topic)
        feed.start()
        killed = kill_leader(real_cluster, topic, 0, feed)
        feed.pause = LONG_PAUSE
        real_cluster.restart(killed)
        real_cluster.await_in_sync(topic)
        feed.pause = PAUSE
        kill_leader(real_cluster, topic, 1, feed)
        feed.stop()
        producer.flush(PATIENCE)
        assert producer.metrics()["producer-metrics"]["record-retry-total"] > 0, (
            "no batch was in flight when a leader was killed"
        )
    assert feed.errors == []
    assert feed.acknowledged == feed.sent
    read = read_with_confluent(real_cluster, topic, PARTITIONS, wait_for=feed.sent)
    for partition in range(PARTITIONS):
        values = [
            int((read[partition][offset].value or b"").removesuffix(PADDING)) for offset in sorted(read[partition])
        ]
        assert values == list(range(partition, feed.sent, PARTITIONS))
