"""The producers of this process: one per configuration, and those with transactions, each for one task.

Spark reuses its Python workers for task after task, one task at a time, and ends them with os._exit or SIGKILL. So a
producer lives as long as its worker, is never shared by two tasks at once, and nothing may be left for an exit handler:
each task flushes what it sent.

Only tasks import this module: it loads the extensions.
"""

from __future__ import annotations

import os
from functools import cache

from kafkabuf.config import ProducerConfig
from kafkabuf.metadata.admin import Admin
from kafkabuf.producer import KafkaProducer
from kafkabuf.spark.options import SinkOptions

Settings = tuple[tuple[str, str], ...]

# A task has its rows at hand, so that batches fill: eight times Kafka's 16 KiB halve the CPU of client and broker.
# With fewer than four slabs for each partition the pool runs dry first, and batches are sent all but empty.
_SMALLEST_BATCH, _LARGEST_BATCH = 1 << 14, 1 << 17
_SLABS_OF_A_PARTITION = 4

# What giving a transaction up may take: its readers wait for its end, the task's retry for us.
_GIVE_UP_SECONDS = 5.0

# Keyed by process as well: a forked child must not use its parent's sockets and threads.
_producers: dict[tuple[int, Settings], KafkaProducer] = {}


@cache
def sized(options: SinkOptions) -> Settings:
    """The producer's settings, with a batch.size for a task of many rows where the user gave none and all go to one
    topic. Asks the cluster once for how many partitions that has; raises what `Admin.partitions_of` does."""
    if options.topic is None or "batch.size" in dict(options.producer):
        return options.producer
    config = ProducerConfig.from_mapping(dict(options.producer))
    with Admin(config) as admin:
        size = batch_size(config.buffer_memory, admin.partitions_of(options.topic))
    return tuple(sorted([*options.producer, ("batch.size", str(size))]))


def batch_size(buffer_memory: int, partitions: int) -> int:
    """Bytes: the largest power of two, from 16 to 128 KiB, of which each partition can have four."""
    fitting = buffer_memory // (_SLABS_OF_A_PARTITION * partitions)
    return max(_SMALLEST_BATCH, min(_LARGEST_BATCH, 1 << max(fitting.bit_length() - 1, 0)))


def producer_for(settings: Settings) -> KafkaProducer:
    """This process's producer with `settings`, opened at the first call."""
    place = (os.getpid(), settings)
    producer = _producers.get(place)
    if producer is None:
        producer = _producers[place] = KafkaProducer(dict(settings))
    return producer


def discard(settings: Settings) -> None:
    """Close the producer at once, giving up what it has not sent; the next task opens a new one."""
    producer = _producers.pop((os.getpid(), settings), None)
    if producer is not None:
        producer.close(timeout=0)


def transactional(settings: Settings, transactional_id: str) -> KafkaProducer:
    """A new producer for transactions; for that of a task `settings` are `sized`."""
    return KafkaProducer({**dict(settings), "transactional.id": transactional_id})


def give_up(producer: KafkaProducer) -> None:
    """Close a producer whose task has failed; its open transaction is aborted if that is quickly done."""
    producer.close(timeout=_GIVE_UP_SECONDS)
