"""Logs without a cluster: appends as a leader's, with the checks of Produce; logs on the disk, and their sudden end."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records._batch import check_batch, stamp
from kafkabuf.broker.records.config import Limits, LogConfig
from kafkabuf.broker.records.control import Marker
from kafkabuf.broker.storage.batches import heads
from kafkabuf.broker.storage.files import FileSegments
from kafkabuf.clock import ManualClock
from tests.broker.raw_client import NOW, batch

Producer = tuple[int, int, int]
# The log that was opened last in each folder.
_OPENED: dict[Path, PartitionLog] = {}


def on_disk(
    folder: Path,
    config: LogConfig | None = None,
    recovery_point: int = 0,
    clock: ManualClock | None = None,
    flusher: Executor | None = None,
) -> PartitionLog:
    """The log that a new process opens. The process that had the folder before was killed, if it had not closed the
    log: the caller must not use that log any more."""
    if (before := _OPENED.pop(folder, None)) is not None:
        kill(before)
    clock = clock or ManualClock(wall_ms=NOW)
    log = PartitionLog(config or LogConfig(), FileSegments(folder, recovery_point, clock, flusher), clock)
    _OPENED[folder] = log
    return log


def kill(log: PartitionLog) -> None:
    """Closes the log's files and writes nothing, as the end of its process does."""
    if not log.closed:
        log.closed = True
        assert isinstance(log.segments, FileSegments)
        log.segments.close_files()


def kill_all() -> None:
    """Kills every log of `on_disk`."""
    while _OPENED:
        kill(_OPENED.popitem()[1])


def append(log: PartitionLog, data: bytes, epoch: int = 0) -> int:
    """Appends one batch of magic 2. Raises the errors that Produce answers with."""
    info = check_batch(memoryview(data), 9, Limits())
    if info.producer_id >= 0:
        log.producers.check(info)
    stored = bytearray(data)
    stamp(stored, log.end_offset, epoch)
    return log.append(stored, info, epoch)


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
    """Everything in which two equal logs agree, also a log that was opened again: of each producer's batches it knows
    the last."""
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
            producer_id: (
                entry.epoch,
                entry.last_timestamp,
                [batch[:3] for batch in entry.batches[-1:]],
                entry.transaction_start,
            )
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
