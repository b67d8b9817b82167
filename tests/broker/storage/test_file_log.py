"""Logs on disk without a cluster: Kafka's tool reads them, and a reopened log has each appended batch once."""

from __future__ import annotations

import errno
import gzip
import logging
import re
import resource
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import cramjam
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records.config import Limits, LogConfig
from kafkabuf.broker.records.message_set import check_message_set, stamp
from kafkabuf.broker.storage.files import FileSegments
from kafkabuf.broker.storage.index import OFFSETS, TIMES, SparseIndex
from kafkabuf.clock import ManualClock
from kafkabuf.errors import KafkaError, KafkaStorageError, OutOfOrderSequenceNumberError
from rigs.jars import java, resolve_kafka
from rigs.real_kafka import RealKafka
from tests.broker.log.support import append, contents, end, kill, on_disk, put, put_in_transaction, read_all, stored
from tests.broker.raw_client import NOW, RawClient, batch, message
from tests.effort import effort

SMALL = LogConfig(segment_bytes=20_000)
PLAIN = LogConfig()


def killed(log: PartitionLog, folder: Path, config: LogConfig = PLAIN) -> PartitionLog:
    """The log that a new process opens from the present files. The caller must not use the old log any more."""
    return on_disk(folder, config, log.segments.recovery_point)


