"""A disk that refuses: no space, no inodes, no descriptors, a folder that is read-only. A change takes place wholly or
not at all, on the disk and in memory, and the cluster goes on when the disk does."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.storage.journal import Journal
from kafkabuf.broker.transactions.coordinator import RETRY_SECONDS, State
from kafkabuf.clock import ManualClock
from kafkabuf.errors import KafkaStorageError
from kafkabuf.protocol import messages
from tests.broker.log.support import contents, end, on_disk, put_in_transaction
from tests.broker.raw_client import NOW, RawClient, batch, error_codes
from tests.broker.storage.test_data_dir import forget, running

STORAGE_ERROR = KafkaStorageError.code
UNKNOWN_TOPIC = 3
Ask = Callable[[RawClient], int]


# ---- the seam: every call that takes something from the disk or the process


class RefusingDisk:
    """Carries out `granted` calls that need something, and refuses all later ones with `code`. Without descriptors a
    process cannot open files, without space it cannot create or write them. Deleting needs neither."""

    CALLS = ("open", "mkdir", "write", "pwrite", "fsync")

    def __init__(self, data_dir: Path, granted: int, code: int) -> None:
        self.data_dir, self.left, self.code = data_dir, granted, code
        self._real = {name: getattr(os, name) for name in self.CALLS}

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        if self._needs(name, *arguments):
            if self.left == 0:
                raise OSError(self.code, os.strerror(self.code))
            self.left -= 1
        return self._real[name](*arguments, **named)

    def _needs(self, name: str, target: Any, flags: Any = 0, *_: Any) -> bool:
        if isinstance(target, str | Path) and not str(target).startswith(str(self.data_dir)):
            return False
        if self.code == errno.EMFILE:
            return name == "open"
        return name != "open" or bool(flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in self.CALLS:
                stack.enter_context(mock.patch(f"os.{name}", lambda *a, _name=name, **n: self._call(_name, *a, **n)))
            yield


def present(cluster: EmbeddedCluster, data_dir: Path) -> dict[str, object]:
    """Everything that a topic consists of: in memory, in the journal, on the disk."""
    return {
        "topics": cluster.topics(),
        "logs": cluster._call(lambda c: sorted(c.logs._logs)),
        "ids": cluster._call(lambda c: len(c.catalogue._by_id)),
        "journal": cluster._call(lambda c: sorted(map(repr, c.memory._journal.find("topic")))),
        "folders": sorted(str(path) for path in data_dir.glob("node-*/*") if path.is_dir()),
    }


def create(client: RawClient) -> int:
    asked = {"name": "new", "num_partitions": 2, "replication_factor": 3, "assignments": [], "configs": []}
    answer = client.ask(messages.CREATE_TOPICS, 5, topics=[asked], timeout=1000, validate_only=False)
    return int(answer.topics[0].error_code)


def add_partitions(client: RawClient) -> int:
    asked = {"name": "old", "count": 3, "assignments": None}
    answer = client.ask(messages.CREATE_PARTITIONS, 1, topics=[asked], timeout=1000, validate_only=False)
    return int(answer.results[0].error_code)


def name_in_metadata(client: RawClient) -> int:
    answer = client.ask(messages.METADATA, 8, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    return int(answer.topics[0].error_code)


CHANGES = [create, add_partitions, name_in_metadata]


@pytest.mark.parametrize("ask", CHANGES)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EROFS])
def test_topic_that_the_disk_refuses_at_any_step_leaves_nothing(tmp_path: Path, ask: Ask, code: int) -> None:
    with running(tmp_path, brokers=3) as (cluster, client):
        cluster.create_topic("old")
        before = present(cluster, tmp_path)
        for granted in range(200):
            disk = RefusingDisk(tmp_path, granted, code)
            with disk.refusing():
                answered = ask(client)
            if answered == 0:
                break
            assert answered == STORAGE_ERROR
            assert present(cluster, tmp_path) == before
        # A file for each replica, at least.
        assert granted >= 3
        after = present(cluster, tmp_path)
        assert after != before
        forget(cluster)
    with running(tmp_path, brokers=3) as (cluster, client):
        assert present(cluster, tmp_path) == after
        for name in cluster.topics():
            for partition in range(cluster.topics()[name]):
                host, port, _ = cluster.nodes()[cluster.leader(name, partition)[0]]
                with RawClient(f"{host}:{port}") as leader:
                    assert leader.produce(name, batch([b"x"]), partition=partition).base_offset == 0


def test_restart_after_a_refused_topic_has_nothing_of_it(tmp_path: Path) -> None:
    with running(tmp_path, brokers=3) as (cluster, client):
        disk = RefusingDisk(tmp_path, 9, errno.ENOSPC)
        with disk.refusing():
            assert create(client) == STORAGE_ERROR
        forget(cluster)
    with running(tmp_path, brokers=3) as (cluster, client):
        assert cluster.topics() == {}
        assert list(tmp_path.glob("node-*/new*")) == []
        assert create(client) == 0


@pytest.mark.parametrize("ask", CHANGES)
def test_topic_for_which_descriptors_are_missing_leaves_nothing(tmp_path: Path, ask: Ask) -> None:
    """The real limit, RLIMIT_NOFILE: with each descriptor more the change comes a step further."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused = 0
    with running(tmp_path, brokers=3) as (cluster, client):
        cluster.create_topic("old")
        before = present(cluster, tmp_path)
        with mock.patch("os.mkdir", refuse):  # so that all modules are loaded before the descriptors are gone
            assert ask(client) == STORAGE_ERROR
        greatest = max(map(int, os.listdir("/dev/fd")))
        fillers = [os.dup(0) for _ in range(greatest)]  # no free number is left below the limit
        try:
            for spare in range(40):
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1 + spare, hard))
                try:
                    answered = ask(client)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                if answered == 0:
                    break
                assert answered == STORAGE_ERROR
                assert present(cluster, tmp_path) == before
                refused += 1
        finally:
            for filler in fillers:
                os.close(filler)
        assert answered == 0
        assert refused >= 3


