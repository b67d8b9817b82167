"""A cluster of one node on a manual clock, and a raw client, for tests of transactions."""

from __future__ import annotations

from typing import Any

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.clock import ManualClock
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch
from tests.broker.transactions.script import TRANSACTIONAL, heads

Producer = tuple[int, int]


class World:
    """A cluster of one node on a manual clock, a topic with two partitions, and a raw client."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.cluster = EmbeddedCluster(clock=self.clock, **settings).start()
        self.cluster.create_topic("t", 2)
        self.client = RawClient(self.cluster.bootstrap_servers.split(",")[0])

    def close(self) -> None:
        self.client.socket.close()
        self.cluster.stop()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.cluster.tick()

    def init(self, known: Producer = (-1, -1), timeout: int = 10_000) -> tuple[int, int, int]:
        answer = self.client.ask(
            messages.INIT_PRODUCER_ID,
            5,
            transactional_id="tx",
            transaction_timeout=timeout,
            producer_id=known[0],
            producer_epoch=known[1],
        )
        return int(answer.error_code), answer.producer_id, answer.producer_epoch

    def start(self, timeout: int = 10_000) -> Producer:
        code, producer_id, epoch = self.init(timeout=timeout)
        assert code == 0
        return producer_id, epoch

    def send(self, producer: Producer, sequence: int, *, partition: int = 0, version: int = 12, **more: Any) -> Any:
        """The partition's response."""
        transactional_id = more.get("transactional_id", "tx")
        attributes = TRANSACTIONAL if transactional_id else 0
        records = batch([b"x"], producer=(*producer, sequence), attributes=attributes)
        data = [{"name": "t", "partition_data": [{"index": partition, "records": records}]}]
        client = more.get("client", self.client)
        answer = client.ask(
            messages.PRODUCE, version, transactional_id=transactional_id, acks=-1, timeout=1000, topic_data=data
        )
        return answer.responses[0].partition_responses[0]

    def end(self, producer: Producer, committed: bool, version: int = 5) -> tuple[int, int, int]:
        answer = self.client.ask(
            messages.END_TXN,
            version,
            transactional_id="tx",
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
        )
        return int(answer.error_code), getattr(answer, "producer_id", -1), getattr(answer, "producer_epoch", -1)

    def batches(self, partition: int = 0) -> list[tuple[int, int, int, int, int]]:
        return [head for data in self.cluster.records("t", partition) for head in heads(data)]

    def stable(self, partition: int = 0) -> int:
        return self.cluster._call(lambda c: c.catalogue.topic("t").partition(partition).log.last_stable_offset)
