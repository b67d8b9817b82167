"""What the proof meets on a broker: a process whose batches are made by hand, and the same scripts for each broker.

The batches come from tests/broker/raw_client.py, not from our encoder.
"""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kafkabuf.config import ProducerConfig
from kafkabuf.protocol import messages
from kafkabuf.spool.evidence import Outcome, Proof, SpooledBatch, SpooledPartition
from kafkabuf.spool.leaders import Leaders
from kafkabuf.spool.proof import prove
from tests.broker.raw_client import NOW, RawClient, batch
from tests.waiting import wait_until

THERE, ABSENT, FORGOTTEN, UNPROVEN = Outcome.THERE, Outcome.ABSENT, Outcome.FORGOTTEN, Outcome.UNPROVEN
GZIP = 1
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH = 45, 47


@dataclass(frozen=True)
class Stage:
    """A broker: its address, and how to create a topic with configs there."""

    address: str
    create: Callable[[str, Mapping[str, str]], None]

    def new_topic(self, **configs: str) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.create(name, {config.replace("_", "."): value for config, value in configs.items()})
        return name

    def again(self, topic: str) -> None:
        """Deletes the topic and makes it again."""
        with RawClient(self.address) as client:
            client.ask(messages.DELETE_TOPICS, 3, topics_names=[topic], topic_names=[topic], timeout=30_000)
            wait_until(lambda: described(client, topic).error_code)
        self.create(topic, {})


def described(client: RawClient, topic: str) -> Any:
    """What Metadata says of a topic."""
    wanted = [{"topic_id": None, "name": topic}]
    (found,) = client.ask(messages.METADATA, 12, topics=wanted, allow_auto_topic_creation=False).topics
    return found


