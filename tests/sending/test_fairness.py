"""No partition starves: its batch goes soon, however many batches the other partitions have."""

from __future__ import annotations

import threading
import time

import pytest

from kafkabuf.errors import UnsupportedVersionError
from kafkabuf.producer import KafkaProducer
from kafkabuf.protocol import messages
from rigs.fake_client import Answer, decode_produce, encode_answer
from tests.network.support import ALL_VERSIONS, PATIENCE, FakeBroker, Received, cluster_of

TOPIC = "t"
RECORD = b"x" * 300
BATCH = 1_000  # bytes: enough for two records
IN_FLIGHT = 2
AHEAD = 8  # requests that wait behind a full in-flight table
# Requests of full batches that may go in a row while an open batch waits.
IN_A_ROW = 8


class GatedBroker(FakeBroker):
    """Acknowledges Produce requests while the gate is open, and notes their partitions in `seen`."""

    def __init__(self, partitions: int, produce_versions: tuple[int, int] = (0, 13)) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.seen: list[list[int]] = []
        super().__init__(versions={**ALL_VERSIONS, messages.PRODUCE: produce_versions})
        self.cluster = cluster_of(self, topics={TOPIC: partitions})
        self.server = f"{self.host}:{self.port}"

    def handle(self, request: Received) -> bool:
        if request.header.api_key != messages.PRODUCE:
            return False
        assert self.gate.wait(PATIENCE)
        produced = decode_produce(len(request.frame).to_bytes(4, "big") + request.frame)
        self.seen.append([partition for _, partition in produced.records])
        answers = {key: Answer(base_offset=5) for key in produced.records}
        request.reply(encode_answer(produced.version, produced.correlation_id, answers)[4:])
        return True


# With few queues the Sender looks at each of them; with many, only at as many as the node has room for.
@pytest.fixture(params=[2, 12])
def busy(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_open_batch_goes_while_full_batches_of_other_partitions_keep_the_connection_busy(busy: int) -> None:
    broker = GatedBroker(busy + 1)
    try:
        with KafkaProducer(
            bootstrap_servers=broker.server,
            batch_size=BATCH,
            max_request_size=BATCH,
            linger_ms=0,
            enable_idempotence=False,
            max_in_flight_requests_per_connection=IN_FLIGHT,
        ) as producer:
            for partition in range(busy + 1):
                producer.send(TOPIC, RECORD, partition=partition).result(PATIENCE)
            broker.gate.clear()
            futures = [producer.send(TOPIC, RECORD, partition=number % busy) for number in range(120 * busy)]
            limit = time.monotonic() + PATIENCE
            while producer._sender._client.in_flight(0) < IN_FLIGHT + AHEAD and time.monotonic() < limit:
                time.sleep(0.001)
            futures.append(producer.send(TOPIC, RECORD, partition=busy))
            broker.seen.clear()
            broker.gate.set()
            for future in futures:
                future.result(PATIENCE)
        # Those on their way, a turn of each other partition with all places that a response may free, and a row.
        assert broker.seen.index([busy]) <= IN_FLIGHT + AHEAD + busy * (IN_FLIGHT + AHEAD) + IN_A_ROW
    finally:
        broker.close()


def test_queue_that_found_no_room_goes_at_once_when_the_batches_in_front_of_it_fail() -> None:
    broker = GatedBroker(40, produce_versions=(3, 13))
    try:
        with KafkaProducer(
            bootstrap_servers=broker.server,
            record_magic=1,
            enable_idempotence=False,
            batch_size=BATCH,
            max_request_size=BATCH,
            linger_ms=60_000,
        ) as producer:
            futures = [producer.send(TOPIC, RECORD, partition=partition) for partition in range(40)]
            producer.flush(PATIENCE)
            assert {type(future.exception(0)) for future in futures} == {UnsupportedVersionError}
    finally:
        broker.close()
