"""The clusters that the fuzzer of requests sends to, and what must hold for their folders.

memory   a node that verifies records
three    three nodes, with three replicas of each partition, and ACLs: every client is a super user
folder   a node with a data_dir. Each topic has its folders, nothing else has, and the next cluster goes on with the
         same topics and records, also after links were planted in the folder
sasl     a node whose clients authenticate

No node listens: the fuzzer connects socket pairs. The clusters' clock is manual. Only a slice of long work ends by the
machine's clock: its length is what the fuzzer measures.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.internal.topics import INTERNAL_TOPICS
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Slices
from kafkabuf.clock import ManualClock, SystemClock
from kafkabuf.errors import KafkaError, KafkaStorageError

KINDS = ("memory", "folder", "three", "sasl")
# The topic of the corpus, with three partitions.
TOPIC = "f-t"
# No request but those that must be accepted names this topic. It has one partition, on node 1.
SOUND = "sound"
# Its own settings, which must not follow the defaults that requests change: else the topic may refuse a valid batch.
_CONFIGS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "min.insync.replicas": "1",
}
USER, PASSWORD = "fuzz", "secret"
# What the cluster may leave behind when it renames a folder.
_ASIDE = ("-delete", "-stray")
_VICTIM = b"the file of somebody else"
# A request makes no more partitions, and in a folder each has an open file. The process opens a few other files.
_MOST_MADE = 10_000
_OTHER_FILES = 1_000
# A folder is compared with the catalogue after each request only while there are few topics.
_FEW = 200
# A cluster with more partitions restarts once only, and no link is planted in its folder.
_MANY = 1_000

Contents = dict[tuple[str, int], tuple[int, int, str]]


class FuzzError(AssertionError):
    """A promise that a request has broken. `kind` is one of KINDS_OF_FAULT (target.py)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Deaf:
    """In place of a listening socket."""

    port = 9

    def __init__(self, node: Node) -> None:
        pass

    async def close(self) -> None:
        pass


