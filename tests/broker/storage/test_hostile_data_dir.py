"""A data folder with what nobody expects in it: links, FIFOs, folders in place of files, the longest names."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pytest

from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.broker.storage import disk
from kafkabuf.broker.storage.files import FileSegments
from kafkabuf.clock import ManualClock
from kafkabuf.errors import KafkaStorageError
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch
from tests.broker.storage.test_data_dir import forget, running

FILE = f"{0:020d}.log"


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """To open a FIFO the careless way waits for ever."""
    signal.setitimer(signal.ITIMER_REAL, 60)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


def folders(data_dir: Path, node: int = 1) -> list[str]:
    return sorted(path.name for path in (data_dir / f"node-{node}").iterdir() if path.is_dir())


def delete(client: RawClient, topic: str) -> int:
    answer = client.ask(messages.DELETE_TOPICS, 5, topic_names=[topic], timeout=1000)
    return int(answer.responses[0].error_code)


# ---- names


@pytest.mark.parametrize("length", [1, 239, 240, 246, 247, 248, 249])
def test_topic_of_every_legal_length_is_deleted_and_begins_empty_when_it_is_made_again(
    tmp_path: Path, length: int
) -> None:
    name = "n" * length
    with running(tmp_path) as (cluster, client):
        for _ in range(2):
            cluster.create_topic(name, 11)
            assert cluster.end_offset(name, 10) == 0
            assert client.produce(name, batch([b"old"]), partition=10).error_code == 0
            assert delete(client, name) == 0
            assert folders(tmp_path) == []
        cluster.create_topic(name, 11)
        assert client.produce(name, batch([b"kept"]), partition=10).error_code == 0
    with running(tmp_path) as (cluster, client):
        assert cluster.end_offset(name, 10) == 1
        assert delete(client, name) == 0
    with running(tmp_path) as (cluster, _):
        assert (cluster.topics(), folders(tmp_path)) == ({}, [])


def test_names_that_share_their_first_characters_are_deleted_apart(tmp_path: Path) -> None:
    names = ["n" * 240 + str(number) for number in range(3)]
    with running(tmp_path) as (cluster, client):
        for name in names:
            cluster.create_topic(name)
        with mock.patch("os.rmdir", side_effect=OSError(5, "Input/output error")):
            assert [delete(client, name) for name in names] == [0, 0, 0]
        assert len(folders(tmp_path)) == 3
    with running(tmp_path):
        assert folders(tmp_path) == []


@pytest.mark.parametrize("call", ["pathlib.Path.rename", "os.rmdir"])
def test_topic_that_the_disk_does_not_delete_is_gone_and_begins_empty(tmp_path: Path, call: str) -> None:
    with running(tmp_path) as (cluster, client):
        cluster.create_topic("t")
        assert client.produce("t", batch([b"old"] * 3)).error_code == 0
        with mock.patch(call, side_effect=PermissionError(13, "Permission denied")):
            assert delete(client, "t") == 0
        assert cluster.topics() == {}
        cluster.create_topic("t")
        assert cluster.end_offset("t", 0) == 0
        assert client.produce("t", batch([b"new"])).base_offset == 0
        forget(cluster)
    with running(tmp_path) as (cluster, _):
        (kept,) = cluster.records("t", 0)
        assert b"new" in kept


def test_log_start_of_a_deleted_topic_hides_no_record_of_the_next_after_a_kill(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, client):
        cluster.create_topic("t")
        assert client.produce("t", batch([b"old"] * 3)).error_code == 0
        cluster._call(lambda c: c.catalogue.topic("t").partition(0).log.delete_before(3))
        cluster._call(lambda c: c.logs.write_checkpoints())
        with mock.patch("kafkabuf.broker.log.upkeep.checkpoints.write_lines", side_effect=KafkaStorageError("full")):
            assert delete(client, "t") == 0
        cluster.create_topic("t")
        assert client.produce("t", batch([b"new"] * 4)).error_code == 0
        forget(cluster)
    with running(tmp_path) as (cluster, _):
        assert (cluster.log_start_offset("t", 0), cluster.end_offset("t", 0)) == (0, 4)


# ---- links, FIFOs, folders


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "file")


def link_to_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside, target_is_directory=True)


def link_to_nothing(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "nothing")


def fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(b"kept")


def empty_file(path: Path, outside: Path) -> None:
    path.touch()


PLANTS: list[Callable[[Path, Path], None]] = [link, link_to_folder, link_to_nothing, fifo, folder]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside the data folder, which the cluster must leave alone."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "file").write_bytes(b"precious")
    (path / FILE).write_bytes(b"precious")
    return path


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data folder of a cluster that has stopped. Its topic has one record, and one more in a second segment."""
    path = tmp_path / "data"
    with running(path) as (cluster, client):
        cluster.create_topic("t", configs={"segment.bytes": "80"})
        assert client.produce("t", batch([b"first"])).error_code == 0
        assert client.produce("t", batch([b"second"])).error_code == 0
    return path


