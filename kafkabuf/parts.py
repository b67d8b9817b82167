"""The parts of the producer and of the embedded broker, for use on their own. docs/parts.md has an example of each.

The producer's memory and records:

- `BufferPool` hands out memory of a fixed size in slabs; `Slab` is a piece of it.
- `MemoryRecordsBuilder` encodes a batch of records, in either of Kafka's formats.
- `murmur2_hash`, `crc32c` and `crc32` are the hash of keys and the checksums of batches.

The producer without its thread:

- `RecordAccumulator` holds the batches of each partition. `RecordAppender` encodes records into them.
- `Sender` moves batches to the brokers, a turn at a time. `Metadata` and `NetworkClient` are what it needs for that.
- `producer_state` makes the numbers of an idempotent producer; `ProducerConfig` has the settings of all parts.

The broker's waiting requests:

- `TimingWheel` runs a `Timeout` when it is due. `ExpirationReaper` is a thread that drives a wheel.
- `RequestPurgatory` parks a `DelayedOperation` until one of its keys changes or its time is over.

All of them take their time from a `Clock`: `SystemClock`, or in a test `ManualClock`. Importing this module loads none
of the parts: the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkabuf.lazy_names import lazy_names

if TYPE_CHECKING:
    from kafkabuf._pool import BufferPool as BufferPool
    from kafkabuf._pool import Slab as Slab
    from kafkabuf._records import MemoryRecordsBuilder as MemoryRecordsBuilder
    from kafkabuf._records import crc32 as crc32
    from kafkabuf._records import crc32c as crc32c
    from kafkabuf._records import murmur2_hash as murmur2_hash
    from kafkabuf.append.appender import RecordAppender as RecordAppender
    from kafkabuf.batches.accumulator import RecordAccumulator as RecordAccumulator
    from kafkabuf.broker.waiting._purgatory import DelayedOperation as DelayedOperation
    from kafkabuf.broker.waiting._purgatory import RequestPurgatory as RequestPurgatory
    from kafkabuf.broker.waiting._timing_wheel import Timeout as Timeout
    from kafkabuf.broker.waiting._timing_wheel import TimingWheel as TimingWheel
    from kafkabuf.broker.waiting.reaper import ExpirationReaper as ExpirationReaper
    from kafkabuf.clock import Clock as Clock
    from kafkabuf.clock import ManualClock as ManualClock
    from kafkabuf.clock import SystemClock as SystemClock
    from kafkabuf.config import ProducerConfig as ProducerConfig
    from kafkabuf.metadata.metadata import Metadata as Metadata
    from kafkabuf.network.client import NetworkClient as NetworkClient
    from kafkabuf.sending.sender import Sender as Sender
    from kafkabuf.transactions.idempotence import producer_state as producer_state

_HOMES = {
    "BufferPool": "kafkabuf._pool",
    "Clock": "kafkabuf.clock",
    "DelayedOperation": "kafkabuf.broker.waiting._purgatory",
    "ExpirationReaper": "kafkabuf.broker.waiting.reaper",
    "ManualClock": "kafkabuf.clock",
    "MemoryRecordsBuilder": "kafkabuf._records",
    "Metadata": "kafkabuf.metadata.metadata",
    "NetworkClient": "kafkabuf.network.client",
    "ProducerConfig": "kafkabuf.config",
    "RecordAccumulator": "kafkabuf.batches.accumulator",
    "RecordAppender": "kafkabuf.append.appender",
    "RequestPurgatory": "kafkabuf.broker.waiting._purgatory",
    "Sender": "kafkabuf.sending.sender",
    "Slab": "kafkabuf._pool",
    "SystemClock": "kafkabuf.clock",
    "Timeout": "kafkabuf.broker.waiting._timing_wheel",
    "TimingWheel": "kafkabuf.broker.waiting._timing_wheel",
    "crc32": "kafkabuf._records",
    "crc32c": "kafkabuf._records",
    "murmur2_hash": "kafkabuf._records",
    "producer_state": "kafkabuf.transactions.idempotence",
}
__all__ = [*_HOMES]  # noqa: PLE0604

__getattr__ = lazy_names(globals(), _HOMES)