class World:
    """One cluster with the topics TOPIC and SOUND, without records. Only a world of the kind "folder" has files."""

    def __init__(self, kind: str, loop: asyncio.AbstractEventLoop) -> None:
        self.kind = kind
        self.clock = ManualClock()
        self._loop = loop
        self.root = Path(tempfile.mkdtemp(prefix="kafkabuf-fuzz-")) if kind == "folder" else None
        self.cluster = self._start()
        self.cluster.catalogue.create_topic(TOPIC, 3)
        self.cluster.catalogue.create_topic(SOUND, configs=_CONFIGS, assignment={0: (1,)})

    def close(self) -> None:
        """Stop the cluster and remove its folder. The clients have closed their connections."""
        self._loop.run_until_complete(self.cluster.stop())
        self._remove()

    def _remove(self) -> None:
        if self.root is not None:
            shutil.rmtree(self.root)

    def topic_ids(self) -> list[bytes]:
        """Of the first topics, but SOUND."""
        topics = list(self.cluster.catalogue.topics.values())[:10]
        return [topic.topic_id.bytes for topic in topics if topic.name != SOUND]

    def partitions(self) -> int:
        return sum(len(topic.partitions) for topic in self.cluster.catalogue.topics.values())

    def things(self) -> int:
        """How many things the present cluster has made, changed and deleted so far. The folders of a topic come one by
        one, and the topic when all are there."""
        return self.cluster.memory.changes + len(self.cluster.logs._logs)

    def crowded(self) -> bool:
        """Whether the next request may need more open files than the process can have."""
        room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES
        return self.root is not None and self.partitions() > room - _MOST_MADE

    def producer(self, transactional_id: str) -> tuple[int, int]:
        """The present producer id and epoch; (-1, -1) if there are none."""
        found = self.cluster.transactions.get(transactional_id)
        return (-1, -1) if found is None else (found.producer_id, found.epoch)

    def _start(self, folder: str = "data") -> Cluster:
        options: dict[str, Any] = {"verify_records": self.kind != "three", "brokers": 3 if self.kind == "three" else 1}
        if self.kind == "sasl":
            options["security"] = Security(users={USER: PASSWORD}, oauth_validator="unsecured")
        if self.kind == "three":
            options["security"] = Security(authorizer=True, super_users=["User:ANONYMOUS"])
        if self.root is not None:
            options["data_dir"] = self.root / folder
        cluster = Cluster(EmbeddedCluster(**options)._config, self.clock, self._loop, listen=_Deaf)
        cluster.slices = Slices(self._loop, SystemClock())
        self._loop.run_until_complete(cluster.start())
        return cluster

    # ---- what must hold

    def check(self) -> None:
        """Call this after a request that may have changed topics."""
        catalogue = self.cluster.catalogue
        if len(catalogue.topics) > _FEW:
            return
        for topic in catalogue.topics.values():
            for partition in topic.partitions:
                if set(partition.replicas) != set(partition.replica_nodes) or partition.state.leader < 0:
                    raise FuzzError("half made", f"topic {topic.name} lacks replicas or the leader of a partition")
        if self.root is not None:
            self._check_folders()

    def _check_folders(self) -> None:
        assert self.root is not None
        copies = {
            f"{topic.name}-{partition.index}"
            for topic in self.cluster.catalogue.topics.values()
            if topic.name not in INTERNAL_TOPICS  # these lie in memory
            for partition in topic.partitions
        }
        present = {entry.name for entry in os.scandir(self.root / "data" / "node-1") if entry.is_dir()}
        if strays := [name for name in present - copies if not name.endswith(_ASIDE)]:
            raise FuzzError("stray folder", f"{strays[0]} belongs to no topic")
        if missing := copies - present:
            raise FuzzError("no folder", f"{min(missing)} has no folder")

    def finish(self, generator: random.Random) -> None:
        """Restart the cluster from its folder, and then again with a link planted in it. The clients have closed their
        connections. `close` closes what this leaves behind."""
        if self.root is None:
            return
        before = self._contents(self.cluster)
        many = len(before) > _MANY
        if not many and generator.random() < 0.5:
            self._restart_as_if_killed(before)
        plants = [None, *generator.sample(_PLANTS, not many)]
        for plant in plants:
            self._loop.run_until_complete(self.cluster.stop())
            if plant is not None:
                plant(self.root)
            if plant is _link_lock:
                self._check_lock()
            if (self.root / "moved").exists():
                before[TOPIC, 0] = 0, 0, hashlib.sha256().hexdigest()  # the cluster follows no link
            self.cluster = self._restarted("data")
            self._compare(before, self.cluster)
            if plant is _link_partition and TOPIC in self.cluster.catalogue.topics:
                with _as_fault("restart", "a topic whose partition was a link cannot be deleted"):
                    self.cluster.catalogue.delete_topic(TOPIC)
        if many:
            return
        self._loop.run_until_complete(self.cluster.stop())
        self.cluster = self._restarted("data")
        self._check_outside()

    def _check_lock(self) -> None:
        """No cluster starts with a link in the place of its lock file, and what the link names stays as it is."""
        assert self.root is not None
        with suppress(KafkaStorageError):
            self._loop.run_until_complete(self._start("data").stop())
            raise FuzzError("restart", "the cluster starts with a link in the place of its lock file")
        self._check_outside()
        (self.root / "data" / ".lock").unlink()

    def _restart_as_if_killed(self, before: Contents) -> None:
        """Start another cluster from a copy of the files as they are."""
        assert self.root is not None
        shutil.copytree(self.root / "data", self.root / "copy", symlinks=True)
        copy = self._restarted("copy")
        self._compare(before, copy)
        self._loop.run_until_complete(copy.stop())
        shutil.rmtree(self.root / "copy")

    def _restarted(self, folder: str) -> Cluster:
        with _as_fault("restart", "the cluster does not start from its folder"):
            return self._start(folder)

    def _contents(self, cluster: Cluster) -> Contents:
        """The offsets and the bytes of every partition."""
        found = {}
        for topic in cluster.catalogue.topics.values():
            if topic.name in INTERNAL_TOPICS:
                continue  # a restart writes them anew
            for partition in topic.partitions:
                for replica in partition.replicas.values():
                    log, digest = replica.log, hashlib.sha256()
                    for batch in log.batches():
                        digest.update(batch.data)
                    found[topic.name, partition.index] = log.log_start_offset, log.end_offset, digest.hexdigest()
        return found

    def _compare(self, before: Contents, cluster: Cluster) -> None:
        after = self._contents(cluster)
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                text = f"{key[0]}-{key[1]} had {before.get(key)}, and after the restart {after.get(key)}"
                raise FuzzError("restart", text)

    def _check_outside(self) -> None:
        """Nothing lies beside the folder, and nothing that a link names has changed."""
        assert self.root is not None
        for entry in os.scandir(self.root):
            if entry.name not in ("data", "moved", "victim", "outside"):
                raise FuzzError("outside", f"{entry.name} was made outside of the folder")
        victim, outside = self.root / "victim", self.root / "outside" / "victim"
        if any(path.read_bytes() != _VICTIM for path in (victim, outside) if path.parent.exists() and path.exists()):
            raise FuzzError("outside", "a file that a link names was changed")
        if outside.parent.exists() and not outside.exists():
            raise FuzzError("outside", "a folder that a link names was emptied")


# ---- links in the folder of a stopped cluster


def _link_lock(root: Path) -> None:
    """The lock file is a link to a file of somebody else."""
    (root / "victim").write_bytes(_VICTIM)
    lock = root / "data" / ".lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(root / "victim")


def _link_deleted(root: Path) -> None:
    """A folder that waits for its deletion is a link to a folder of somebody else."""
    _link(root, "gone-0.0123456789abcdef0123456789abcdef-delete")


def _link_stray(root: Path) -> None:
    """A folder that belongs to no topic is a link to a folder of somebody else."""
    _link(root, "stray-0")


def _link(root: Path, name: str) -> None:
    (root / "outside").mkdir(exist_ok=True)
    (root / "outside" / "victim").write_bytes(_VICTIM)
    (root / "data" / "node-1" / name).symlink_to(root / "outside")


def _link_partition(root: Path) -> None:
    """Somebody moved a partition to another disk, and left a link. Then the topic is deleted."""
    if (folder := root / "data" / "node-1" / f"{TOPIC}-0").is_dir() and not folder.is_symlink():
        folder.rename(root / "moved")
        folder.symlink_to(root / "moved")


_PLANTS = [_link_lock, _link_deleted, _link_stray, _link_partition]


@contextmanager
def _as_fault(kind: str, text: str) -> Iterator[None]:
    try:
        yield
    except (KafkaError, OSError) as error:
        raise FuzzError(kind, f"{text}: {error}") from error


def allow_descriptors() -> bool:
    """Let this process open as many files as it may. Returns whether they suffice for a world with a folder."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard > _MOST_MADE + _OTHER_FILES


@contextmanager
def few_descriptors(count: int | None) -> Iterator[None]:
    """The process can open only `count` further files meanwhile. None: as many as ever."""
    if count is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # `listdir` itself has a file open, which is closed now.
    taken = {int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
    free = (number for number in itertools.count() if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, count, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