# ---- appends


def test_disk_that_fills_up_amid_an_append_keeps_the_log_whole(tmp_path: Path) -> None:
    """A real limit, RLIMIT_FSIZE: the file grows up to it, within a batch, and no further."""
    with running(tmp_path) as (cluster, client):
        cluster.create_topic("t")
        assert client.produce("t", batch([b"x" * 1000])).base_offset == 0
        before = cluster.records("t", 0)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for room in (1, 500, 1500):
            size = (tmp_path / "node-1" / "t-0" / f"{0:020d}.log").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))
            try:
                assert client.produce("t", batch([b"y" * 2000])).error_code == STORAGE_ERROR
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert cluster.records("t", 0) == before
        assert client.produce("t", batch([b"z"])).base_offset == 1
        before = cluster.records("t", 0)
        forget(cluster)
    with running(tmp_path) as (cluster, _):
        assert cluster.records("t", 0) == before


def refuse(*arguments: Any, **named: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("closed", [True, False])
def test_aborted_transaction_stays_aborted_if_the_disk_refuses_its_index(tmp_path: Path, closed: bool) -> None:
    log = on_disk(tmp_path)
    put_in_transaction(log, (7, 0, 0), b"never")
    with mock.patch("kafkabuf.broker.storage.files.append_whole", side_effect=KafkaStorageError("no space")):
        end(log, (7, 0, 0), False)
        assert log.end_offset == 2
        with pytest.raises(KafkaStorageError):
            log.segments.roll(log.producers)
    put_in_transaction(log, (7, 0, 1), b"never either")
    end(log, (7, 0, 1), False)
    expected = contents(log)
    assert len(log.aborted(0, 9)) == 2
    if closed:
        log.close()
    assert contents(on_disk(tmp_path, recovery_point=4 if closed else 0)) == expected


def test_torn_entry_of_a_transaction_index_is_taken_back(tmp_path: Path) -> None:
    real = os.write
    writes = [lambda file, data: real(file, bytes(data)[:5]), refuse]
    log = on_disk(tmp_path)
    put_in_transaction(log, (7, 0, 0), b"never")
    with mock.patch("os.write", lambda *arguments: writes.pop(0)(*arguments)):
        end(log, (7, 0, 0), False)
    assert not writes
    put_in_transaction(log, (7, 0, 1), b"never either")
    end(log, (7, 0, 1), False)
    (index,) = tmp_path.glob("*.txnindex")
    assert index.stat().st_size == 2 * 34


def keep_logs(path: Path, missing_ok: bool = False) -> None:
    if path.suffix == ".log":
        raise PermissionError(errno.EACCES, "Permission denied")
    if path.exists() or not missing_ok:
        os.unlink(path)


def test_retention_that_the_disk_refuses_fails_no_append(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        cluster.create_topic("t", configs={"segment.bytes": "100", "retention.bytes": "100"})
        with mock.patch("pathlib.Path.unlink", keep_logs):
            offsets = [client.produce("t", batch([b"x" * 30])).base_offset for _ in range(5)]
        assert offsets == [0, 1, 2, 3, 4]
        start = cluster.log_start_offset("t", 0)
        assert start > 0
    with running(tmp_path) as (cluster, _):
        assert (cluster.log_start_offset("t", 0), cluster.end_offset("t", 0)) == (start, 5)


# ---- the journal


def opened(path: Path) -> Journal:
    journal = Journal(path)
    journal.open()
    return journal


def test_half_a_line_in_the_journal_spoils_no_later_line(tmp_path: Path) -> None:
    real = os.write
    journal = opened(tmp_path / "journal")
    journal.put(("a",), 1)
    writes = [lambda file, data: real(file, bytes(data)[:5]), refuse]
    with (
        mock.patch("os.write", lambda *arguments: writes.pop(0)(*arguments)),
        mock.patch("os.ftruncate", refuse),
        pytest.raises(KafkaStorageError, match="No space left"),
    ):
        journal.put(("b",), 2)
    assert list(journal.find("b")) == []
    journal.put(("c",), 3)
    journal.close()
    assert list(opened(tmp_path / "journal").find()) == [(("a",), 1), (("c",), 3)]


@pytest.mark.parametrize("call", ["os.open", "os.fsync", "pathlib.Path.replace"])
def test_journal_that_cannot_be_shortened_keeps_every_change(tmp_path: Path, call: str) -> None:
    journal = opened(tmp_path / "journal")
    with mock.patch(call, refuse):
        for number in range(2500):
            journal.put(("n",), number)
    assert list(tmp_path.iterdir()) == [tmp_path / "journal"]
    for number in range(2500, 5000):
        journal.put(("n",), number)
    assert (tmp_path / "journal").stat().st_size < 1500 * len(b'[["n"],5000]\n')
    journal.close()
    assert list(opened(tmp_path / "journal").find()) == [(("n",), 4999)]


def test_deletion_that_the_journal_refuses_changes_nothing(tmp_path: Path) -> None:
    with running(tmp_path, brokers=3) as (cluster, client):
        cluster.create_topic("old")
        before = present(cluster, tmp_path)
        with mock.patch("os.write", refuse):
            answer = client.ask(messages.DELETE_TOPICS, 5, topic_names=["old"], timeout=1000)
        assert answer.responses[0].error_code == STORAGE_ERROR
        assert present(cluster, tmp_path) == before
        leader = cluster.leader("old", 0)
        forget(cluster)
    with running(tmp_path, brokers=3) as (cluster, _):
        assert cluster.leader("old", 0) == (leader[0], leader[1] + 1)


def test_settings_that_the_journal_refuses_take_no_effect(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        cluster.create_topic("t")
        setting = {"name": "max.message.bytes", "config_operation": 0, "value": "100"}
        resources = [{"resource_type": 2, "resource_name": "t", "configs": [setting]}]
        with mock.patch("os.write", refuse):
            answer = client.ask(messages.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False)
        assert answer.responses[0].error_code == STORAGE_ERROR
        assert client.produce("t", batch([b"x" * 200])).error_code == 0
        assert cluster._call(lambda c: c.catalogue.topic("t").configs) == {}


# ---- groups and transactions

GROUP, TRANSACTION = "g", "tx"


def offsets_of(cluster: EmbeddedCluster) -> dict[tuple[str, int], int]:
    """The committed offsets of the group."""

    def look_up(of: Cluster) -> dict[tuple[str, int], int]:
        group = of.groups.find(GROUP)
        committed = [] if group is None else [(at, group.offsets.get(at)) for at in group.offsets.partitions()]
        return {at: found.offset for at, found in committed if found is not None}

    return cluster._call(look_up)


def state_of(cluster: EmbeddedCluster) -> State | None:
    """The state of the transactional id; None if there is none."""

    def look_up(of: Cluster) -> State | None:
        transaction = of.transactions.get(TRANSACTION)
        return None if transaction is None else transaction.state

    return cluster._call(look_up)


def delete_offset(client: RawClient) -> int:
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    answer = client.ask(messages.OFFSET_DELETE, 0, group_id=GROUP, topics=topics)
    return int(answer.topics[0].partitions[0].error_code)


def delete_group(client: RawClient) -> int:
    return int(client.ask(messages.DELETE_GROUPS, 2, groups_names=[GROUP]).results[0].error_code)


@pytest.mark.parametrize("ask", [delete_offset, delete_group])
def test_offset_that_the_disk_does_not_delete_stays(tmp_path: Path, ask: Ask) -> None:
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    topics = [{"name": "t", "partitions": [partition]}]
    with running(tmp_path) as (cluster, client):
        cluster.create_topic("t")
        client.ask(
            messages.OFFSET_COMMIT, 5, group_id=GROUP, generation_id_or_member_epoch=-1, member_id="", topics=topics
        )
        with mock.patch("os.write", refuse):
            assert ask(client) == STORAGE_ERROR
        assert offsets_of(cluster) == {("t", 0): 5}
        assert ask(client) == 0
        assert offsets_of(cluster) == {}


def begin(client: RawClient) -> dict[str, Any]:
    """Begins a transaction with an offset. Returns the fields that name the producer."""
    answer = client.ask(
        messages.INIT_PRODUCER_ID,
        4,
        transactional_id=TRANSACTION,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    named = {
        "transactional_id": TRANSACTION,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }
    assert client.ask(messages.ADD_OFFSETS_TO_TXN, 3, **named, group_id=GROUP).error_code == 0
    partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    topics = [{"name": "t", "partitions": [partition]}]
    assert set(error_codes(client.ask(messages.TXN_OFFSET_COMMIT, 2, **named, group_id=GROUP, topics=topics))) == {0}
    return named


@pytest.mark.parametrize("granted", range(4))
def test_transaction_with_offsets_is_committed_whenever_the_disk_refuses(tmp_path: Path, granted: int) -> None:
    clock = ManualClock(wall_ms=NOW)
    with running(tmp_path, clock=clock) as (cluster, client):
        cluster.create_topic("t")
        named = begin(client)
        with RefusingDisk(tmp_path, granted, errno.ENOSPC).refusing():
            refused = client.ask(messages.END_TXN, 3, **named, committed=True).error_code
        assert refused == (0 if granted else STORAGE_ERROR)
        assert state_of(cluster) is (State.PREPARE_COMMIT if granted else State.ONGOING)
        clock.advance(RETRY_SECONDS)
        cluster.tick()
        assert client.ask(messages.END_TXN, 3, **named, committed=True).error_code == 0
        assert offsets_of(cluster) == {("t", 0): 7}
    with running(tmp_path) as (cluster, _):
        assert offsets_of(cluster) == {("t", 0): 7}


def test_transaction_whose_time_is_over_is_aborted_when_the_disk_has_room_again(tmp_path: Path) -> None:
    clock = ManualClock(wall_ms=NOW)
    with running(tmp_path, clock=clock) as (cluster, client):
        cluster.create_topic("t")
        begin(client)
        with mock.patch("os.write", refuse):
            clock.advance(60)
            cluster.tick()
        clock.advance(RETRY_SECONDS)
        cluster.tick()
        assert state_of(cluster) is State.COMPLETE_ABORT


def test_producer_that_the_disk_refuses_leaves_no_transaction(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        for granted in range(2):
            with RefusingDisk(tmp_path, granted, errno.ENOSPC).refusing():
                answer = client.ask(
                    messages.INIT_PRODUCER_ID, 1, transactional_id=TRANSACTION, transaction_timeout=60_000
                )
            assert answer.error_code == STORAGE_ERROR
            assert state_of(cluster) is None
