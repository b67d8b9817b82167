"""The producers and admins that live in this process from task to task, and from micro-batch to micro-batch.

Spark uses a Python worker for one task after the other, and ends it with os._exit or SIGKILL. So a producer keeps its
connections, metadata and memory for the next task with the same settings. A producer with transactions serves the
transactional id of one task after the other (sharing.py). No exit handler runs: each task flushes the rows that it has
sent.

A task has a producer for itself: `lent` takes it out of the store, and puts it back if the task succeeded. A producer
that no task has used for a minute is closed.

What a kept client knows of topics may be wrong: a topic may have been deleted and made again, with fewer partitions. So
it asks for metadata before the first row of a write that it has not served yet.
In the user's process several threads may write at the same time (map_in_arrow.py).

Only tasks and the transactional guarantees import this module: it loads the extensions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple, TypeVar, cast

from kafkabuf.admin.transactions import TransactionAdmin
from kafkabuf.config.model import ProducerConfig
from kafkabuf.process._time import monotonic
from kafkabuf.process.threads import Lock
from kafkabuf.producer import KafkaProducer
from kafkabuf.sharing import refresh
from kafkabuf.spark.options.option_names import Settings
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.worker import heap
from kafkabuf.spark.worker.limits import TopicLimits
from kafkabuf.spark.worker.place import TaskAttempt

Kept = TypeVar("Kept", KafkaProducer, TransactionAdmin)

# A task has many rows at hand, so batches fill: 128 KiB instead of Kafka's 16 halve the CPU of client and broker, and
# 512 KiB take a quarter off the broker's CPU again. With fewer than four slabs for each partition the pool runs dry
# first, and the batches that go out are almost empty. A task of aligned rows writes one partition, however many the
# topic has.
_SMALLEST_BATCH, _LARGEST_BATCH = 1 << 14, 1 << 19
_SLABS_PER_PARTITION = 4

_IDLE_SECONDS = 60.0
# The transactional id of a producer that serves none yet.
_UNASSIGNED = "kafkabuf-sink"
# How long closing may take after a failure: readers wait for the end of the transaction, the retry waits for the close.
ABORT_SECONDS = 5.0


class _Idle(NamedTuple):
    client: KafkaProducer | TransactionAdmin
    since: float
    write: str
    """The write that it has served last."""


_lock = Lock()
# The lock is held. The key has the process id: a forked child must not use the sockets and threads of its parent.
_idle: dict[tuple[int, str, Settings], list[_Idle]] = {}


# ---- settings --------------------------------------------------------------------------------------------------------


@cache
def task_settings(options: SinkOptions, limits: TopicLimits | None = None) -> Settings:
    """The settings of a producer that writes the rows of a task: with a batch.size for many rows.

    A batch.size of the user is kept, and Kafka's default where rows name their topics. A batch fits the topic's
    max.message.bytes, if `limits` know it. Asks the cluster once how many partitions the topic has, unless the rows are
    aligned: then a task writes one of them. Raises what `Admin.partitions_of` raises.
    """
    if options.topic is None or "batch.size" in dict(options.producer):
        return options.producer
    config, partitions = _config(options.producer), 1
    if options.aligned is None:
        with lent_admin(options.producer) as admin:
            partitions = admin.partitions_of(options.topic)
    largest = config.max_request_size if limits is None or limits.max_bytes is None else limits.max_bytes
    size = batch_size(config.buffer_memory, partitions, largest)
    return tuple(sorted([*options.producer, ("batch.size", str(size))]))


def batch_size(buffer_memory: int, partitions: int, largest: int) -> int:
    """The largest power of two from 16 to 512 KiB, at most `largest`, that fits into the buffer four times a partition.

    All sizes are bytes.
    """
    fitting = min(buffer_memory // (_SLABS_PER_PARTITION * partitions), largest)
    return max(_SMALLEST_BATCH, min(_LARGEST_BATCH, 1 << max(fitting.bit_length() - 1, 0)))


# ---- clients ---------------------------------------------------------------------------------------------------------


def _config(settings: Settings) -> ProducerConfig:
    return ProducerConfig.from_mapping(dict(settings))


@contextmanager
def lent(settings: Settings) -> Iterator[KafkaProducer]:
    """A producer without transactions. An error drops its unsent records: the retry must not find them."""
    with _lent("producer", settings, lambda: KafkaProducer(_config(settings)), 0.0) as producer:
        yield producer


@contextmanager
def lent_transactional(settings: Settings, *, close_seconds: float = ABORT_SECONDS) -> Iterator[KafkaProducer]:
    """A producer with transactions: the caller assigns it a transactional id (sharing.py).

    An error closes it. Then it aborts its open transaction, if that takes `close_seconds` at most. With 0 it leaves the
    transaction to others.
    """
    with_id = tuple(sorted([*settings, ("transactional.id", _UNASSIGNED)]))
    with _lent("producer", with_id, lambda: KafkaProducer(_config(with_id)), close_seconds) as producer:
        yield producer


@contextmanager
def lent_admin(settings: Settings) -> Iterator[TransactionAdmin]:
    """An admin. On the driver it may know topics and leaders of some minutes ago."""

    def make() -> TransactionAdmin:
        return TransactionAdmin(_config(settings))

    with _lent("admin", settings, make, 0.0) as admin:
        yield admin


@contextmanager
def _lent(kind: str, settings: Settings, make: Callable[[], Kept], close_seconds: float) -> Iterator[Kept]:
    key = (os.getpid(), kind, settings)
    write = TaskAttempt.current().write
    _close_idle()
    with _lock:
        kept = _idle.get(key)
        idle = kept.pop() if kept else None
    client = make() if idle is None else cast(Kept, idle.client)
    try:
        if idle is not None and idle.write != write:
            _refresh(client)
        yield client
    except BaseException:
        close_after_failure(client, close_seconds)
        raise
    with _lock:
        _idle.setdefault(key, []).append(_Idle(client, monotonic(), write))


def _refresh(client: KafkaProducer | TransactionAdmin) -> None:
    if isinstance(client, TransactionAdmin):
        client.refresh()
    else:
        refresh(client)


def close_after_failure(client: KafkaProducer | TransactionAdmin, seconds: float) -> None:
    """Close a client that may be in any state."""
    if isinstance(client, TransactionAdmin):
        client.close()
    else:
        client.close(timeout=seconds)
    heap.thaw()


def _close_idle() -> None:
    """Close what no task has used for a minute: a query that has ended leaves its producers behind."""
    for idle in _taken(before=monotonic() - _IDLE_SECONDS):
        idle.client.close()
        heap.thaw()


def close_all() -> None:
    """Close every producer and admin that no thread uses now. Spark ends its own workers without a call."""
    for idle in _taken(before=math.inf):
        idle.client.close()


def _taken(before: float) -> list[_Idle]:
    """What this process has kept since before a time. The store has it no longer."""
    taken: list[_Idle] = []
    with _lock:
        for key in [key for key in _idle if key[0] == os.getpid()]:
            kept = _idle.pop(key)
            taken += [idle for idle in kept if idle.since < before]
            if newer := [idle for idle in kept if idle.since >= before]:
                _idle[key] = newer
    return taken