def untouched(outside: Path) -> bool:
    contents = {path.name: path.read_bytes() for path in outside.iterdir()}
    return contents == {"file": b"precious", FILE: b"precious"}


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[None]:
    """Moves away what lies at `path`, and back again at the end."""
    saved = path.with_name("saved")
    if path.exists():
        path.rename(saved)
    yield
    if saved.exists():
        saved.rename(path)


@pytest.mark.parametrize("name", ["other-0", "other-0-delete", "no partition", "other-0-stray", "-"])
@pytest.mark.parametrize("plant", [*PLANTS, empty_file])
def test_what_belongs_to_no_topic_stops_no_start(
    data_dir: Path, outside: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    plant(data_dir / "node-1" / name, outside)
    for offset in (2, 3):
        with running(data_dir) as (cluster, client):
            assert cluster.topics() == {"t": 1}
            assert client.produce("t", batch([b"x"])).base_offset == offset
    assert untouched(outside)


@pytest.mark.parametrize("plant", [*PLANTS, empty_file])
def test_what_lies_in_the_place_of_a_new_topic_is_set_aside(
    data_dir: Path, outside: Path, plant: Callable[[Path, Path], None]
) -> None:
    with running(data_dir) as (cluster, client):
        plant(data_dir / "node-1" / "new-0", outside)
        cluster.create_topic("new")
        assert client.produce("new", batch([b"x"])).base_offset == 0
    with running(data_dir) as (cluster, client):
        assert cluster.end_offset("new", 0) == 1
        assert delete(client, "new") == 0
    assert untouched(outside)
    (aside,) = (path for path in (data_dir / "node-1").iterdir() if path.name.startswith("new-0"))
    assert aside.name.endswith("-stray")


@pytest.mark.parametrize("plant", [*PLANTS, empty_file])
def test_partition_folder_that_is_none_stops_no_start(
    data_dir: Path, outside: Path, plant: Callable[[Path, Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = data_dir / "node-1" / "t-0"
    path.rename(outside.parent / "moved")
    plant(path, outside)
    if plant is folder:
        (path / FILE).mkdir()
    for offset in (0, 1):
        with running(data_dir) as (_, client):
            assert client.produce("t", batch([b"x"])).base_offset == offset
    assert untouched(outside)
    assert "it is kept as" in caplog.text
    with running(data_dir) as (_, client):
        assert delete(client, "t") == 0
    assert untouched(outside)


SEGMENT_FILES = [FILE, f"{0:020d}.index", f"{0:020d}.timeindex", f"{0:020d}.txnindex", f"{1:020d}.snapshot"]


@pytest.mark.parametrize(
    "name", [*SEGMENT_FILES, "leader-epoch-checkpoint", "leader-epoch-checkpoint.tmp", "x.deleted"]
)
@pytest.mark.parametrize("plant", PLANTS)
def test_file_of_a_partition_that_is_none_stops_no_start(
    data_dir: Path, outside: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    path = data_dir / "node-1" / "t-0" / name
    path.unlink(missing_ok=True)
    plant(path, outside)
    for _ in range(2):
        with running(data_dir) as (cluster, client):
            before = cluster.end_offset("t", 0)
            assert client.produce("t", batch([b"x"])).base_offset == before
            # The records behind a segment that is lost are lost with it, unless it is the first.
            assert before >= (0 if name == FILE else 2)
    assert untouched(outside)


NODE_FILES = ["node-1/recovery-point-offset-checkpoint", "node-1/log-start-offset-checkpoint"]
ROOT_FILES = ["cluster.journal", ".lock", "node-1", "node-2"]


@pytest.mark.parametrize("name", NODE_FILES)
@pytest.mark.parametrize("plant", PLANTS)
def test_checkpoint_that_is_no_file_stops_no_start(
    data_dir: Path, outside: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    (data_dir / name).unlink(missing_ok=True)
    plant(data_dir / name, outside)
    for offset in (2, 3):
        with running(data_dir) as (_, client):
            assert client.produce("t", batch([b"x"])).base_offset == offset
    assert untouched(outside)


@pytest.mark.parametrize("name", ROOT_FILES)
@pytest.mark.parametrize("plant", PLANTS)
def test_file_that_the_cluster_cannot_do_without_is_refused_by_its_path(
    data_dir: Path, outside: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    path = data_dir / name
    with replaced(path):
        plant(path, outside)
        if name == "node-2" and plant is folder:
            return
        if name == "node-1" and plant is folder:
            with running(data_dir) as (cluster, _):
                assert cluster.end_offset("t", 0) == 0
            disk.remove_folder(path)
            return
        for _ in range(2):
            with pytest.raises(KafkaStorageError, match=rf"{path} is a .*remove it"):
                EmbeddedCluster(data_dir=data_dir).start()
        assert untouched(outside)
        if plant is folder:
            disk.remove_folder(path)
        else:
            path.unlink()
    with running(data_dir) as (cluster, _):
        assert cluster.end_offset("t", 0) == 2


@pytest.mark.parametrize("name", ["cluster.journal.tmp", *(f"{name}.tmp" for name in NODE_FILES)])
@pytest.mark.parametrize("plant", [link, link_to_folder, link_to_nothing, fifo])
def test_leftover_of_a_crash_is_replaced_and_not_followed(
    data_dir: Path, outside: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    plant(data_dir / name, outside)
    for offset in (2, 3):
        with running(data_dir) as (_, client):
            assert client.produce("t", batch([b"x"])).base_offset == offset
    assert untouched(outside)


def test_data_folder_itself_may_be_a_link(data_dir: Path) -> None:
    alias = data_dir.with_name("alias")
    alias.symlink_to(data_dir, target_is_directory=True)
    with running(alias) as (cluster, _):
        assert cluster.end_offset("t", 0) == 2


def test_lock_keeps_its_content(data_dir: Path) -> None:
    (data_dir / ".lock").write_bytes(b"a note")
    with running(data_dir):
        pass
    assert (data_dir / ".lock").read_bytes() == b"a note"


ODD_NAMES = ["²²²²²²²²²²²²²²²²²²²².log", "9" * 20 + ".log", "7.log", "9" * 20 + ".snapshot"]


@pytest.mark.parametrize("name", [*ODD_NAMES, *(f"{name}.swap" for name in ODD_NAMES)])
def test_file_with_an_odd_number_for_its_name_is_ignored(data_dir: Path, name: str) -> None:
    (data_dir / "node-1" / "t-0" / name).write_bytes(b"x" * 100)
    with running(data_dir) as (cluster, _):
        assert cluster.end_offset("t", 0) == 2


def test_swap_without_a_batch_replaces_no_segment(data_dir: Path) -> None:
    with running(data_dir) as (cluster, _):
        before = cluster.records("t", 0)
    (data_dir / "node-1" / "t-0" / f"{FILE}.swap").write_bytes(b"x" * 100)
    with running(data_dir) as (cluster, _):
        assert cluster.records("t", 0) == before


def test_recovery_point_of_no_offset_is_the_first(tmp_path: Path) -> None:
    segments = FileSegments(tmp_path, -(2**63), ManualClock())
    assert segments.recovery_point == 0
    segments.close_files()


@pytest.mark.parametrize("offset", ["-5", "9" * 19, "x", str(-(2**63))])
def test_checkpoint_with_an_impossible_offset_stops_no_start(data_dir: Path, offset: str) -> None:
    for name in NODE_FILES:
        (data_dir / name).write_text(f"0\n1\nt 0 {offset}\n")
    with running(data_dir) as (cluster, client):
        assert cluster.end_offset("t", 0) == 2
        assert client.produce("t", batch([b"x"])).base_offset == 2


@pytest.mark.parametrize(
    "line",
    [
        [["topic", "u"], {"id": -1, "configs": {}, "replicas": [[1]]}],
        [["topic", "u"], {"id": str(UUID(int=1)), "configs": {"cleanup.policy": []}, "replicas": [[1]]}],
        [["topic", "u"], {"id": str(UUID(int=1)), "configs": {}, "replicas": [[{}]]}],
        [["topic", "u"], "é"],
        [["partition", "t", 0], {}],
        [["partition", "t", 0], [1, "", [1]]],
        [["acl", 2, "", "t", "User:a", "*", 3, 3], True],
        [["transaction", "x"], {"state": "Empty"}],
        [["group", "g", "committed", "t", 0], {}],
        [["group", "g", "pending", 1, "t", 0], [[], 7, -1, ""]],
    ],
    ids=str,
)
def test_edited_journal_is_refused_by_its_path(data_dir: Path, line: list[Any]) -> None:
    journal = data_dir / "cluster.journal"
    before = journal.read_bytes()
    journal.write_bytes(before + json.dumps(line).encode() + b"\n")
    with pytest.raises(KafkaStorageError, match=str(journal)):
        EmbeddedCluster(data_dir=data_dir, security=Security(authorizer=True)).start()
    journal.write_bytes(before)
    with running(data_dir) as (cluster, _):
        assert cluster.end_offset("t", 0) == 2


@pytest.mark.parametrize("gone", ["node-1/t-0", "node-1"])
def test_missing_folder_of_a_partition_is_no_silent_loss(
    data_dir: Path, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(data_dir / gone)
    with running(data_dir) as (cluster, client):
        assert f"{data_dir / 'node-1' / 't-0'} is missing" in caplog.text
        cluster.create_topic("new")
        assert client.produce("t", batch([b"x"])).base_offset == 0
    assert caplog.text.count("is missing") == 1, "neither a new topic"
    with running(data_dir):
        assert caplog.text.count("is missing") == 1, "nor the next start"


def test_link_inside_a_deleted_folder_is_removed_and_not_followed(data_dir: Path, outside: Path) -> None:
    link_to_folder(data_dir / "node-1" / "t-0" / "inside", outside)
    with running(data_dir) as (_, client):
        assert delete(client, "t") == 0
    assert (folders(data_dir), untouched(outside)) == ([], True)


def test_folder_that_cannot_be_set_aside_stops_no_start(data_dir: Path) -> None:
    (data_dir / "node-1" / "other-0").mkdir()
    with mock.patch("pathlib.Path.rename", side_effect=PermissionError(13, "Permission denied")) as rename:
        with running(data_dir) as (cluster, _):
            assert cluster.end_offset("t", 0) == 2
    assert rename.called


@pytest.mark.parametrize("plant", [*PLANTS, empty_file])
def test_what_has_another_name_beside_the_nodes_is_left_alone(
    data_dir: Path, outside: Path, plant: Callable[[Path, Path], None]
) -> None:
    for name in ("node-notes", "node-", "notes"):
        plant(data_dir / name, outside)
    with running(data_dir) as (cluster, _):
        assert cluster.end_offset("t", 0) == 2
    assert untouched(outside)
    assert {"node-notes", "node-", "notes"} <= {path.name for path in data_dir.iterdir()}
