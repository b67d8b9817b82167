"""Thousands of partitions with a data_dir: what each costs the disk, and how much happens in one step of the work."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.log.upkeep import checkpoints, manager
from kafkabuf.broker.log.upkeep.checkpoints import HIGH_WATERMARKS
from kafkabuf.broker.log.upkeep.manager import LogManager
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.broker.storage.checkpoint import write_lines
from kafkabuf.broker.storage.journal import Journal
from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.errors import KafkaStorageError
from tests.broker.raw_client import RawClient, batch

COUNT = 20
CALLS = ("open", "mkdir", "scandir", "listdir", "lstat", "replace", "rename", "unlink", "rmdir")
EPOCHS = "leader-epoch-checkpoint"


@contextlib.contextmanager
def counted(calls: Counter[str]) -> Iterator[None]:
    """Counts the calls of the os module."""
    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(mock.patch(f"os.{name}", _counting(calls, name, getattr(os, name))))
        yield


def _counting(calls: Counter[str], name: str, real: Any) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return real(*arguments, **named)

    return call


def most_in_a_step(cluster: Cluster, work: Work[Any]) -> int:
    """Does the work. Returns how many lines the journal got in one step at most."""
    lines: Counter[int] = Counter()
    step = 0
    put = Journal.put

    def counting(journal: Journal, *arguments: Any) -> None:
        lines[step] += 1
        put(journal, *arguments)

    with mock.patch.object(Journal, "put", counting), contextlib.suppress(KafkaStorageError):
        for _ in work:
            step += 1
    return max(lines.values())


def test_new_log_is_a_folder_with_one_file_and_nothing_is_looked_for_in_it(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()
    with EmbeddedCluster(brokers=1, data_dir=tmp_path) as cluster:
        cluster.create_topic("first")
        with counted(calls):
            cluster._call(lambda c: c.catalogue.create_topic("t", COUNT))
        assert [path.name for path in (tmp_path / "node-1" / "t-0").iterdir()] == [f"{0:020d}.log"]
    # Once a second the cluster writes checkpoints, which is four files.
    assert calls["mkdir"] == COUNT
    assert COUNT <= calls["open"] <= COUNT + 4
    assert calls["scandir"] + calls["listdir"] == 0
    assert calls["replace"] <= 4


def test_deleted_log_without_records_goes_without_a_look_into_its_folder(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()
    with EmbeddedCluster(brokers=1, data_dir=tmp_path) as cluster:
        cluster.create_topic("t", COUNT)
        with counted(calls):
            cluster._call(lambda c: c.catalogue.delete_topic("t"))
        assert [path for path in (tmp_path / "node-1").iterdir() if path.is_dir()] == []
    assert (calls["rename"], calls["rmdir"]) == (COUNT, COUNT)
    assert calls["scandir"] + calls["listdir"] == 0


def test_epoch_is_stored_with_its_first_batch(tmp_path: Path) -> None:
    file = tmp_path / "node-1" / "t-0" / EPOCHS
    for epoch in (0, 1):
        with EmbeddedCluster(brokers=1, data_dir=tmp_path) as cluster:
            if not epoch:
                cluster.create_topic("t")
                assert not file.exists()
            with RawClient(cluster.bootstrap_servers) as client:
                assert client.produce("t", batch([b"x"])).error_code == 0
            expected = [f"{known} {known}" for known in range(epoch + 1)]
            assert file.read_text().splitlines()[2:] == expected


def test_topics_that_are_deleted_and_made_again_write_the_checkpoints_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "CHECK_SECONDS", 1e6)
    names = [f"t-{number}" for number in range(COUNT)]
    written: list[Path] = []
    write = write_lines

    def writing(path: Path, entries: Any) -> None:
        written.append(path)
        write(path, entries)

    with EmbeddedCluster(brokers=1, data_dir=tmp_path) as cluster:
        cluster.create_topic("kept")
        for name in names:
            cluster.create_topic(name)
        cluster._call(lambda c: c.logs.write_checkpoints())
        monkeypatch.setattr(checkpoints, "write_lines", writing)
        cluster._call(lambda c: [c.catalogue.delete_topic(name) for name in names])
        assert written == []
        for name in names:
            cluster.create_topic(name)
        assert len(written) == len(set(written)) == 4
        assert {name for name, *_ in _entries(tmp_path)} == {"kept"}


def test_checkpoints_forget_deleted_topics_with_the_next_check(tmp_path: Path) -> None:
    with EmbeddedCluster(brokers=1, data_dir=tmp_path) as cluster:
        for name in ("gone", "again", "kept"):
            cluster.create_topic(name)
        cluster._call(lambda c: c.logs.write_checkpoints())
        cluster._call(lambda c: [c.catalogue.delete_topic(name) for name in ("gone", "again")])
        cluster.create_topic("again")
        cluster._call(lambda c: c.logs.write_checkpoints())
        assert {name for name, *_ in _entries(tmp_path)} == {"kept", "again"}
        assert not any(cluster._call(lambda c: c.logs._checkpoints._gone).values())


def test_partitions_are_placed_and_made_in_different_steps(tmp_path: Path) -> None:
    def steps(cluster: Cluster, work: Work[Any]) -> list[int]:
        """How many partitions were made after each of the first steps. Then the work is finished."""
        found = []
        with mock.patch("kafkabuf.broker.replica.topics.Partition", side_effect=Partition) as made:
            for _ in range(2):
                next(work)
                found.append(made.call_count)
        finish(work)
        return found

    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        assert cluster._call(lambda c: steps(c, c.catalogue.creating_topic("t", COUNT))) == [0, COUNT]
        assert cluster._call(lambda c: steps(c, c.catalogue.adding_partitions("t", 3 * COUNT))) == [0, 2 * COUNT]
        assert cluster.topics() == {"t": 3 * COUNT}


def _entries(data_dir: Path) -> list[list[str]]:
    lines = (data_dir / "node-1" / HIGH_WATERMARKS).read_text().splitlines()[2:]
    return [line.split() for line in lines]


def test_states_of_a_deleted_topic_are_forgotten_in_steps(tmp_path: Path) -> None:
    with EmbeddedCluster(brokers=1, data_dir=tmp_path) as cluster:
        cluster.create_topic("t", COUNT)
        # The topic, and its first partition.
        assert cluster._call(lambda c: most_in_a_step(c, c.catalogue.deleting_topic("t"))) == 2
        assert cluster._call(lambda c: list(c.memory._journal.find("partition"))) == []


def _refuse_last(real: Any) -> Any:
    def opened(logs: LogManager, node: int, topic: str, partition: int, *arguments: Any, **named: Any) -> Any:
        if partition == COUNT - 1:
            raise KafkaStorageError(os.strerror(errno.EMFILE))
        return real(logs, node, topic, partition, *arguments, **named)

    return opened


def test_partitions_that_the_disk_refuses_are_undone_in_steps(tmp_path: Path) -> None:
    with EmbeddedCluster(brokers=1, data_dir=tmp_path) as cluster:
        with mock.patch.object(LogManager, "open", _refuse_last(LogManager.open)):
            assert cluster._call(lambda c: most_in_a_step(c, c.catalogue.creating_topic("t", COUNT))) == 1
        assert cluster._call(lambda c: sorted(c.logs._logs)) == []
        assert cluster.topics() == {}


def test_partitions_are_undone_when_the_cluster_stops_amid_their_undoing(tmp_path: Path) -> None:
    def begin_and_stop(c: Cluster) -> None:
        work = c.catalogue.creating_topic("t", COUNT)
        with mock.patch.object(LogManager, "open", _refuse_last(LogManager.open)):
            # Two steps before the first log, one for each partition but the last, and the first three steps back.
            for _ in range(2 + COUNT - 1 + 3):
                next(work)
        assert len(c.logs._logs) == COUNT - 1 - 3
        work.close()

    with EmbeddedCluster(brokers=1, data_dir=tmp_path) as cluster:
        cluster._call(begin_and_stop)
        assert cluster._call(lambda c: sorted(c.logs._logs)) == []
        assert [path for path in (tmp_path / "node-1").iterdir() if path.is_dir()] == []
