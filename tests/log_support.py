"""Logs alone, without a cluster around them: appends as a leader, with the checks that Produce makes."""

from __future__ import annotations

from kafkabuf.broker.batch import Limits, check_batch, stamp
from kafkabuf.broker.control import Marker
from kafkabuf.broker.log import PartitionLog
from tests.raw_client import NOW, batch

Producer = tuple[int, int, int]


def append(log: PartitionLog, data: bytes, epoch: int = 0) -> int:
    """One batch of magic 2. Errors as Produce answers them."""
    info = check_batch(memoryview(data), 9, Limits(), NOW)
    if info.producer_id >= 0:
        log.producers.check(info, NOW)
    stored = bytearray(data)
    stamp(stored, log.end_offset, epoch)
    return log.append(stored, info, epoch, NOW)


def put(log: PartitionLog, *values: bytes, producer: Producer = (-1, -1, -1), epoch: int = 0, time: int = NOW) -> int:
    return append(log, batch(list(values), producer=producer, timestamps=[time] * len(values)), epoch)


def put_in_transaction(log: PartitionLog, producer: Producer, *values: bytes) -> int:
    return append(log, batch(list(values), producer=producer, attributes=0x10))


def end(log: PartitionLog, producer: Producer, committed: bool) -> None:
    log.append_marker(Marker(producer[0], producer[1], 0, committed), NOW, 0)


def stored(log: PartitionLog) -> bytes:
    """Everything that could be read, as one."""
    return b"".join(bytes(one.data) for one in log.batches())
