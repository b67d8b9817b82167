"""send() into a RecordAccumulator, for a program that runs the Sender's turns itself."""

from __future__ import annotations

from typing import NoReturn

from kafkabuf.append._producer import ProducerCore, TopicPolicy
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import UnknownTopicOrPartitionError


class MadeTopics(TopicPolicy):
    """A topic that the caller has not made stays unknown: nothing fetches metadata here."""

    def await_topic(self, name: str, timeout: float) -> NoReturn:
        raise UnknownTopicOrPartitionError(
            f"the accumulator has no topic {name!r}: call its made_topic() with the leaders of the partitions first"
        )


class RecordAppender(ProducerCore):
    """Encodes records into the batches of a RecordAccumulator: KafkaProducer without a thread and a network.

    `send()` is KafkaProducer's, with the serializers, partitioner and interceptors of `config`. It fetches no metadata:
    `RecordAccumulator.made_topic(name, leaders)` makes the topics first. The caller runs the turns of a Sender, or
    drains the batches. Where memory is short, `send()` waits for another thread to give memory back, for up to
    `max.block.ms`.

    Source: KafkaProducer.doSend and RecordAccumulator.append.
    """

    def __init__(self, config: ProducerConfig, accumulator: RecordAccumulator, clock: Clock) -> None:
        self._open(accumulator, MadeTopics(), config, clock)

    def close(self) -> None:
        """Take no further record: `send()` raises ClosedError. The records that were taken keep their batches."""
        self._begin_close()
