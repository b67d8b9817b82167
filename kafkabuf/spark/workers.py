"""The producers of this process: one for each configuration, and one for each task that writes a transaction.

Spark uses a Python worker for one task after the other, and ends it with os._exit or SIGKILL. So a producer lives as
long as its worker, two tasks never use a producer at the same time, and no exit handler runs: each task flushes what it
has sent.

Only tasks and the transactional guarantees import this module: it loads the extensions.
"""

from __future__ import annotations

import os
from functools import cache

from kafkabuf.config import ProducerConfig
from kafkabuf.metadata.admin import Admin
from kafkabuf.producer import KafkaProducer
from kafkabuf.spark.options import SinkOptions

Settings = tuple[tuple[str, str], ...]

# A task has many rows at hand, so batches fill: eight times Kafka's 16 KiB halves the CPU of client and broker.
# With fewer than four slabs for each partition the pool runs dry first, and the batches that go out are almost empty.
_SMALLEST_BATCH, _LARGEST_BATCH = 1 << 14, 1 << 17
_SLABS_PER_PARTITION = 4

# How long closing may take after a failure: readers wait for the end of the transaction, the retry waits for the close.
_CLOSE_SECONDS = 5.0

# The key has the process id: a forked child must not use the sockets and threads of its parent.
_producers: dict[tuple[int, Settings], KafkaProducer] = {}


@cache
def task_settings(options: SinkOptions) -> Settings:
    """The settings of a producer that writes the rows of a task: with a batch.size for many rows.

    A batch.size of the user is kept, and Kafka's default where rows name their topics. Asks the cluster once how many
    partitions the topic has; raises what `Admin.partitions_of` raises.
    """
    if options.topic is None or "batch.size" in dict(options.producer):
        return options.producer
    config = ProducerConfig.from_mapping(dict(options.producer))
    with Admin(config) as admin:
        size = batch_size(config.buffer_memory, admin.partitions_of(options.topic))
    return tuple(sorted([*options.producer, ("batch.size", str(size))]))


def batch_size(buffer_memory: int, partitions: int) -> int:
    """Bytes: the largest power of two, from 16 to 128 KiB, of which the buffer holds four for each partition."""
    fitting = buffer_memory // (_SLABS_PER_PARTITION * partitions)
    return max(_SMALLEST_BATCH, min(_LARGEST_BATCH, 1 << max(fitting.bit_length() - 1, 0)))


def producer_for(settings: Settings) -> KafkaProducer:
    """The producer of this process with `settings`. The first call opens it."""
    key = (os.getpid(), settings)
    producer = _producers.get(key)
    if producer is None:
        producer = _producers[key] = KafkaProducer(dict(settings))
    return producer


def discard(settings: Settings) -> None:
    """Close the producer at once and drop its unsent records. The next task opens a new producer."""
    producer = _producers.pop((os.getpid(), settings), None)
    if producer is not None:
        producer.close(timeout=0)


def transactional_producer(settings: Settings, transactional_id: str) -> KafkaProducer:
    """A new producer with transactions. A producer that sends rows takes the settings of `task_settings`."""
    return KafkaProducer({**dict(settings), "transactional.id": transactional_id})


def close_after_failure(producer: KafkaProducer) -> None:
    """Close a producer, and abort its open transaction if that takes a few seconds at most."""
    producer.close(timeout=_CLOSE_SECONDS)
