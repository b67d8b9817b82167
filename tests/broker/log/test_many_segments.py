"""Logs with very many small segments or batches, which hostile clients make: other clients do not wait for them."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records.config import LogConfig
from kafkabuf.broker.storage import files
from kafkabuf.broker.storage.batches import LOOKS
from kafkabuf.broker.storage.files import FileSegments
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.protocol import messages as m
from tests.broker.log.support import kill_all, on_disk, put
from tests.broker.raw_client import NOW, RawClient, batch

# Each batch has a segment of its own.
TINY = LogConfig(segment_bytes=14)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    opened = on_disk(tmp_path / "t-0", TINY)
    for number in range(30):
        put(opened, b"%d" % number, time=NOW + number)
    return opened


@pytest.fixture(autouse=True)
def files_are_closed() -> object:
    yield
    kill_all()


def names(log: PartitionLog, suffix: str) -> list[int]:
    assert isinstance(log.segments, FileSegments)
    return sorted(int(path.stem) for path in log.segments.folder.glob(f"*{suffix}"))


def whole(work: Work[Any]) -> tuple[int, Any]:
    """The number of steps that are left of a work, and its result."""
    for steps in count():
        try:
            next(work)
        except StopIteration as end:
            return steps, end.value
    raise AssertionError


def test_deleted_records_go_in_steps(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_DROPPED", 10)
    log.delete_before(25)
    assert log.log_start_offset == 25
    assert names(log, ".log") == list(range(10, 30)), "the others wait"
    assert log.drop_deleted()
    assert not log.drop_deleted()
    assert names(log, ".log") == list(range(25, 30))
    assert names(log, ".snapshot") == list(range(25, 30))


def test_expired_records_go_in_steps(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_DROPPED", 10)
    log.config = LogConfig(segment_bytes=14, retention_bytes=5 * (log.size // 30))
    assert log.retain()
    assert log.log_start_offset == 10
    assert log.retain()
    assert not log.retain()
    assert names(log, ".log") == list(range(25, 30))


def test_segments_that_go_together_cost_one_look_into_the_folder(log: PartitionLog) -> None:
    with mock.patch.object(FileSegments, "_snapshots", autospec=True, side_effect=FileSegments._snapshots) as looks:
        log.delete_before(25)
        while log.drop_deleted():
            pass
    assert looks.call_count == 1


@pytest.mark.parametrize("segment_bytes", [None, 14, 1 << 20])
def test_lookup_by_timestamp_goes_in_steps(tmp_path: Path, segment_bytes: int | None) -> None:
    """No batch but the last is as new as the timestamp. The index of timestamps does not help."""
    config = LogConfig(segment_bytes=segment_bytes or 14)
    log = PartitionLog() if segment_bytes is None else on_disk(tmp_path / "u-0", config)
    for _ in range(3 * LOOKS):
        put(log, b"", time=NOW)
    put(log, b"", time=NOW + 10)
    for work in (log.offset_at_in_steps(NOW + 5), log.newest_in_steps()):
        steps, found = whole(work)
        assert steps >= 2
        assert found == (3 * LOOKS, NOW + 10, 0)


def test_lookup_goes_on_while_the_log_drops_batches() -> None:
    log = PartitionLog()
    for _ in range(3 * LOOKS):
        put(log, b"", time=NOW)
    put(log, b"", time=NOW + 10)
    work = log.offset_at_in_steps(NOW + 5)
    next(work)
    log.delete_before(2 * LOOKS)
    next(work)
    assert log.offset_at(NOW + 5) == (3 * LOOKS, NOW + 10, 0)
    assert whole(work)[1] == (3 * LOOKS, NOW + 10, 0)


def test_response_to_delete_records_comes_when_the_files_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_DROPPED", 2)
    with EmbeddedCluster(data_dir=tmp_path) as cluster, RawClient(cluster.bootstrap_servers) as client:
        cluster.create_topic("t", 1, configs={"segment.bytes": "14"})
        for _ in range(9):
            client.produce("t", batch([b"x"]))
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 8}]}]
        answer = client.ask(m.DELETE_RECORDS, 2, topics=topics, timeout=1000)
        assert answer.topics[0].partitions[0].low_watermark == 8
        assert len(list(tmp_path.glob("node-1/t-0/*.log"))) == 1
