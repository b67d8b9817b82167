"""Every log of the cluster, by node, topic and partition: opened, deleted, closed, and trimmed now and then (Kafka's
LogManager). Belongs to the event loop.

With a `data_dir` the logs of a node lie in its folder node-N, as those of a Kafka broker do in its log.dirs, beside
Kafka's checkpoints of where logs begin and up to where they are known to be on the disk.
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

# Between two looks at what has expired, and two checkpoints (five minutes and one in Kafka).
CHECK_SECONDS = 1.0
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
_LOCK = ".lock"
_STRAY = "-stray"

# By topic and partition.
Offsets = dict[tuple[str, int], int]


class LogManager:
    """Looks at the clock only while there is a log with a retention.ms, or one on disk."""

    def __init__(self, timer: Timer, data_dir: Path | None = None) -> None:
        self.data_dir = data_dir
        self._timer = timer
        self._logs: dict[tuple[int, str, int], PartitionLog] = {}
        self._check: Timeout | None = None
        self._lock: TextIOWrapper | None = None
        # Flushes segments that have come to their end. Its thread starts with the first.
        self._flusher = ThreadPoolExecutor(1, "kafkabuf-flusher")
        # What each checkpoint says.
        self._checkpoints: dict[Path, Offsets] = {}

    def start(self) -> None:
        """KafkaStorageError if the data folder cannot be had, or another cluster has it."""
        if self.data_dir is None:
            return
        with on_disk("open", self.data_dir):
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._lock = (self.data_dir / _LOCK).open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise KafkaStorageError(
                    f"another cluster works in {self.data_dir}; stop it, or take another folder"
                ) from None
            for folder in self.data_dir.glob(f"node-*/*{DELETED}"):
                shutil.rmtree(folder)

    def open(self, node: int, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        """The log of this replica, which is made when it is asked for first. KafkaStorageError if the disk refuses."""
        key = node, topic, partition
        if key not in self._logs:
            self._logs[key] = self._open(node, topic, partition, config)
        self._watch(config)
        return self._logs[key]

    def _open(self, node: int, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        clock = self._timer.clock
        if self.data_dir is None:
            return PartitionLog(config, clock=clock)
        # It becomes part of a path.
        check_name(topic)
        folder, where = self._folder(node), (topic, partition)
        recovery_point = self._read(folder / RECOVERY_POINTS).get(where, 0)
        segments = FileSegments(folder / f"{topic}-{partition}", recovery_point, clock, self._flusher)
        found = PartitionLog(config, segments, clock)
        found.delete_before(min(self._read(folder / LOG_STARTS).get(where, 0), found.end_offset))
        return found

    def put_strays_aside(self) -> None:
        """Once all logs are open. What else lies there, say of a topic that was deleted when the process was killed,
        stays, under a name that no log has."""
        if self.data_dir is None:
            return
        known = {self._folder(node) / f"{topic}-{partition}" for node, topic, partition in self._logs}
        with on_disk("rename", self.data_dir):
            for folder in set(self.data_dir.glob("node-*/*-*/")) - known:
                if folder.is_dir() and not folder.name.endswith(_STRAY):
                    log.warning("%s is of no topic and is put aside", folder)
                    folder.rename(folder.with_name(f"{folder.name[:200]}.{uuid4().hex}{_STRAY}"))

    def configure(self, topic: str, config: LogConfig) -> None:
        """A topic's configs have changed."""
        for (_, name, _), one in self._logs.items():
            if name == topic:
                one.config = config
        self._watch(config)

    def delete(self, topic: str) -> None:
        """The logs of a topic on every node."""
        for key in [key for key in self._logs if key[1] == topic]:
            self._logs.pop(key).delete()
            if self.data_dir is not None:
                for name in (LOG_STARTS, RECOVERY_POINTS):
                    self._write(key[0], name, {}, gone=topic)

    def close(self) -> None:
        """Flushes and closes every log. What the disk refuses is told of, and recovered when it is opened again."""
        self._flusher.shutdown()
        for key, one in self._logs.items():
            try:
                one.close()
            except KafkaStorageError as error:
                log.error("%s-%d of node %d was not closed: %s", key[1], key[2], key[0], error)
        self._write_checkpoints()
        self._logs.clear()
        if self._lock is not None:
            self._lock.close()

    # ---- now and then

    def _watch(self, config: LogConfig) -> None:
        if self._check is None and (self.data_dir is not None or config.retention_ms != UNLIMITED):
            self._check = self._timer.after(CHECK_SECONDS, self._look)

    def _look(self) -> None:
        self._check = None
        for (_, topic, partition), one in self._logs.items():
            self._watch(one.config)
            if one.config.retention_ms != UNLIMITED:
                try:
                    one.retain()
                except KafkaStorageError as error:
                    log.error("%s-%d keeps what has expired: %s", topic, partition, error)
        self._write_checkpoints()

    # ---- checkpoints

    def _folder(self, node: int) -> Path:
        assert self.data_dir is not None
        return self.data_dir / f"node-{node}"

    def _read(self, path: Path) -> Offsets:
        if path not in self._checkpoints:
            found = self._checkpoints[path] = {}
            for topic, partition, offset in read_checkpoint(path, 3):
                with suppress(ValueError):
                    found[topic, int(partition)] = int(offset)
        return self._checkpoints[path]

    def _write_checkpoints(self) -> None:
        """Where logs are not open, what is known of them stays."""
        if self.data_dir is None:
            return
        for node in {key[0] for key in self._logs}:
            logs = {key[1:]: one for key, one in self._logs.items() if key[0] == node}
            self._write(node, LOG_STARTS, {where: one.log_start_offset for where, one in logs.items()})
            self._write(node, RECOVERY_POINTS, {where: one.segments.recovery_point for where, one in logs.items()})

    def _write(self, node: int, name: str, offsets: Offsets, gone: str | None = None) -> None:
        path = self._folder(node) / name
        before = self._read(path)
        after = {where: offset for where, offset in {**before, **offsets}.items() if where[0] != gone}
        if after == before:
            return
        try:
            write_checkpoint(path, [(topic, partition, offset) for (topic, partition), offset in after.items()])
            self._checkpoints[path] = after
        except KafkaStorageError as error:
            log.error("%s", error)
