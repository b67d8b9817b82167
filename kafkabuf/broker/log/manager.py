"""Opens, deletes, closes and trims every log of the cluster (Kafka's LogManager). Only the event loop calls it.

With a `data_dir` the logs of node N lie in the folder node-N, as the logs of a Kafka broker lie in its log.dirs. Beside
them lie Kafka's two checkpoints: where each log begins, and up to where each log is on the disk.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from uuid import uuid4

from kafkabuf.broker.log.config import UNLIMITED, LogConfig
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.names import check_name
from kafkabuf.broker.log.storage.checkpoint import read_checkpoint, write_checkpoint
from kafkabuf.broker.log.storage.disk import on_disk
from kafkabuf.broker.log.storage.files import DELETED, FileSegments
from kafkabuf.broker.waiting.timer import Timeout, Timer
from kafkabuf.errors import KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

# Time between two checks of retention, and between two checkpoints (five minutes and one minute in Kafka).
CHECK_SECONDS = 1.0
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
_LOCK = ".lock"
_STRAY = "-stray"

# By topic and partition.
Offsets = dict[tuple[str, int], int]


class LogManager:
    """Checks retention periodically only while a log has a retention.ms or lies on disk."""

    def __init__(self, timer: Timer, data_dir: Path | None = None) -> None:
        self.data_dir = data_dir
        self._timer = timer
        self._logs: dict[tuple[int, str, int], PartitionLog] = {}
        self._check: Timeout | None = None
        self._lock: TextIOWrapper | None = None
        # Flushes full segments. Its thread starts with the first of them.
        self._flusher = ThreadPoolExecutor(1, "kafkabuf-flusher")
        # The content of each checkpoint file.
        self._checkpoints: dict[Path, Offsets] = {}

    def start(self) -> None:
        """Locks the data folder. Raises KafkaStorageError if the disk refuses, or another cluster uses the folder."""
        if self.data_dir is None:
            return
        with on_disk("open", self.data_dir):
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._lock = (self.data_dir / _LOCK).open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise KafkaStorageError(
                    f"another cluster uses {self.data_dir}: stop that cluster, or choose another data_dir"
                ) from None
            for folder in self.data_dir.glob(f"node-*/*{DELETED}"):
                shutil.rmtree(folder)

    def open(self, node: int, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        """The log of this copy; the first call opens it. Raises KafkaStorageError if the disk refuses."""
        key = node, topic, partition
        if key not in self._logs:
            self._logs[key] = self._open(node, topic, partition, config)
        self._watch(config)
        return self._logs[key]

    def _open(self, node: int, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        clock = self._timer.clock
        if self.data_dir is None:
            return PartitionLog(config, clock=clock)
        # The name becomes part of a path.
        check_name(topic)
        folder, where = self._folder(node), (topic, partition)
        recovery_point = self._read(folder / RECOVERY_POINTS).get(where, 0)
        segments = FileSegments(folder / f"{topic}-{partition}", recovery_point, clock, self._flusher)
        opened = PartitionLog(config, segments, clock)
        opened.delete_before(min(self._read(folder / LOG_STARTS).get(where, 0), opened.end_offset))
        return opened

    def put_strays_aside(self) -> None:
        """Renames every folder that belongs to no log, so that no data is lost: for example that of a topic whose
        deletion was interrupted when the process was killed. The caller has opened all logs."""
        if self.data_dir is None:
            return
        known = {self._folder(node) / f"{topic}-{partition}" for node, topic, partition in self._logs}
        with on_disk("rename", self.data_dir):
            for folder in set(self.data_dir.glob("node-*/*-*/")) - known:
                if folder.is_dir() and not folder.name.endswith(_STRAY):
                    log.warning("%s belongs to no topic: the folder is renamed and kept", folder)
                    folder.rename(folder.with_name(f"{folder.name[:200]}.{uuid4().hex}{_STRAY}"))

    def configure(self, topic: str, config: LogConfig) -> None:
        """Gives a topic's logs its new configs."""
        for (_, name, _), partition_log in self._logs.items():
            if name == topic:
                partition_log.config = config
        self._watch(config)

    def delete(self, topic: str) -> None:
        """Deletes the logs of a topic on every node."""
        for key in [key for key in self._logs if key[1] == topic]:
            self._logs.pop(key).delete()
            if self.data_dir is not None:
                for name in (LOG_STARTS, RECOVERY_POINTS):
                    self._write(key[0], name, {}, deleted=topic)

    def close(self) -> None:
        """Flushes and closes every log. A log that the disk refuses to close is reported, and recovered when it is
        opened again."""
        self._flusher.shutdown()
        for key, partition_log in self._logs.items():
            try:
                partition_log.close()
            except KafkaStorageError as error:
                log.error("%s-%d of node %d was not closed: %s", key[1], key[2], key[0], error)
        self._write_checkpoints()
        self._logs.clear()
        if self._lock is not None:
            self._lock.close()

    # ---- periodic checks

    def _watch(self, config: LogConfig) -> None:
        if self._check is None and (self.data_dir is not None or config.retention_ms != UNLIMITED):
            self._check = self._timer.after(CHECK_SECONDS, self._check_logs)

    def _check_logs(self) -> None:
        self._check = None
        for (_, topic, partition), partition_log in self._logs.items():
            self._watch(partition_log.config)
            if partition_log.config.retention_ms != UNLIMITED:
                try:
                    partition_log.retain()
                except KafkaStorageError as error:
                    log.error("%s-%d keeps expired records: %s", topic, partition, error)
        self._write_checkpoints()

    # ---- checkpoints

    def _folder(self, node: int) -> Path:
        assert self.data_dir is not None
        return self.data_dir / f"node-{node}"

    def _read(self, path: Path) -> Offsets:
        if path not in self._checkpoints:
            offsets = self._checkpoints[path] = {}
            for topic, partition, offset in read_checkpoint(path, 3):
                with suppress(ValueError):
                    offsets[topic, int(partition)] = int(offset)
        return self._checkpoints[path]

    def _write_checkpoints(self) -> None:
        """Writes the offsets of every open log. The entries of other logs stay."""
        if self.data_dir is None:
            return
        for node in {key[0] for key in self._logs}:
            logs = {key[1:]: partition_log for key, partition_log in self._logs.items() if key[0] == node}
            self._write(node, LOG_STARTS, {where: kept.log_start_offset for where, kept in logs.items()})
            self._write(node, RECOVERY_POINTS, {where: kept.segments.recovery_point for where, kept in logs.items()})

    def _write(self, node: int, name: str, offsets: Offsets, deleted: str | None = None) -> None:
        path = self._folder(node) / name
        before = self._read(path)
        after = {where: offset for where, offset in {**before, **offsets}.items() if where[0] != deleted}
        if after == before:
            return
        try:
            write_checkpoint(path, [(topic, partition, offset) for (topic, partition), offset in after.items()])
            self._checkpoints[path] = after
        except KafkaStorageError as error:
            log.error("%s", error)
