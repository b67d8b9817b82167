"""Logs without a cluster: appends as a leader's, with the checks of Produce."""

from __future__ import annotations

from kafkabuf.broker.log.batch import check_batch, stamp
from kafkabuf.broker.log.config import Limits
from kafkabuf.broker.log.control import Marker
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.storage.batches import heads
from tests.broker.raw_client import NOW, batch

Producer = tuple[int, int, int]


def append(log: PartitionLog, data: bytes, epoch: int = 0) -> int:
    """Appends one batch of magic 2. Raises the errors that Produce answers with."""
    info = check_batch(memoryview(data), 9, Limits())
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
    """The bytes of all batches."""
    return b"".join(bytes(kept.data) for kept in log.batches())


def contents(log: PartitionLog) -> dict[str, object]:
    """Everything in which two equal logs agree."""
    start, end = log.log_start_offset, log.end_offset
    return {
        "offsets": (start, end, log.last_stable_offset),
        "stored": stored(log),
        "reads": read_all(log, start),
        "firsts": [b"".join(map(bytes, log.read(offset, 1, True))) for offset in range(start, end + 1)],
        "available": [log.available(offset) for offset in range(start, end + 1)],
        "epochs": log.leader_epochs.entries,
        "aborted": log.aborted(start, end),
        "producers": {
            producer_id: (entry.epoch, list(entry.batches), entry.transaction_start)
            for producer_id, entry in log.producers
        },
        "newest": log.newest(),
    }


def read_all(log: PartitionLog, offset: int, limit: int = 2**63 - 1) -> list[bytes]:
    """The batches that a consumer gets by repeated fetches, one by one."""
    batches: list[bytes] = []
    while buffers := log.read(offset, 10_000, True, limit):
        for data in buffers:
            for at, head in heads(data, offset):
                batches.append(bytes(data[at : at + head.size]))
                offset = head.last_offset + 1
    return batches
