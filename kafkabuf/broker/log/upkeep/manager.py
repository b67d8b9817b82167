"""Opens, deletes, closes and trims every log of the cluster (Kafka's LogManager). Only the event loop calls it.

With a `data_dir` the logs of node N lie in the folder node-N, as the logs of a Kafka broker lie in its log.dirs. Beside
them lie Kafka's checkpoints (checkpoints.py).
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor  # see embedded.py  # noqa: TID251
from pathlib import Path

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.names import check_name
from kafkabuf.broker.log.upkeep.checkpoints import (
    CLEAN_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    Checkpoints,
    Key,
)
from kafkabuf.broker.log.upkeep.cleaner import LogCleaner
from kafkabuf.broker.records.config import PRODUCER_EXPIRATION_MS, UNLIMITED, LogConfig
from kafkabuf.broker.storage.disk import (
    DELETED,
    STRAY,
    entries,
    is_folder,
    kind,
    on_disk,
    open_file,
    remove_folder,
    set_aside,
)
from kafkabuf.broker.storage.files import FileSegments
from kafkabuf.broker.waiting.slices import Work, at_once, finish
from kafkabuf.broker.waiting.timer import Timeout, Timer
from kafkabuf.errors import KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

# Time between two checks of retention, and between two checkpoints (five minutes and one minute in Kafka; five seconds
# for high watermarks).
CHECK_SECONDS = 1.0
# Kafka's log.cleaner.backoff.ms.
CLEANER_BACKOFF = 15.0
# Kafka's producer.id.expiration.check.interval.ms.
EXPIRY_SECONDS = 600.0
_LOCK = ".lock"
_NODE = re.compile("node-[0-9]+")


class LogManager:
    """Checks retention periodically only while a log has a retention.ms or lies on disk. `run` does long work in
    slices. Every `expiry_seconds` each log forgets its expired producers: `expiration_ms` says at which age, by the id
    of the node that has the log."""

    def __init__(
        self,
        timer: Timer,
        data_dir: Path | None = None,
        cleaner_backoff: float = CLEANER_BACKOFF,
        run: Callable[[Work[None]], object] = finish,
        expiry_seconds: float = EXPIRY_SECONDS,
        expiration_ms: Callable[[int], int] = lambda node_id: PRODUCER_EXPIRATION_MS,
    ) -> None:
        self.data_dir = data_dir
        self._timer = timer
        self._logs: dict[Key, PartitionLog] = {}
        self.cleaner = LogCleaner(timer, cleaner_backoff)
        self._by_topic: dict[str, dict[Key, None]] = {}
        self._check: Timeout | None = None
        self._expiry: Timeout | None = None
        self._expiry_seconds = expiry_seconds
        self._expiration_ms = expiration_ms
        self._lock: int | None = None
        # Flushes full segments. Its thread starts with the first of them.
        self._flusher = ThreadPoolExecutor(1, "kafkabuf-flusher")
        self._run = run
        self._checkpoints = Checkpoints(self._folder)

    def start(self) -> None:
        """Locks the data folder. Raises KafkaStorageError if the disk refuses, or another cluster uses the folder."""
        if self.data_dir is None:
            return
        with on_disk("open", self.data_dir):
            self.data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = open_file(self.data_dir / _LOCK, os.O_RDWR | os.O_CREAT)
        with on_disk("open", self.data_dir):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise KafkaStorageError(
                    f"another cluster uses {self.data_dir}: stop that cluster, or choose another data_dir"
                ) from None
        for folder in self._node_folders():
            for entry in entries(folder):
                if entry.name.endswith(DELETED) and entry.is_dir(follow_symlinks=False):
                    self._remove(Path(entry.path))

    def _node_folders(self) -> list[Path]:
        """The folders of nodes. Raises KafkaStorageError if a folder is a link: it would lead out of the data
        folder."""
        assert self.data_dir is not None
        folders = [Path(entry.path) for entry in entries(self.data_dir) if _NODE.fullmatch(entry.name)]
        for folder in folders:
            if not is_folder(folder):
                raise KafkaStorageError(f"{folder} is {kind(folder)}, a folder is needed: remove it")
        return folders

    def open(self, node: int, topic: str, partition: int, config: LogConfig, *, new: bool = False) -> PartitionLog:
        """The log of this replica; the first call opens it. A `new` log is empty, whatever lies in its place on the
        disk. Raises KafkaStorageError if the disk refuses, and leaves nothing behind."""
        key = node, topic, partition
        if key not in self._logs:
            # The name becomes part of a path.
            check_name(topic)
            if new and self.data_dir is not None:
                self._clear(node, topic, partition)
            self._logs[key] = self._open(node, topic, partition, config, new)
            self._by_topic.setdefault(topic, {})[key] = None
        self._watch(config)
        self._watch_producers()
        self.cleaner.watch(key, self._logs[key])
        return self._logs[key]

    def _clear(self, node: int, topic: str, partition: int) -> None:
        """Sets aside what lies in the place of a new log: the log of a topic whose folder the disk did not delete."""
        folder = self._folder(node) / f"{topic}-{partition}"
        if (file_kind := kind(folder)) is not None:
            log.warning("%s is %s of no topic: it is kept as %s", folder, file_kind, set_aside(folder).name)
        self._checkpoints.make_way(node, (topic, partition))

    def discard(self, node: int, topic: str, partition: int) -> None:
        """Deletes a log. A folder that the disk does not delete stays, if possible under a name that no log has, and
        the next start of the cluster deletes it."""
        key = node, topic, partition
        if key in self._logs:
            self.cleaner.forget(key)
            partition_log = self._logs.pop(key)
            if self.data_dir is not None:
                self._checkpoints.forget(node, (topic, partition))
            self._by_topic[topic].pop(key)
            if not self._by_topic[topic]:
                del self._by_topic[topic]
            try:
                partition_log.delete()
            except KafkaStorageError as error:
                log.error("%s-%d of node %d was not deleted: %s", topic, partition, node, error)

    def _remove(self, folder: Path) -> None:
        try:
            remove_folder(folder)
        except KafkaStorageError as error:
            log.error("%s", error)

    def _open(self, node: int, topic: str, partition: int, config: LogConfig, new: bool) -> PartitionLog:
        clock = self._timer.clock
        if self.data_dir is None:
            return PartitionLog(config, clock=clock)
        folder, where = self._folder(node), (topic, partition)
        path = folder / f"{topic}-{partition}"
        # Nothing lies in the place of a new log.
        if (file_kind := None if new else kind(path)) not in (None, "a folder"):
            log.warning("%s is %s: it is kept as %s, and the log begins anew", path, file_kind, set_aside(path).name)
        elif file_kind is None and not new:
            log.warning("%s is missing: the log begins anew, without the records that were there", path)
        known = file_kind == "a folder"
        recovery_point = self._checkpoints.offset(node, RECOVERY_POINTS, where)
        try:
            segments = FileSegments(path, recovery_point, clock, self._flusher)
            return self._opened(segments, config, node, where)
        except BaseException:
            if not known:
                self._remove(path)
            raise

    def _opened(self, segments: FileSegments, config: LogConfig, node: int, where: tuple[str, int]) -> PartitionLog:
        try:
            start, clean, replicated = (
                self._checkpoints.offset(node, name, where) for name in (LOG_STARTS, CLEAN_OFFSETS, HIGH_WATERMARKS)
            )
            start = min(max(start, 0), segments.end_offset)
            opened = PartitionLog(config, segments, self._timer.clock, start)
            opened.delete_before(start)
            opened.restarted(self._expiration_ms(node))
            opened.clean_offset = min(max(clean, 0), opened.end_offset)
            opened.replicated_offset = min(max(replicated, 0), opened.end_offset)
        except BaseException:
            segments.close_files()
            raise
        return opened

    def put_strays_aside(self) -> None:
        """Renames every folder that belongs to no log, so that no data is lost: for example that of a topic whose
        deletion was interrupted when the process was killed. The caller has opened all logs. Files and links are left
        alone, as in Kafka."""
        if self.data_dir is None:
            return
        known = {self._folder(node) / f"{topic}-{partition}" for node, topic, partition in self._logs}
        for entry in (entry for folder in self._node_folders() for entry in entries(folder)):
            path = Path(entry.path)
            if path in known or entry.name.endswith((STRAY, DELETED)) or "-" not in entry.name:
                continue
            if entry.is_symlink():
                log.warning("%s is a symbolic link: it is left alone", path)
            elif entry.is_dir(follow_symlinks=False):
                self._set_aside(path)

    @staticmethod
    def _set_aside(folder: Path) -> None:
        try:
            log.warning("%s belongs to no topic: it is kept as %s", folder, set_aside(folder).name)
        except KafkaStorageError as error:
            log.error("%s belongs to no topic and stays where it is: %s", folder, error)

    def configure(self, topic: str, config: LogConfig) -> None:
        """Gives a topic's logs its new configs."""
        for key in self._by_topic.get(topic, ()):
            self._logs[key].config = config
            self.cleaner.watch(key, self._logs[key])
        self._watch(config)

    def deleting(self, topic: str) -> Work[None]:
        """Deletes the logs of a topic on every node, in steps. The topic is gone, whatever the disk says: a topic of
        the same name begins empty."""
        keys = list(self._by_topic.get(topic, ()))
        for key in keys:
            self.discard(*key)
            yield

    def close(self) -> None:
        """Flushes and closes every log. A log that the disk refuses to close is reported, and recovered when it is
        opened again."""
        self.cleaner.close()
        self._flusher.shutdown()
        for key, partition_log in self._logs.items():
            try:
                partition_log.close()
            except KafkaStorageError as error:
                log.error("%s-%d of node %d was not closed: %s", key[1], key[2], key[0], error)
        self.write_checkpoints()
        self._logs.clear()
        self._by_topic.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- periodic checks

    def _watch(self, config: LogConfig) -> None:
        if self.data_dir is not None or config.retention_ms != UNLIMITED:
            self._arm()

    def _arm(self) -> None:
        if self._check is None:
            self._check = self._timer.after(CHECK_SECONDS, self._check_logs)

    def _check_logs(self) -> None:
        self._run(self._checking())

    def _checking(self) -> Work[None]:
        """Drops what has expired, and writes the checkpoints. Until that has ended no other check begins."""
        again = False
        try:
            for key, partition_log in tuple(self._logs.items()):
                again = again or self.data_dir is not None or partition_log.config.retention_ms != UNLIMITED
                if not partition_log.closed:
                    yield from self._retaining(key, partition_log)
                yield
            yield from self._writing_checkpoints()
        finally:
            self._check = None
        if again:
            self._arm()

    def retain(self) -> None:
        """Drops what has expired."""
        for key, partition_log in self._logs.items():
            finish(self._retaining(key, partition_log))

    @staticmethod
    def _retaining(key: Key, partition_log: PartitionLog) -> Work[None]:
        while partition_log.drop_deleted():
            yield
        if partition_log.config.retention_ms != UNLIMITED:
            try:
                while not partition_log.closed and partition_log.retain():
                    yield
            except KafkaStorageError as error:
                log.error("%s-%d keeps expired records: %s", key[1], key[2], error)

    def _watch_producers(self) -> None:
        if self._expiry is None:
            self._expiry = self._timer.after(self._expiry_seconds, lambda: self._run(self._expiring()))

    def _expiring(self) -> Work[None]:
        """Forgets the producers that have expired. Until that has ended no other check begins."""
        try:
            for (node_id, _, _), partition_log in tuple(self._logs.items()):
                partition_log.expire_producers(self._expiration_ms(node_id))
                yield
        finally:
            self._expiry = None
        self._watch_producers()

    # ---- checkpoints

    def _folder(self, node: int) -> Path:
        assert self.data_dir is not None
        return self.data_dir / f"node-{node}"

    def _writing_checkpoints(self) -> Work[None]:
        if self.data_dir is not None:
            yield from self._checkpoints.writing(self._logs)

    write_checkpoints = at_once(_writing_checkpoints)