class DeadProcess:
    """A producer of one partition that was killed. It has acknowledged records 0 to 9, at offsets 0 to 9."""

    def __init__(self, stage: Stage, topic: str, key: bytes | None = None) -> None:
        self.topic = topic
        self.key = key  # of all records
        self.address = stage.address
        with self.client() as client:
            self.topic_id = described(client, topic).topic_id
        self.producer_id = -1
        wait_until(self._get_id)  # a node that has just started has none to give
        assert self.append(self.numbered(0, 0, 10)) == 0

    def client(self) -> RawClient:
        return RawClient(self.address)

    def _get_id(self) -> bool:
        none = {"transactional_id": None, "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1}
        with self.client() as client:
            self.producer_id = int(client.ask(messages.INIT_PRODUCER_ID, 4, **none).producer_id)
        return self.producer_id >= 0

    def numbered(self, number: int, base: int, count: int = 5, *, epoch: int = 0) -> SpooledBatch:
        return SpooledBatch(number, self.producer_id, epoch, base, count, NOW + count - 1)

    def append(self, spooled: SpooledBatch, attributes: int = 0, acks: int = -1, size: int = 1) -> int:
        """The offset at which the leader has the batch."""
        answer = self.offer(spooled, attributes, acks, size)
        assert answer.error_code == 0, answer
        return int(answer.base_offset)

    def offer(self, spooled: SpooledBatch, attributes: int = 0, acks: int = -1, size: int = 1) -> Any:
        """What the leader says of the batch."""
        values, keys = [b"%d" % spooled.number * size] * spooled.count, [self.key] * spooled.count
        numbers = spooled.producer_id, spooled.epoch, spooled.base_sequence
        data = batch(values, keys=keys, producer=numbers)
        if attributes & GZIP:
            data = batch(values, producer=numbers, attributes=GZIP, body=gzip.compress(data[61:]))
        with self.client() as client:
            return client.produce(self.topic, data, acks=acks)

    def append_others(self, count: int, size: int = 1) -> None:
        with self.client() as client:
            for _ in range(count):
                assert client.produce(self.topic, batch([b"x" * size])).error_code == 0

    def delete_before(self, offset: int) -> None:
        topics = [{"name": self.topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
        with self.client() as client:
            client.ask(messages.DELETE_RECORDS, 2, topics=topics, timeout=10_000)

    def known_ids(self) -> set[int]:
        """The producers that the leader knows."""
        topics = [{"name": self.topic, "partition_indexes": [0]}]
        with self.client() as client:
            (topic,) = client.ask(messages.DESCRIBE_PRODUCERS, 0, topics=topics).topics
        return {int(state.producer_id) for state in topic.partitions[0].active_producers}

    def file(self, batches: Sequence[SpooledBatch], **remembered: object) -> SpooledPartition:
        partition = SpooledPartition(
            self.topic, self.topic_id, 0, self.producer_id, 0, 9, 9, max(b.last_sequence for b in batches) + 1, batches
        )
        return replace(partition, **remembered)  # type: ignore[arg-type]


def leaders(address: str, **settings: Any) -> Leaders:
    named = {"max_block_ms": 0, "retry_backoff_ms": 20, "reconnect_backoff_ms": 20, **settings}
    return Leaders(ProducerConfig.from_mapping({"bootstrap.servers": address}, named))


def prove_one(address: str, partition: SpooledPartition, **settings: Any) -> Proof:
    with leaders(address, **settings) as cluster:
        (proof,) = prove(cluster, [partition])
    return proof


def outcomes(proof: Proof) -> list[Outcome]:
    return [verdict.outcome for verdict in proof.verdicts]


# ---- scripts ---------------------------------------------------------------------------------------------------------


def in_doubt_batches_are_divided_by_the_last_sequence(stage: Stage) -> None:
    process = DeadProcess(stage, stage.new_topic())
    batches = [process.numbered(1, 10), process.numbered(2, 15), process.numbered(3, 20)]
    for arrived in range(4):
        file = process.file(batches)
        assert outcomes(prove_one(stage.address, file)) == [THERE] * arrived + [ABSENT] * (3 - arrived)
        for spooled in batches[: arrived + 1]:  # those that are there are answered as duplicates
            assert process.append(spooled) == spooled.base_sequence


def compressed_and_large_batches_are_found_among_others(stage: Stage, forget: Callable[[DeadProcess], None]) -> None:
    """The log alone decides: the leader has forgotten the id."""
    process = DeadProcess(stage, stage.new_topic(max_message_bytes="4000000"))
    batches = [process.numbered(number, 5 * number + 5) for number in range(1, 5)]
    offsets = []
    for spooled, attributes, size in ((batches[0], GZIP, 1), (batches[1], 0, 500_000), (batches[2], 0, 1)):
        process.append_others(3, 400_000)
        offsets.append(process.append(spooled, attributes, size=size))
    process.append_others(5, 300_000)
    forget(process)
    proof = prove_one(stage.address, process.file(batches))
    assert outcomes(proof) == [THERE, THERE, THERE, FORGOTTEN]
    assert [verdict.base_offset for verdict in proof.verdicts] == [*offsets, -1]
    assert proof.verdicts[3].own_numbers
    assert process.append(batches[3]) == offsets[-1] + 10


def deleted_stretch_is_unproven(stage: Stage, forget: Callable[[DeadProcess], None]) -> None:
    process = DeadProcess(stage, stage.new_topic())
    batches = [process.numbered(1, 10), process.numbered(2, 15)]
    for spooled in batches:
        process.append(spooled)
    process.delete_before(15)
    forget(process)
    proof = prove_one(stage.address, process.file(batches))
    assert outcomes(proof) == [UNPROVEN, THERE]
    assert f"offsets 10 to 14 of {process.topic}-0 are gone" in proof.verdicts[0].reason


def topic_made_again_is_read_from_its_start(stage: Stage) -> None:
    process = DeadProcess(stage, stage.new_topic())
    batches = [process.numbered(1, 10), process.numbered(2, 15)]
    process.append(batches[0])
    stage.again(process.topic)
    process.append_others(40)
    assert process.append(batches[0]) == 40
    proof = prove_one(stage.address, process.file(batches))
    assert proof.made_again
    assert outcomes(proof) == [THERE, FORGOTTEN]
    assert proof.verdicts[0].base_offset == 40


def restored_file_is_recognised(stage: Stage) -> None:
    process = DeadProcess(stage, stage.new_topic())
    batches = [process.numbered(1, 10), process.numbered(2, 15)]
    file = process.file(batches)
    for spooled in (*batches, process.numbered(3, 20)):
        process.append(spooled)
    proof = prove_one(stage.address, file)
    assert "has sequence 24 of this producer" in proof.restored
    assert [verdict.base_offset for verdict in proof.verdicts] == [10, 15]
    process.append(process.numbered(4, 0, epoch=1))
    proof = prove_one(stage.address, file)
    assert "has epoch 1 of this producer" in proof.restored
    assert outcomes(proof) == [THERE, THERE]


def next_epoch_of_an_id_begins_at_0_without_a_word_to_the_coordinator(stage: Stage) -> None:
    """Whoever counts from 0 in the next epoch has the id. Who has the earlier epoch is told so."""
    process = DeadProcess(stage, stage.new_topic())
    assert process.append(process.numbered(1, 0, epoch=1)) == 10
    assert process.append(process.numbered(2, 5, epoch=1)) == 15
    assert process.append(process.numbered(1, 0, epoch=1)) == 10  # another process with the same records
    assert process.offer(process.numbered(3, 20, epoch=1)).error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert process.offer(process.numbered(3, 10)).error_code == INVALID_PRODUCER_EPOCH
    elsewhere = DeadProcess(stage, stage.new_topic())
    elsewhere.producer_id = process.producer_id  # which this leader does not know
    assert elsewhere.append(elsewhere.numbered(1, 0, epoch=1)) == 10
    with process.client() as client:
        numbers = {"producer_id": process.producer_id, "producer_epoch": 1}
        asked = {"transactional_id": None, "transaction_timeout": 0, **numbers}
        answer = client.ask(messages.INIT_PRODUCER_ID, 4, **asked)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id != process.producer_id  # the coordinator raises the epochs of transactional ids alone


def half_of_a_batch_under_its_numbers_is_unproven(stage: Stage) -> None:
    process = DeadProcess(stage, stage.new_topic())
    process.append(process.numbered(1, 10, 3))
    proof = prove_one(stage.address, process.file([process.numbered(1, 10)]))
    assert outcomes(proof) == [UNPROVEN]


def last_of_a_busy_log_is_waited_for(stage: Stage) -> None:
    """Batches of others come all the time, so the log's end runs away from the high watermark."""
    process = DeadProcess(stage, stage.new_topic())
    batches = [process.numbered(1, 10)]
    process.append(batches[0], acks=1)
    process.append_others(50)
    assert outcomes(prove_one(stage.address, process.file(batches))) == [THERE]