def fill(log: PartitionLog) -> None:
    """Plain, compressed, idempotent and transactional batches, over several segments of `SMALL`."""
    for number in range(60):
        put(log, *[b"plain" * 40] * (number % 3 + 1), time=NOW + number * 7 % 40)
        put(log, b"x" * 300, producer=(7, 0, number), epoch=number // 25)
        body = batch([b"packed" * 20] * 4)[61:]
        packed = gzip.compress(body) if number % 2 else bytes(cramjam.zstd.compress(body))
        append(log, batch([b"packed"] * 4, attributes=1 if number % 2 else 4, body=packed))
        put_in_transaction(log, (8, 0, number), b"y" * 200)
        if number % 4 == 3:
            end(log, (8, 0, 0), number % 8 == 3)


def dump(folder: Path, gaps: bool = False) -> str:
    """The output of Kafka 4.1.2's DumpLogSegments for all files. The tool must print no error, except with `gaps` that
    offsets are missing."""
    files = sorted(str(path) for path in folder.iterdir() if path.suffix)
    command = [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{resolve_kafka('4.1.2')}/*"]
    command += ["kafka.tools.DumpLogSegments", "--deep-iteration", "--print-data-log", "--files", ",".join(files)]
    done = subprocess.run(command, capture_output=True, text=True)
    expected = ("SLF4J", "Non-consecutive offsets in", " is followed by ") if gaps else ("SLF4J",)
    complaints = [line for line in done.stderr.splitlines() if not any(text in line for text in expected)]
    assert (done.returncode, complaints) == (0, [])
    return done.stdout


def test_kafkas_tool_reads_the_files(tmp_path: Path) -> None:
    log = on_disk(tmp_path, SMALL)
    fill(log)
    log.truncate_to(log.end_offset - 2)
    # Opening makes these indexes anew, for a log that was not closed.
    for path in sorted(tmp_path.glob("*index"))[:3]:
        path.unlink()
    log = killed(log, tmp_path, SMALL)
    put(log, b"one", b"two", b"three", producer=(9, 0, 0))
    count = log.end_offset
    log.close()
    text = dump(tmp_path)
    assert len(re.findall(r"^\| offset: ", text, re.M)) == count > 400
    assert len(re.findall("isvalid: true", text)) == len(re.findall("^baseOffset", text, re.M)) > 200
    assert len(re.findall("^Dumping .*[0-9].log$", text, re.M)) == len(list(tmp_path.glob("*.log"))) >= 3
    size = sum(path.stat().st_size for path in tmp_path.glob("*.log"))
    assert size / 8192 < len(re.findall("^offset: .* position: ", text, re.M)) < size / 4096
    assert len(re.findall("^timestamp: .* offset: ", text, re.M)) >= 3
    assert "endTxnMarker: ABORT" in text
    assert "lastStableOffset: " in text
    assert re.search("producerId: 7 .* lastSequence: 59 ", text)
    assert re.search(f"producerId: 9 .* lastSequence: 2 lastOffset: {count - 1} offsetDelta: 2 ", text)
    assert "does not" not in text
    assert "is empty" not in text


def test_files_of_kafka_are_read(tmp_path: Path, kafka_4: RealKafka) -> None:
    kafka_4.create_topic("files")
    with RawClient(kafka_4.bootstrap_servers) as client:
        for sequence in range(30):
            for records in (batch([b"x" * 900] * 2, producer=(7, 0, 2 * sequence)), batch([b"y" * 70])):
                assert client.produce("files", records).error_code == 0
        theirs = bytes(client.fetch("files", 0).records)
    shutil.copytree(kafka_4.log_dir / "files-0", tmp_path / "files-0")
    log = on_disk(tmp_path / "files-0")
    assert (log.end_offset, len(log.batches()), stored(log)) == (90, 60, theirs)
    with pytest.raises(OutOfOrderSequenceNumberError, match="60 is next"):
        put(log, b"x", producer=(7, 0, 61))
    assert log.leader_epochs.entries == [(0, 0)]


def test_killed_log_knows_no_producer_whose_batches_are_all_deleted(tmp_path: Path) -> None:
    """DeleteRecords up to a snapshot makes the snapshot void, as in Kafka: the log reads what is left."""
    log = on_disk(tmp_path)
    put(log, b"a", producer=(7, 0, 0))
    put(log, b"b", producer=(8, 0, 0))
    log.roll()
    put(log, b"c", producer=(8, 0, 1))
    kill(log)
    segments = FileSegments(tmp_path, 0, log.clock)
    again = PartitionLog(segments=segments, clock=log.clock, start_offset=2)
    assert [producer_id for producer_id, _ in again.producers] == [8]
    segments.close_files()


def test_clean_restart_reads_no_inactive_segment_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = on_disk(tmp_path, SMALL)
    fill(log)
    before = contents(log)
    log.close()
    # Opening would notice this damage if it read inactive segments again.
    first = min(tmp_path.glob("*.log"))
    whole = first.read_bytes()
    first.write_bytes(whole[:100] + b"?" + whole[101:])
    log = on_disk(tmp_path, SMALL, log.end_offset)
    assert caplog.records == []
    first.write_bytes(whole)
    assert contents(log) == before
    with pytest.raises(OutOfOrderSequenceNumberError, match="60 is next"):
        put(log, b"x", producer=(7, 0, 61))


def test_kill_loses_no_appended_batch_and_no_state(tmp_path: Path) -> None:
    log = on_disk(tmp_path, SMALL)
    fill(log)
    before = contents(log)
    for _ in range(2):
        log = killed(log, tmp_path, SMALL)
        assert contents(log) == before
    log.close()
    assert contents(killed(log, tmp_path, SMALL)) == before


def test_recovery_cuts_off_exactly_the_torn_batch(tmp_path: Path) -> None:
    log = on_disk(tmp_path / "whole")
    put(log, b"one", producer=(7, 0, 0))
    put(log, b"two", b"three", producer=(7, 0, 1))
    kept = contents(log)
    size = log.size
    put(log, b"torn and longer than the next", producer=(7, 0, 3))
    whole = (tmp_path / "whole" / f"{0:020d}.log").read_bytes()
    for cut in range(size, len(whole)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / f"{0:020d}.log").write_bytes(whole[:cut])
        shutil.copy(tmp_path / "whole" / "leader-epoch-checkpoint", folder)
        again = on_disk(folder)
        assert contents(again) == kept, cut
        assert (folder / f"{0:020d}.log").stat().st_size == size
        assert put(again, b"next", producer=(7, 0, 3)) == 3
        again.close()


@settings(max_examples=effort(60), deadline=None)
@example(sizes=[442], at=4 / 512, tail=None, segment_bytes=1 << 30)
@example(sizes=[442, 3, 3], at=7 / 700, tail=None, segment_bytes=1 << 30)
@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=12),
    at=st.floats(0, 1, exclude_max=True),
    tail=st.one_of(st.none(), st.binary(max_size=80), st.just(b"\0" * 5000)),
    segment_bytes=st.sampled_from([1 << 30, 3000]),
)
def test_damage_leaves_the_batches_before_it(
    sizes: list[int], at: float, tail: bytes | None, segment_bytes: int
) -> None:
    """The damage cuts off or replaces the last segment from some byte on, or changes that byte alone. A CRC or a header
    shows the damage. No entry of the indexes may matter."""
    with tempfile.TemporaryDirectory() as name:
        log = on_disk(folder := Path(name), LogConfig(segment_bytes=segment_bytes))
        for size in sizes:
            put(log, b"x" * size)
        log.segments.roll(log.producers) if segment_bytes == 3000 and len(sizes) % 2 else None
        batches = [bytes(one.data) for one in log.batches()]
        last = max(path for path in folder.glob("*.log") if path.stat().st_size)
        data = last.read_bytes()
        cut = int(at * len(data))
        broken = data[:cut] + (bytes([data[cut] ^ 1]) + data[cut + 1 :] if tail is None else tail)
        last.write_bytes(broken)
        again = on_disk(folder)
        found = [bytes(one.data) for one in again.batches()]
        again.close()
        intact = int(last.stem)
        # The new bytes may equal the old bytes.
        position = next((at for at in range(len(data)) if data[at : at + 1] != broken[at : at + 1]), len(data))
        while batches[intact:] and position >= len(batches[intact]):
            position -= len(batches[intact])
            intact += 1
        # A leader epoch may have any value: the CRC does not cover it.
        if tail is None and 12 <= position < 16:
            assert len(found) == len(batches)
        elif tail is None and position < 8 and found[intact:]:
            # Nor does it cover the offset: a greater one looks like that of a batch behind compacted ones.
            assert found[:intact] == batches[:intact]
            (moved,) = found[intact:]
            assert moved[8:] == batches[intact][8:]
            assert moved[:8] > batches[intact][:8]
        else:
            assert found == batches[:intact]


def test_lookup_by_index_equals_a_scan(tmp_path: Path) -> None:
    disk, memory = on_disk(tmp_path, LogConfig(segment_bytes=30_000)), PartitionLog()
    for number in range(250):
        values, time = [b"x" * (number * 37 % 900)] * (number % 4 + 1), NOW + number + (number * 71) % 7
        for log in (disk, memory):
            put(log, *values, time=time, epoch=number // 50)
    assert len(list(tmp_path.glob("*.log"))) > 3
    assert contents(disk) == contents(memory)
    for timestamp in range(NOW - 1, NOW + 260):
        assert disk.offset_at(timestamp) == memory.offset_at(timestamp)
    for limit in range(0, memory.end_offset, 13):
        assert disk.available(7, limit) == memory.available(7, limit)
    ends = [one.last_offset + 1 for one in memory.batches()]
    for limit in ends[::20]:
        assert read_all(disk, 3, limit) == read_all(memory, 3, limit)


def test_fetch_limit_returns_whole_batches_and_at_least_one(tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    for number in range(3):
        put(log, b"x" * 100 * (number + 1))
    size = [len(one.data) for one in log.batches()]
    lengths = [sum(map(len, log.read(0, most, True))) for most in (0, size[0], size[0] + 1, size[0] + size[1], 10**9)]
    assert lengths == [size[0], size[0], size[0], size[0] + size[1], sum(size)]
    assert log.read(0, size[0] - 1, False) == log.read(0, -5, False) == log.read(3, 100, True) == []
    log.close()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.integers(1, 400)),
        st.tuples(st.just("idempotent"), st.integers(1, 3)),
        st.tuples(st.just("transactional"), st.integers(1, 3)),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(st.just("truncate"), st.integers(0, 8)),
        st.tuples(st.just("epoch"), st.just(0)),
        st.tuples(st.just("reopen"), st.booleans()),
        st.tuples(st.just("flush"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=effort(60), deadline=None)
@given(OPERATIONS)
def test_log_on_disk_equals_a_log_in_memory(operations: list[tuple[str, int]]) -> None:
    config = LogConfig(segment_bytes=1500)
    with tempfile.TemporaryDirectory() as name, mock.patch("os.fsync"):
        disk, memory, epoch = on_disk(folder := Path(name), config), PartitionLog(clock=ManualClock(wall_ms=NOW)), 0
        for operation, number in operations:
            if operation == "epoch":
                epoch += 1
            elif operation == "flush":
                disk.flush()
            elif operation == "reopen":
                if number:
                    disk.close()
                disk = killed(disk, folder, config)
            else:
                entries = {producer_id: dict(memory.producers).get(producer_id) for producer_id in (7, 8)}
                sequences = {key: entry.last_sequence + 1 if entry else 0 for key, entry in entries.items()}
                for log in (disk, memory):
                    with suppress(KafkaError):
                        _do(log, operation, number, epoch, sequences)
            if operation in ("reopen", "truncate"):
                assert contents(disk) == contents(memory)
        assert contents(disk) == contents(memory)
        disk.close()


def _do(log: PartitionLog, operation: str, number: int, epoch: int, sequences: dict[int, int]) -> None:
    if operation == "plain":
        put(log, b"x" * number, epoch=epoch, time=NOW + number)
    elif operation == "idempotent":
        put(log, *[b"i"] * number, producer=(7, 0, sequences[7]), epoch=epoch)
    elif operation == "transactional":
        put_in_transaction(log, (8, 0, sequences[8]), *[b"t"] * number)
    elif operation == "end":
        end(log, (8, 0, 0), bool(number))
    else:
        log.truncate_to(max(log.end_offset - number, 0))


def test_retention_drops_inactive_segments_when_they_expire(tmp_path: Path) -> None:
    clock = ManualClock(wall_ms=NOW)
    one = len(batch([b"x" * 900]))
    config = LogConfig(retention_bytes=5 * one, retention_ms=1000, segment_bytes=2 * one)
    log = on_disk(tmp_path, config, clock=clock)
    starts = []
    for number in range(9):
        put(log, b"x" * 900, time=NOW + number)
        starts.append(log.log_start_offset)
    assert (starts, log.size) == ([0, 0, 0, 0, 0, 0, 2, 2, 4], 5 * one)
    assert sorted(int(path.stem) for path in tmp_path.glob("*.log")) == [4, 6, 8]
    clock.advance(1.005)
    log.retain()
    assert log.log_start_offset == 4
    clock.advance(0.001)
    log.retain()
    assert log.log_start_offset == 6
    log.high_watermark = 8
    clock.advance(10)
    log.retain()
    assert log.log_start_offset == 8
    log.high_watermark = 9
    log.retain()
    assert (log.log_start_offset, log.end_offset, log.size) == (9, 9, 0)
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [f"{9:020d}.log"]
    assert put(log, b"after") == 9
    log.high_watermark = 10
    before = contents(log)
    assert contents(killed(log, tmp_path, config)) == before


def test_segments_behind_a_damaged_segment_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = on_disk(tmp_path, SMALL)
    fill(log)
    second = sorted(tmp_path.glob("*.log"))[1]
    offset = int(second.stem)
    before = read_all(log, 0, offset)
    second.write_bytes(second.read_bytes()[:50])
    with caplog.at_level(logging.WARNING):
        log = killed(log, tmp_path, SMALL)
    assert (log.end_offset, read_all(log, 0)) == (offset, before)
    assert "50 bytes" in caplog.text
    assert "is dropped: the segment before it has lost its last batches" in caplog.text
    assert put(log, b"next") == offset


@pytest.mark.parametrize("damage", [b"", b"?" * 7, b"\0" * 16, b"\0\0\0\1\0\0\0\2" * 4, b"\0\0\0\1\x7f\0\0\0"])
@pytest.mark.parametrize("suffix", ["index", "timeindex", "snapshot"])
def test_damaged_index_is_made_anew(tmp_path: Path, suffix: str, damage: bytes) -> None:
    log = on_disk(tmp_path, SMALL)
    fill(log)
    before = contents(log)
    log.close()
    for path in tmp_path.glob(f"*.{suffix}"):
        path.write_bytes(damage)
    log = on_disk(tmp_path, SMALL, log.end_offset)
    assert contents(log) == before
    put(log, b"next")
    log.close()
    for path in tmp_path.glob("*index"):
        entry = {".index": OFFSETS, ".timeindex": TIMES}.get(path.suffix)
        assert entry is None or SparseIndex(path, entry).load()


def test_plausible_but_wrong_index_loses_no_batch(tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    for _ in range(20):
        put(log, b"x" * 1000)
    before = contents(log)
    log.close()
    (tmp_path / f"{0:020d}.index").write_bytes(OFFSETS.pack(3, 5000))
    assert contents(on_disk(tmp_path, recovery_point=20)) == before


def test_epochs_are_derived_from_batches_without_the_checkpoint(tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    for epoch in (1, 1, 4):
        put(log, b"x", epoch=epoch)
    (tmp_path / "leader-epoch-checkpoint").write_text("what?\n")
    assert killed(log, tmp_path).leader_epochs.entries == [(1, 0), (4, 2)]
    (tmp_path / "leader-epoch-checkpoint").unlink()
    assert killed(log, tmp_path).leader_epochs.entries == [(1, 0), (4, 2)]


def test_damaged_snapshot_is_ignored(tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    put(log, b"x", producer=(7, 0, 0))
    before = contents(log)
    log.close()
    (path,) = tmp_path.glob("*.snapshot")
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert contents(on_disk(tmp_path, recovery_point=1)) == before


def test_truncation_deletes_the_snapshots_behind_it(tmp_path: Path) -> None:
    log = on_disk(tmp_path, LogConfig(segment_bytes=300))
    for sequence in range(5):
        put(log, b"x" * 50, producer=(7, 0, sequence))
    log.truncate_to(1)
    for sequence in range(4):
        put(log, b"other", producer=(9, 0, sequence))
    before = contents(log)
    # No new segment ends where an old one ended, so no new snapshot replaces an old one.
    assert contents(killed(log, tmp_path, PLAIN)) == before


def test_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    put(log, b"before", producer=(7, 0, 0))
    kept = contents(log)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.size + 500, limits[1]))
    try:
        with pytest.raises(
            KafkaStorageError, match=rf"cannot write {re.escape(str(tmp_path))}.*\.log: .*; check the disk, and"
        ):
            put(log, b"x" * 5000, producer=(7, 0, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(log) == kept
    assert (tmp_path / f"{0:020d}.log").stat().st_size == log.size
    assert put(log, b"x" * 5000, producer=(7, 0, 1)) == 1
    before = contents(log)
    assert contents(killed(log, tmp_path)) == before


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    advice = r"cannot open .*\.log: Permission denied; check the disk, and the file's owner"
    with mock.patch("os.open", refuse), pytest.raises(KafkaStorageError, match=advice):
        on_disk(tmp_path)


def test_log_is_flushed_every_flush_messages_records(tmp_path: Path) -> None:
    log = on_disk(tmp_path, LogConfig(flush_messages=3))
    points = []
    for _ in range(7):
        put(log, b"x")
        points.append(log.segments.recovery_point)
    assert points == [0, 0, 3, 3, 3, 6, 6]


def test_old_messages_on_disk_keep_their_offsets(tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    for number in range(60):
        time = NOW + number
        inner = b"".join(message(b"v" * 40, offset=one, time=time) for one in range(5))
        data = message(b"first" * 30) + message(gzip.compress(inner), attributes=1, time=time) + message(b"last")
        info, offsets = check_message_set(memoryview(data), Limits())
        stamp(kept := bytearray(data), offsets, log.end_offset)
        log.append(kept, info, 0)
    before = stored(log)
    assert log.end_offset == 420
    log = killed(log, tmp_path)
    assert (log.end_offset, stored(log)) == (420, before)
    assert [log.offset_at(NOW + number) for number in (0, 1, 59)] == [
        (7 * n + 1 - (not n), NOW + n, 0) for n in (0, 1, 59)
    ]
    for offset in range(420):
        (found,) = log.read(offset, 1, True)
        assert int.from_bytes(found[:8], "big") == offset + (6 - offset % 7 - 1 if 1 <= offset % 7 <= 5 else 0)


def test_segments_are_named_for_their_first_offsets(tmp_path: Path) -> None:
    log = on_disk(tmp_path, LogConfig(segment_bytes=100))
    for values in ([b"a"], [b"b", b"c"], [b"d"]):
        put(log, *values)
    names = [int(path.stem) for path in sorted(tmp_path.glob("*.log"))]
    assert names == [0, 1, 3]


def test_inactive_segment_is_trusted_once_it_is_flushed(tmp_path: Path) -> None:
    tasks: list[Callable[[], None]] = []

    class Flusher(Executor):
        """Collects the submitted tasks. The test runs them."""

        def submit(self, work: Any, /, *args: Any, **more: Any) -> Future[Any]:
            future: Future[Any] = Future()
            tasks.append(lambda: future.set_result(work(*args, **more)))
            return future

    log = on_disk(tmp_path, LogConfig(segment_bytes=100), flusher=Flusher())
    synced: list[str] = []
    with mock.patch("kafkabuf.broker.storage.segment.sync_path", side_effect=lambda path: synced.append(path.name)):
        for _ in range(4):
            put(log, b"x")
        assert (len(tasks), log.segments.recovery_point) == (3, 0)
        tasks.pop(0)()
        assert log.segments.recovery_point == 1
        assert synced == [f"{0:020d}.{suffix}" for suffix in ("log", "index", "timeindex")]
        log.truncate_to(2)
        put(log, b"other")
        for task in tasks[:2]:
            task()
        assert log.segments.recovery_point == 1
        tasks[2]()
        assert log.segments.recovery_point == 2


def cut_index(data: bytes) -> bytes:
    return data[:-2]


def lose_entry(data: bytes) -> bytes:
    return data[:-ENTRY]


def lose_all_entries(data: bytes) -> bytes:
    return b""


def overwrite_index(data: bytes) -> bytes:
    return b"\xff" * len(data)


def raise_version(data: bytes) -> bytes:
    return b"\0\1" + data[2:]


def swap_entries(data: bytes) -> bytes:
    return data[ENTRY : 2 * ENTRY] + data[:ENTRY] + data[2 * ENTRY :]


def move_entry(data: bytes) -> bytes:
    """The first entry says that its transaction ended before it began."""
    return data[:10] + struct.pack(">qq", 3, 2) + data[26:]


def change_producer(data: bytes) -> bytes:
    return data[:9] + b"\x40" + data[10:]


def change_last_offset(data: bytes) -> bytes:
    """The last entry says that its transaction ended an offset earlier."""
    (last,) = struct.unpack_from(">q", data, len(data) - 16)
    return data[:-16] + struct.pack(">q", last - 1) + data[-8:]


def double_first_entry(data: bytes) -> bytes:
    """The first entry twice, the second time an offset later."""
    _, producer_id, first, last, stable = struct.unpack_from(">hqqqq", data)
    return data[:ENTRY] + struct.pack(">hqqqq", 0, producer_id, first, last + 1, stable) + data[ENTRY:]


ENTRY = 34
DAMAGES = [
    cut_index, lose_entry, lose_all_entries, overwrite_index, raise_version, swap_entries, move_entry,
    change_producer, change_last_offset, double_first_entry,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("segment", [0, 1, 2])
@pytest.mark.parametrize("closed", [True, False])
def test_damaged_transaction_index_hides_no_aborted_transaction(
    tmp_path: Path, damage: Callable[[bytes], bytes], segment: int, closed: bool
) -> None:
    log = on_disk(tmp_path)
    for turn in range(3):
        # A transaction of producer 8 is open where the segment ends.
        put_in_transaction(log, (8, 0, turn), b"open")
        for sequence in range(3):
            put_in_transaction(log, (7, 0, 3 * turn + sequence), b"never")
            end(log, (7, 0, sequence), False)
        if turn < 2:
            log.roll()
    end(log, (8, 0, 0), False)
    expected = contents(log)
    assert len(log.aborted(0, log.end_offset)) == 10
    if closed:
        log.close()
    else:
        kill(log)
    index = sorted(tmp_path.glob("*.txnindex"))[segment]
    index.write_bytes(damage(index.read_bytes()))
    opened = on_disk(tmp_path, recovery_point=log.end_offset if closed else 0)
    assert contents(opened) == expected
    kill(opened)
    # The index is whole again: the next process needs no repair.
    assert len(index.read_bytes()) == (4 if segment == 2 else 3) * ENTRY
    assert contents(on_disk(tmp_path, recovery_point=log.end_offset)) == expected


def test_log_that_lost_its_file_says_what_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = on_disk(tmp_path)
    put(log, b"a", b"b")
    log.close()
    assert not caplog.messages
    (tmp_path / f"{0:020}.log").unlink()
    opened = on_disk(tmp_path, recovery_point=log.end_offset)
    assert opened.end_offset == 0
    assert caplog.messages == [
        f"{tmp_path} ends at offset 0, and its recovery point was {log.end_offset}: the batches between them are gone"
    ]
