"""Kafka's checkpoints beside the logs of a node. They belong to the cluster's event loop.

They say where each log begins, up to where it is flushed, up to where it was cleaned, and up to where all replicas in
sync have it (the high watermark). They forget deleted logs with the next check, once a second, or before a log of the
same name begins. A check writes in steps: with 10,000 logs it takes a tenth of a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.storage.checkpoint import read_checkpoint, write_lines
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_OFFSETS = "cleaner-offset-checkpoint"
_OFFSETS: dict[str, Callable[[PartitionLog], int]] = {
    LOG_STARTS: lambda opened: opened.log_start_offset,
    RECOVERY_POINTS: lambda opened: opened.segments.recovery_point,
    HIGH_WATERMARKS: lambda opened: opened.high_watermark,
    CLEAN_OFFSETS: lambda opened: opened.clean_offset,
}
# Logs, or lines of a file, in a step of the work.
_AT_ONCE = 100

# A topic and a partition; and the node, too.
Where = tuple[str, int]
Key = tuple[int, str, int]
Offsets = dict[Where, int]


class Checkpoints:
    """`folder` is that of a node. A disk that refuses a checkpoint is reported, and the old one stays."""

    def __init__(self, folder: Callable[[int], Path]) -> None:
        self._folder = folder
        # The content of each file, by its node and name.
        self._files: dict[tuple[int, str], Offsets] = {}
        # The deleted logs that the files may still have, of each node. None of them is open.
        self._gone: dict[int, set[Where]] = {}

    def offset(self, node: int, name: str, where: Where) -> int:
        """0 if the checkpoint does not have the log."""
        return self._read(node, name).get(where, 0)

    def forget(self, node: int, where: Where) -> None:
        """Call this when a log was deleted: the next writing drops its entries."""
        self._gone.setdefault(node, set()).add(where)

    def make_way(self, node: int, where: Where) -> None:
        """Call this before a new log begins in the place of a deleted log."""
        gone = self._gone.setdefault(node, set())
        if any(where in self._read(node, name) for name in _OFFSETS):
            # With all others that are gone: else each of thousands of new logs writes the files.
            gone.add(where)
            for name in _OFFSETS:
                left = self._without_gone(node, name)
                self._write(node, name, left, [_line(*kept) for kept in left.items()])
        gone.discard(where)

    def writing(self, logs: Mapping[Key, PartitionLog]) -> Work[None]:
        """Writes the offsets of every open log, and no entry of a deleted log, in steps. The entries of other logs
        stay. `logs` may change meanwhile."""
        for node in {key[0] for key in logs} | self._gone.keys():
            gone = frozenset(self._gone.get(node, ()))
            for name in _OFFSETS:
                yield from self._writing(node, name, logs)
            # What the disk has refused to drop goes once it is in the way of a new log.
            self._gone.get(node, set()).difference_update(gone)

    def _writing(self, node: int, name: str, logs: Mapping[Key, PartitionLog]) -> Work[None]:
        offset, before = _OFFSETS[name], self._read(node, name)
        changed = not before.keys().isdisjoint(self._gone.get(node, ()))
        opened_logs: list[tuple[Where, PartitionLog, int]] = []
        for number, (key, opened) in enumerate([item for item in logs.items() if item[0][0] == node]):
            if number % _AT_ONCE == 0:
                yield
            where = key[1:]
            opened_logs.append((where, opened, offset(opened)))
            changed = changed or before.get(where) != opened_logs[-1][2]
        if not changed:
            return
        lines = []
        for number, (where, _, offset_now) in enumerate(opened_logs):
            if number % _AT_ONCE == 0:
                yield
            lines.append(_line(where, offset_now))
        # A log may have been deleted meanwhile, and a new log may have its name.
        still = [logs.get((node, *where)) is opened for where, opened, _ in opened_logs]
        offsets = self._without_gone(node, name)
        unopened = {where: known for where, known in offsets.items() if (node, *where) not in logs}
        lines = [*(_line(*other) for other in unopened.items()), *compress(lines, still)]
        self._write(node, name, unopened | {where: known for where, _, known in compress(opened_logs, still)}, lines)

    def _without_gone(self, node: int, name: str) -> Offsets:
        gone = self._gone.get(node, ())
        return {where: offset for where, offset in self._read(node, name).items() if where not in gone}

    def _read(self, node: int, name: str) -> Offsets:
        offsets = self._files.get((node, name))
        if offsets is None:
            offsets = self._files[node, name] = {}
            for topic, partition, offset in read_checkpoint(self._folder(node) / name, 3):
                with suppress(ValueError):
                    offsets[topic, int(partition)] = int(offset)
        return offsets

    def _write(self, node: int, name: str, offsets: Offsets, lines: Sequence[str]) -> None:
        try:
            write_lines(self._folder(node) / name, lines)
        except KafkaStorageError as error:
            log.error("%s", error)
        else:
            self._files[node, name] = offsets


def _line(where: Where, offset: int) -> str:
    return f"{where[0]} {where[1]} {offset}"
