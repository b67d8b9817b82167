"""A cluster with a data folder: its state after a restart and after a kill."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest

from kafkabuf import KafkaProducer, RecordMetadata
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.groups.offsets import Committed
from kafkabuf.broker.log.upkeep.manager import LogManager
from kafkabuf.broker.records.config import LogConfig
from kafkabuf.broker.storage import journal as journals
from kafkabuf.broker.storage.journal import Journal
from kafkabuf.broker.waiting.slices import finish
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import ManualClock
from kafkabuf.errors import InvalidTopicError, KafkaStorageError
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch
from tests.broker.transactions.support import World
from tests.real.consumers import read_with_confluent

UNSTABLE_OFFSET_COMMIT = 88


@contextlib.contextmanager
def running(folder: Path, **settings: Any) -> Iterator[tuple[EmbeddedCluster, RawClient]]:
    with EmbeddedCluster(data_dir=folder, **settings) as cluster:
        with RawClient(cluster.bootstrap_servers.split(",")[0]) as client:
            yield cluster, client


def commit(client: RawClient, offset: int) -> int:
    asked = {
        "partition_index": 1,
        "committed_offset": offset,
        "committed_leader_epoch": 3,
        "committed_metadata": "über",
    }
    answer = client.ask(
        messages.OFFSET_COMMIT,
        8,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": "t", "partitions": [asked]}],
    )
    return int(answer.topics[0].partitions[0].error_code)


def fetch_offset(client: RawClient, stable: bool) -> Any:
    topics = [{"name": "t", "partition_indexes": [1]}]
    answer = client.ask(messages.OFFSET_FETCH, 7, group_id="g", topics=topics, require_stable=stable)
    return answer.topics[0].partitions[0]


def committed(client: RawClient) -> tuple[int, int, str | None]:
    found = fetch_offset(client, False)
    return found.committed_offset, found.committed_leader_epoch, found.metadata


def topic_id(cluster: EmbeddedCluster, name: str) -> object:
    return cluster._call(lambda c: c.catalogue.topic(name).topic_id)


def test_restart_keeps_topics_records_and_offsets(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        cluster.create_topic("t", 2, configs={"max.message.bytes": "500", "retention.ms": "-1"})
        cluster.create_topic("gone")
        assert [client.produce("t", batch([b"a", b"b"]), partition=1).base_offset for _ in range(3)] == [0, 2, 4]
        assert [commit(client, offset) for offset in (1, 5)] == [0, 0]
        cluster._call(lambda c: c.catalogue.topic("t").partition(1).log.delete_before(2))
        assert client.produce("gone", batch([b"x"] * 3)).error_code == 0
        cluster._call(lambda c: c.catalogue.topic("gone").partition(0).log.delete_before(3))
        kept, known, epoch = cluster.records("t", 1), topic_id(cluster, "t"), cluster.leader("t", 1)[1]
    for restarts in (1, 2):
        with running(tmp_path) as (cluster, client):
            assert cluster.topics() == {"t": 2, "gone": 1}
            assert (topic_id(cluster, "t"), cluster.records("t", 1)) == (known, kept)
            assert (cluster.log_start_offset("t", 1), cluster.end_offsets("t")) == (2, {0: 0, 1: 6})
            assert cluster.leader("t", 1) == (1, epoch + restarts)
            assert committed(client) == (5, 3, "über")
            assert client.produce("t", batch([b"x" * 600])).error_code == 10
    with running(tmp_path) as (cluster, client):
        cluster._call(lambda c: c.catalogue.add_partitions("t", 3))
        assert cluster.log_start_offset("gone", 0) == 3
        cluster._call(lambda c: c.catalogue.delete_topic("gone"))
        cluster.create_topic("gone")
        assert client.produce("gone", batch([b"x"] * 4)).base_offset == 0
        forget(cluster)
    with running(tmp_path) as (cluster, client):
        assert cluster.topics() == {"t": 3, "gone": 1}
        assert (cluster.log_start_offset("gone", 0), cluster.end_offset("gone", 0)) == (0, 4)
        cluster._call(lambda c: (c.catalogue.delete_topic("t"), c.catalogue.delete_topic("gone")))
    assert [path.name for path in (tmp_path / "node-1").iterdir() if path.is_dir()] == []


def test_restart_reads_the_journal_as_often_for_many_topics_as_for_one(tmp_path: Path) -> None:
    """A look at the journal for each topic would take minutes for thousands of topics."""

    def looks(count: int) -> int:
        with EmbeddedCluster(data_dir=tmp_path / str(count)) as cluster:
            for number in range(count):
                cluster.create_topic(f"t{number}", 2)
        with mock.patch.object(Journal, "find", autospec=True, side_effect=Journal.find) as find:
            with EmbeddedCluster(data_dir=tmp_path / str(count)) as cluster:
                assert cluster.topics() == {f"t{number}": 2 for number in range(count)}
        return find.call_count

    assert looks(1) == looks(9)


def test_restart_recognizes_the_last_batch_of_a_producer(tmp_path: Path) -> None:
    with running(tmp_path, clock=ManualClock()) as (cluster, client):
        cluster.create_topic("t")
        found = client.ask(messages.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1000)
        batches = [batch([b"x"], producer=(found.producer_id, 0, sequence)) for sequence in range(7)]
        assert [client.produce("t", one).base_offset for one in batches[:6]] == list(range(6))
    with running(tmp_path, clock=ManualClock()) as (cluster, client):
        # Kafka too refuses the last batch but one.
        again = [client.produce("t", one) for one in batches[4:]]
        assert [(one.error_code, one.base_offset) for one in again] == [(45, -1), (0, 5), (0, 6)]
        assert cluster.end_offset("t", 0) == 7
        other = client.ask(messages.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1000)
        assert other.producer_id > found.producer_id


@pytest.mark.parametrize("clean", [True, False])
def test_restart_keeps_transactions(tmp_path: Path, clean: bool) -> None:
    world = World(data_dir=tmp_path)
    producer = world.start()
    world.send(producer, 0)
    world.end(producer, False)
    producer = producer[0], producer[1] + 1
    world.send(producer, 0)
    if clean:
        world.close()
    else:
        world.client.socket.close()
        forget(world.cluster)
    with running(tmp_path, clock=world.clock) as (cluster, client):
        world.cluster, world.client = cluster, client
        assert (world.stable(), world.stable(1)) == (2, 0)
        # Readers still skip the transaction that was aborted before.
        assert cluster._call(lambda c: len(c.catalogue.topic("t").partition(0).log.aborted(0, 9))) == 1
        assert world.send(producer, 1).base_offset == 3
        assert world.end(producer, True) == (0, producer[0], producer[1] + 1)
        assert world.stable() == 5
    with running(tmp_path, clock=world.clock) as (cluster, client):
        world.cluster, world.client = cluster, client
        producer = world.start()
        world.send(producer, 0)
    with running(tmp_path, clock=world.clock) as (cluster, client):
        world.cluster, world.client = cluster, client
        world.advance(10.1)
        assert world.stable() == 7
        # The time-out of the transaction has fenced the producer.
        assert world.send(producer, 1).error_code == 47


@pytest.mark.parametrize("done", [True, False])
def test_offsets_of_a_transaction_survive_a_restart_and_wait_for_its_end(tmp_path: Path, done: bool) -> None:
    world = World(data_dir=tmp_path)
    commit(world.client, 1)
    producer = world.start()
    asked = {"transactional_id": "tx", "group_id": "g", "producer_id": producer[0], "producer_epoch": producer[1]}
    offset = {"partition_index": 1, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": None}
    topics = [{"name": "t", "partitions": [offset]}]
    answer = world.client.ask(messages.TXN_OFFSET_COMMIT, 5, topics=topics, **asked)
    assert answer.topics[0].partitions[0].error_code == 0
    if done:
        assert world.end(producer, True)[0] == 0
        producer = producer[0], producer[1] + 1
    world.close()
    with running(tmp_path, clock=world.clock) as (_, world.client):
        assert committed(world.client)[0] == (7 if done else 1)
        # UNSTABLE_OFFSET_COMMIT.
        assert fetch_offset(world.client, True).error_code == (0 if done else 88)
        # The transaction's older offset must not replace this one.
        commit(world.client, 3)
        assert world.end(producer, not done)[0] == 0
        assert committed(world.client)[0] == 3
    with running(tmp_path, clock=world.clock) as (_, world.client):
        assert committed(world.client)[0] == 3


def test_held_control_records_are_written_after_a_restart(tmp_path: Path) -> None:
    world = World(data_dir=tmp_path)
    producer = world.start()
    world.send(producer, 0)
    world.cluster.hold_markers()
    assert world.end(producer, True)[0] == 0
    assert world.stable() == 0
    world.close()
    with running(tmp_path, clock=world.clock) as (cluster, client):
        world.cluster, world.client = cluster, client
        assert world.stable() == 2
        assert world.init()[0] == 0


@pytest.mark.parametrize("steps", range(6))
def test_offsets_of_a_transaction_that_a_kill_cuts_off_show_all_or_none(tmp_path: Path, steps: int) -> None:
    """The cluster dies after so many steps of the end of the transaction, and does not go on with it at once."""
    numbers = range(4)
    with running(tmp_path) as (cluster, _):
        cluster.create_topic("t", len(numbers))

        def begin(found: Cluster) -> None:
            offsets = found.groups.get("g").offsets
            for index in numbers:
                offsets.commit(("t", index), Committed(1, -1, ""))
                offsets.commit_in_transaction(9, ("t", index), Committed(7, -1, ""))
            ending = found.groups.end_transaction(9, True)
            for _ in range(steps):
                next(ending)

        cluster._call(begin)
        forget(cluster)
    topics = [{"name": "t", "partition_indexes": list(numbers)}]
    with running(tmp_path) as (cluster, client):
        for stable in (False, True):
            answer = client.ask(messages.OFFSET_FETCH, 7, group_id="g", topics=topics, require_stable=stable)
            found = {(part.committed_offset, int(part.error_code)) for part in answer.topics[0].partitions}
            unstable = (-1, UNSTABLE_OFFSET_COMMIT) if stable else (1, 0)
            assert found == {(7, 0) if steps else unstable}
        cluster._call(lambda inside: finish(inside.groups.end_transaction(9, True)))
        assert cluster._call(lambda inside: {key[0] for _, key, _ in inside.memory.groups()}) == {"committed"}


def forget(cluster: EmbeddedCluster) -> None:
    """Ends the cluster as kill -9 does: it writes nothing more, and its files are closed."""

    def die(found: Any) -> None:
        found.logs.close, found.memory.close = partial(close_files, found), found.memory._journal.close

    def close_files(found: Any) -> None:
        found.logs._flusher.shutdown()
        for log in found.logs._logs.values():
            log.segments.close_files()
        os.close(found.logs._lock)

    cluster._call(die)
    cluster.stop()


def test_second_cluster_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, _):
        cluster.create_topic("t")
        with pytest.raises(KafkaStorageError, match="another cluster uses"):
            EmbeddedCluster(data_dir=tmp_path).start()
        assert cluster.topics() == {"t": 1}


def test_unusable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cluster = EmbeddedCluster(data_dir=tmp_path / "file")
    with pytest.raises(KafkaStorageError, match=r"cannot open .*file: File exists"):
        cluster.start()
    (tmp_path / "file").unlink()
    with cluster:
        pass
    (tmp_path / "file" / "cluster.journal").write_text("something else\n")
    with pytest.raises(KafkaStorageError, match="does not begin with"):
        cluster.start()


def test_interrupted_deletion_never_brings_the_records_back(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        cluster.create_topic("t")
        assert client.produce("t", batch([b"old"])).error_code == 0
        with mock.patch.object(LogManager, "deleting", return_value=iter(())):
            cluster._call(lambda c: c.catalogue.delete_topic("t"))
        forget(cluster)
    for _ in range(2):
        with running(tmp_path) as (cluster, _):
            assert cluster.topics() == {}
        (stray,) = (tmp_path / "node-1").glob("*-stray")
        assert b"old" in (stray / f"{0:020d}.log").read_bytes()
    with running(tmp_path) as (cluster, _):
        cluster.create_topic("t")
        assert cluster.end_offset("t", 0) == 0


def no_room(*arguments: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_is_a_storage_error_and_the_cluster_goes_on(tmp_path: Path) -> None:
    world = World(data_dir=tmp_path)
    client = world.client
    producer = world.start()
    assert world.send(producer, 0).error_code == 0
    with mock.patch("os.pwrite", no_room):
        refused = client.produce("t", batch([b"x"]), partition=1)
        assert refused.error_code == 56
        assert "No space left on device; check the disk" in refused.error_message
        assert world.end(producer, True)[0] == 0
        world.advance(0.5)
        assert world.stable() == 0
    with mock.patch("os.write", no_room):
        assert commit(client, 1) == 56
    # The disk has room again.
    world.advance(1.1)
    assert world.stable() == 2
    assert client.produce("t", batch([b"x"]), partition=1).base_offset == 0
    assert commit(client, 1) == 0
    world.close()
    with running(tmp_path, clock=world.clock) as (cluster, client):
        assert cluster.end_offsets("t") == {0: 2, 1: 1}
        assert committed(client)[0] == 1


def test_leader_works_on_while_the_disk_of_a_follower_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    room = [os.pwrite, no_room]
    with running(tmp_path, brokers=2, clock=(clock := ManualClock())) as (cluster, _):
        cluster.create_topic("t", replication_factor=2)
        leader = cluster.leader("t", 0)[0]
        host, port, _ = cluster.nodes()[leader]
        with RawClient(f"{host}:{port}") as client:
            assert client.produce("t", batch([b"x"])).error_code == 0
            with mock.patch("os.pwrite", lambda *arguments: room.pop(0)(*arguments)):
                assert client.produce("t", batch([b"x"]), acks=1).error_code == 0
                assert cluster.end_offset("t", 0) == 2
            assert not room
            assert "does not follow its leader for 1.0 s: cannot write" in caplog.text
            assert cluster.replica_end_offsets("t", 0) == {leader: 2, 3 - leader: 1}
            clock.advance(1)
            cluster.tick()
            assert client.produce("t", batch([b"x"])).error_code == 0
            assert cluster.replica_end_offsets("t", 0) == {1: 3, 2: 3}


def test_copy_in_sync_leads_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, brokers=2) as (cluster, _):
        cluster.create_topic("t", replication_factor=2)
        preferred, epoch = cluster.leader("t", 0)
        cluster.kill_node(preferred)
        host, port, _ = cluster.nodes()[3 - preferred]
        with RawClient(f"{host}:{port}") as client:
            assert client.produce("t", batch([b"only here"]), acks=1).error_code == 0
        forget(cluster)
    with running(tmp_path, brokers=2) as (cluster, _):
        assert cluster.leader("t", 0)[0] == 3 - preferred
        assert cluster.leader("t", 0)[1] > epoch
        assert b"only here" in cluster.records("t", 0)[0]


def test_restart_with_fewer_nodes_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, brokers=2) as (cluster, _):
        cluster.create_topic("t", replication_factor=2)
    with pytest.raises(KafkaStorageError, match=r"topic t has replicas on node 2, the cluster has nodes 1 to 1"):
        EmbeddedCluster(data_dir=tmp_path).start()
    with running(tmp_path, brokers=2) as (cluster, _):
        assert cluster.topics() == {"t": 1}


@pytest.mark.parametrize("name", ["../x", "..", "a/b", "", "x" * 250, "a\0b"])
def test_topic_name_never_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    manager = LogManager(Timer(None, ManualClock()), tmp_path / "data")  # type: ignore[arg-type]
    manager.start()
    with pytest.raises(InvalidTopicError):
        manager.open(1, name, 0, LogConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".lock"]
    manager.close()


def test_flushed_journal_cannot_give_way_to_its_former_file(tmp_path: Path) -> None:
    """A power cut takes back a renamed file whose folder was not flushed."""
    (journal := Journal(tmp_path / "journal")).open()
    flushed: list[bool] = []
    with mock.patch("os.fsync", lambda descriptor: flushed.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))):
        journal.flush()
        assert flushed == [False, True]
        journal.flush()
        assert flushed == [False, True, False]
        for number in range(2500):  # so many that the journal writes the file anew
            journal.put(("n",), number)
        flushed.clear()
        journal.flush()
        assert flushed == [False, True]
    journal.close()


def test_journal_loses_only_the_change_of_a_torn_line(tmp_path: Path) -> None:
    journal = Journal(path := tmp_path / "journal")
    journal.open()
    for number in range(3):
        journal.put(("one", number), [number, "ü"])
    journal.put(("one", 1), None)
    size = path.stat().st_size
    journal.put(("two",), {"last": 1})
    journal.close()
    whole = path.read_bytes()
    for cut in range(size, len(whole) + 1):
        path.write_bytes(whole[:cut])
        journal = Journal(path)
        journal.open()
        assert list(journal.find("one")) == [((0,), [0, "ü"]), ((2,), [2, "ü"])]
        assert list(journal.find("two")) == ([((), {"last": 1})] if cut == len(whole) else [])
        journal.put(("three",), cut)
        journal.close()
        (again := Journal(path)).open()
        assert list(again.find("three")) == [((), cut)]
        again.close()
    path.write_bytes(whole.replace(b"last", b'la"st'))
    with pytest.raises(KafkaStorageError, match=r"journal, line 6, is not \[key, value\]"):
        Journal(path).open()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"replicas":', '"copies":'),
        ('"configs":{}', '"configs":[]'),
        ('"configs":{}', '"configs":{"retention.ms":"long"}'),
        ('"id":"', '"id":"x'),
        ('["topic","t"]', '["topic"]'),
        ('"replicas":[[1]]', '"replicas":[[]]'),
        ('["cluster id"]', '["transaction","tx"]'),
    ],
)
def test_edited_journal_is_refused_by_its_path_and_loses_no_entry(tmp_path: Path, old: str, new: str) -> None:
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("t")
    journal = tmp_path / "cluster.journal"
    text = journal.read_text()
    assert old in text
    journal.write_text(text.replace(old, new))
    for _ in range(2):
        with pytest.raises(KafkaStorageError, match=rf"{journal} has an entry .*put back a copy"):
            EmbeddedCluster(data_dir=tmp_path).start()
    assert set(journal.read_text().splitlines()) >= set(text.replace(old, new).splitlines())
    journal.write_text(text)
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        assert cluster.topics() == {"t": 1}


def test_journal_is_rewritten_when_most_lines_are_outdated(tmp_path: Path) -> None:
    journal = Journal(path := tmp_path / "journal")
    journal.open()
    for number in range(3000):
        journal.put(("offset",), number)
    assert path.stat().st_size < 1100 * len(b'[["offset"],1000]\n')
    journal.close()
    (again := Journal(path)).open()
    assert list(again.find()) == [(("offset",), 2999)]
    again.close()


def test_journal_of_thousands_of_values_is_written_anew_a_little_with_each_change(tmp_path: Path) -> None:
    """At no moment does a kill lose a change, or the order of the values."""
    journal, random = Journal(path := tmp_path / "journal"), Random(1)
    journal.open()
    for number in range(1_500):
        journal.put(("n", number), number)
    moments = set(random.sample(range(6_000), 30))
    sizes = []
    with mock.patch.object(journals, "_encode", side_effect=journals._encode) as encode:
        for step in range(6_000):
            encode.reset_mock()
            journal.put(("n", random.randrange(1_700)), None if random.random() < 0.4 else step)
            assert encode.call_count <= 1 + journals._VALUES_AT_ONCE
            sizes.append(path.stat().st_size)
            if step in moments:
                killed = Journal(Path(shutil.copy(path, tmp_path / "killed")))
                killed.open()
                assert list(killed.find()) == list(journal.find())
                killed.close()
    assert sum(after < before for before, after in pairwise(sizes)) >= 2, "it was shortened"
    journal.close()
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("brokers", [1, 3])
def test_kill_loses_no_acknowledged_record(tmp_path: Path, brokers: int) -> None:
    command = [sys.executable, "-m", "kafkabuf", "broker", "--brokers", str(brokers), "--port", "0"]
    command += ["--partitions", "2", "--data-dir", str(tmp_path)]
    acknowledged: list[tuple[int, int, int]] = []
    enough = threading.Event()

    def note(number: int, metadata: RecordMetadata, error: BaseException | None) -> None:
        if error is None:
            acknowledged.append((metadata.partition, metadata.offset, number))
            if len(acknowledged) >= 20_000:
                enough.set()

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        servers = broker.stdout.readline().strip().partition("=")[2]
        producer = KafkaProducer(bootstrap_servers=servers, linger_ms=1, batch_size=2000)
        number = 0
        while not enough.is_set():
            producer.send("t", b"%d" % number, callback=partial(note, number))
            number += 1
        for _ in range(1_000):  # so that the kill comes amid appends
            producer.send("t", b"%d" % number, callback=partial(note, number))
            number += 1
        os.kill(broker.pid, signal.SIGKILL)
        producer.close(timeout=0)
    with EmbeddedCluster(brokers, data_dir=tmp_path) as cluster:
        found = read_with_confluent(cluster, "t", 2)
    for partition, offset, sent in acknowledged:
        assert found[partition][offset].value == b"%d" % sent
