"""Compaction of a log alone: what stays, where, and in which bytes."""

from __future__ import annotations

import asyncio
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kafkabuf.broker.log.decoding import Decoder
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.upkeep import cleaning
from kafkabuf.broker.log.upkeep.cleaner import LogCleaner, cleanable_end
from kafkabuf.broker.log.upkeep.cleaning import Cleaning
from kafkabuf.broker.records.config import LogConfig
from kafkabuf.broker.storage.batches import read_head
from kafkabuf.broker.storage.swap import CleanedSegment
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import ManualClock
from kafkabuf.errors import CorruptMessageError, OutOfOrderSequenceNumberError
from tests.broker.log.cleaning_support import COMPACTED, Read, clean, clean_closed, consume, fill, keyed, logs, table
from tests.broker.log.support import append, contents, end, put, stored
from tests.broker.raw_client import NOW, batch, message
from tests.broker.storage.test_file_log import dump
from tests.effort import effort

SEEDS = range(effort(60))


@pytest.fixture(params=["memory", "disk"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> PartitionLog:
    return logs(None if request.param == "memory" else tmp_path / "log")


def advance(log: PartitionLog, milliseconds: int) -> None:
    assert isinstance(log.clock, ManualClock)
    log.clock.advance(milliseconds / 1000)


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in consume(log, committed=False)]


# ---- what stays


def test_last_record_of_each_key_stays_at_its_offset(log: PartitionLog) -> None:
    for number in range(6):
        keyed(log, (b"a", b"%d" % number), (b"b%d" % (number % 2), b"x"))
    assert clean(log) == 9
    assert [(record.offset, record.key, record.value) for record in consume(log)] == [
        (9, b"b0", b"x"),
        (10, b"a", b"5"),
        (11, b"b1", b"x"),
    ]
    assert (log.log_start_offset, log.end_offset, log.high_watermark) == (0, 12, 12)


@pytest.mark.parametrize("seed", SEEDS)
def test_cleaned_log_has_one_record_of_each_key_and_the_same_table(seed: int, tmp_path: Path) -> None:
    for folder in (None, tmp_path / "log"):
        log = logs(folder)
        fill(log, seed)
        before, every = consume(log), set(consume(log, committed=False))
        gone = clean(log)
        after = consume(log, committed=False)
        assert len({record.key for record in after}) == len(after), "one of a key, none of an aborted transaction"
        assert table(after) == table(before)
        assert set(after) <= every, "offsets, timestamps and contents stay"
        assert len(every) - len(after) == gone
        assert consume(log) == after


@pytest.mark.parametrize("seed", SEEDS)
def test_later_cleanings_end_with_the_last_values_alone(seed: int, tmp_path: Path) -> None:
    log = logs(tmp_path / "log")
    fill(log, seed)
    log.config = replace(COMPACTED, segment_bytes=1 << 20)
    before = table(consume(log))
    for _ in range(4):
        clean(log)
        advance(log, 1001)
    assert {record.key: record for record in consume(log)} == before
    # One transaction of each of the two producers may have the last sequence, and another the last batch.
    assert len(log.aborted(0, log.end_offset)) <= 3
    *batches, _ = log.batches()
    transactions: set[int] = set()
    for head in (read_head(kept.data, 0, 0) for kept in batches):
        if head.info.transactional and not head.control:
            transactions.add(head.info.producer_id)
        elif head.control and not head.empty:
            assert head.info.producer_id in transactions, "a control record without a batch of its transaction"
            transactions.discard(head.info.producer_id)


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster_reads_a_cleaned_log_as_clients_do(seed: int) -> None:
    log = logs(None)
    fill(log, seed)
    for _ in range(4):
        end = log.last_stable_offset
        aborted = [(ended.producer_id, ended.first_offset) for ended in log.aborted(0, end)]
        for committed in (True, False):
            decoder = Decoder("t", 0, 0, aborted if committed else None)
            records = [record for data in log.read(0, 1 << 30, True, end) for record in decoder.records(data)]
            read = [Read(record.offset, record.timestamp, record.key, record.value) for record in records]
            assert read == consume(log, committed)
            assert decoder.offset == end
        clean(log)
        advance(log, 1001)


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_and_disk_and_a_second_process_have_the_same_cleaned_log(seed: int, tmp_path: Path) -> None:
    memory, disk = logs(None), logs(tmp_path / "log")
    for log in (memory, disk):
        fill(log, seed)
        clean_closed(log)
        fill_more(log)
        clean(log)
    expected = contents(disk)
    assert expected == contents(memory)
    again = logs(tmp_path / "log", recovery_point=disk.segments.recovery_point)
    assert contents(again) == expected
    again.close()
    assert contents(logs(tmp_path / "log", recovery_point=again.end_offset)) == expected


def fill_more(log: PartitionLog) -> None:
    for number in range(12):
        keyed(log, (b"k%d" % (number % 3), b"more%d" % number), codec=number % 5)


@pytest.mark.parametrize("seed", range(effort(20)))
def test_follower_takes_over_a_cleaned_log(seed: int) -> None:
    leader, follower = logs(None), logs(None)
    fill(leader, seed)
    clean(leader)
    for data in leader.read(0, 1 << 30, True):
        follower.append_as_follower(data)
    assert stored(follower) == stored(leader)
    assert consume(follower) == consume(leader)
    # Both go on from the same sequences.
    last = {producer_id: entry.last_sequence for producer_id, entry in leader.producers}
    assert {producer_id: entry.last_sequence for producer_id, entry in follower.producers} == last


def test_active_segment_is_never_cleaned(log: PartitionLog) -> None:
    for number in range(3):
        keyed(log, (b"a", b"%d" % number))
    assert clean_closed(log) == 0
    log.roll()
    keyed(log, (b"a", b"newest"))
    assert clean_closed(log) == 2
    assert offsets(log) == [2, 3], "the record in the active segment does not count"


def test_records_from_the_first_unstable_offset_on_stay(log: PartitionLog) -> None:
    keyed(log, (b"a", b"1"), (b"a", b"2"))
    log.roll()
    keyed(log, (b"a", b"3"), producer=(8, 0, 0), transactional=True)
    log.roll()
    keyed(log, (b"a", b"4"))
    assert clean(log) == 1
    assert offsets(log) == [1, 2, 3]
    end(log, (8, 0, 0), committed=True)
    assert clean(log) == 2
    assert offsets(log) == [3]


def test_records_behind_the_high_watermark_stay(log: PartitionLog) -> None:
    for _ in range(3):
        keyed(log, (b"a", b"x"))
        log.roll()
    log.high_watermark = 2
    assert clean(log) == 1
    assert offsets(log) == [1, 2]


def test_aborted_record_does_not_hide_a_committed_record(log: PartitionLog) -> None:
    keyed(log, (b"a", b"committed"))
    keyed(log, (b"a", b"aborted"), producer=(8, 0, 0), transactional=True)
    log.roll()
    end(log, (8, 0, 0), committed=False)
    # The marker lies in the active segment.
    assert clean_closed(log) == 1
    assert [record.value for record in consume(log)] == [b"committed"]


def test_aborted_transaction_of_the_clean_part_hides_no_later_record_of_its_producer(log: PartitionLog) -> None:
    keyed(log, (b"b", b"aborted"), producer=(8, 0, 0), transactional=True)
    end(log, (8, 0, 0), committed=False)
    keyed(log, (b"a", b"1"))
    assert clean(log) == 1
    keyed(log, (b"a", b"2"), producer=(8, 0, 1), transactional=True)
    end(log, (8, 0, 0), committed=True)
    assert clean(log) == 1
    assert [record.value for record in consume(log)] == [b"2"]


def test_records_younger_than_min_compaction_lag_stay(log: PartitionLog) -> None:
    log.config = replace(COMPACTED, min_compaction_lag_ms=1000)
    keyed(log, (b"a", b"1"), (b"a", b"2"), time=NOW - 2000)
    log.roll()
    keyed(log, (b"a", b"3"), time=NOW - 500)
    assert clean(log) == 1
    assert offsets(log) == [1, 2]
    advance(log, 501)
    assert clean(log) == 1
    assert offsets(log) == [2]


# ---- tombstones, control records


def test_tombstone_stays_for_delete_retention_ms_after_its_first_cleaning(log: PartitionLog) -> None:
    keyed(log, (b"a", b"1"), (b"b", b"1"), (b"a", None))
    keyed(log, (b"c", b"1"))
    advance(log, 5000)
    assert clean(log) == 1
    advance(log, 999)
    assert clean(log) == 0
    assert table(consume(log)).keys() == {b"b", b"c"}
    assert offsets(log) == [1, 2, 3]
    assert [record.timestamp for record in consume(log)] == [NOW + 1, NOW + 2, NOW]
    advance(log, 1)
    assert clean(log) == 1
    assert offsets(log) == [1, 3]


def test_control_record_stays_for_delete_retention_ms_after_its_transaction(log: PartitionLog) -> None:
    keyed(log, (b"a", b"1"), producer=(8, 0, 0), transactional=True)
    end(log, (8, 0, 0), committed=False)
    # Another epoch of the producer: its last sequence keeps no batch of the transaction.
    keyed(log, (b"a", b"2"), producer=(8, 1, 0))
    keyed(log, (b"b", b"2"))

    def control() -> int:
        return sum(bool(kept.data[22] & 0x20) for kept in log.batches())

    assert clean(log) == 1
    assert (control(), len(log.aborted(0, 4))) == (1, 1), "the first cleaning saw a batch of the transaction"
    assert clean(log) == 0
    assert (control(), len(log.aborted(0, 4))) == (1, 0), "the second gave the control record its delete horizon"
    advance(log, 1000)
    assert clean(log) == 1
    assert control() == 0


def test_last_sequence_of_a_producer_outlives_its_records(log: PartitionLog, tmp_path: Path) -> None:
    keyed(log, (b"a", b"1"), (b"b", b"1"), producer=(7, 3, 0))
    keyed(log, (b"a", b"2"), (b"b", b"2"), (b"c", b"2"))
    assert clean(log) == 2
    empty, full = log.batches()
    assert (empty.base_offset, empty.last_offset, len(empty.data), len(consume(log))) == (0, 1, 61, 3)
    follower = logs(None)
    for data in (empty.data, full.data):
        follower.append_as_follower(data)
    with pytest.raises(OutOfOrderSequenceNumberError, match="2 is next"):
        keyed(follower, (b"a", b"3"), producer=(7, 3, 3))
    assert keyed(follower, (b"a", b"3"), producer=(7, 3, 2)) == 5


def test_batch_that_nobody_needs_goes_whole(log: PartitionLog) -> None:
    keyed(log, (b"a", b"1"))
    keyed(log, (b"a", b"2"))
    clean(log)
    assert [kept.base_offset for kept in log.batches()] == [1]


# ---- bytes


@pytest.mark.parametrize("codec", range(5))
def test_batch_is_compressed_again_with_its_codec(log: PartitionLog, codec: int) -> None:
    keyed(log, *[(b"a", b"x" * 9000), (b"b", b"y" * 90_000), (b"c", None)], codec=codec)
    keyed(log, (b"a", b"z"))
    assert clean(log) == 1
    first = log.batches()[0]
    assert (first.data[22] & 7, first.base_offset, first.last_offset) == (codec, 0, 2)
    assert consume(log) == [
        Read(1, NOW + 1, b"b", b"y" * 90_000),
        Read(2, NOW + 2, b"c", None),
        Read(3, NOW, b"a", b"z"),
    ]
    if codec:
        assert len(first.data) < 20_000


def test_unchanged_batch_keeps_its_bytes(log: PartitionLog) -> None:
    keyed(log, (b"a", b"1"), codec=1)
    keyed(log, (b"b", b"1"), codec=3)
    before = stored(log)
    clean(log)
    assert stored(log) == before


def test_message_sets_stay_whole(log: PartitionLog) -> None:
    from kafkabuf.broker.records.config import Limits
    from kafkabuf.broker.records.message_set import check_message_set, stamp

    data = message(b"old", key=b"a") + message(b"older", key=b"a", offset=1)
    info, places = check_message_set(memoryview(data), Limits())
    kept = bytearray(data)
    stamp(kept, places, 0)
    log.append(kept, info, 0)
    keyed(log, (b"a", b"1"), (b"a", b"2"))
    assert clean(log) == 1
    assert stored(log).startswith(kept)
    assert log.end_offset == 4


# ---- reading across gaps


def test_reads_and_lookups_work_across_gaps(log: PartitionLog) -> None:
    log.config = replace(COMPACTED, segment_bytes=1 << 20)
    for number in range(20):
        keyed(log, (b"a" if number != 7 else b"b", b"x"), time=NOW + number)
    clean(log)
    assert offsets(log) == [7, 19]
    for offset in range(20):
        first = struct.unpack_from(">q", log.read(offset, 1, True)[0])[0]
        assert first == (7 if offset <= 7 else 19)
        assert log.available(offset) == sum(len(kept.data) for kept in log.batches() if kept.last_offset >= offset)
    assert log.offset_at(NOW + 3) == (7, NOW + 7, 0)
    assert log.offset_at(NOW + 8) == (19, NOW + 19, 0)
    assert log.newest() == (19, NOW + 19, 0)
    assert keyed(log, (b"c", b"x")) == 20


def test_newest_record_is_found_behind_an_empty_batch(log: PartitionLog) -> None:
    keyed(log, (b"a", b"1"), producer=(7, 0, 0), time=NOW + 500)
    keyed(log, (b"a", b"2"), time=NOW)
    clean(log)
    assert log.newest() == (1, NOW, 0)


def test_truncation_in_a_gap_keeps_the_offset(log: PartitionLog) -> None:
    for _ in range(5):
        keyed(log, (b"a", b"x"))
    keyed(log, (b"b", b"x"))
    clean(log)
    assert offsets(log) == [4, 5]
    log.truncate_to(5)
    assert (log.end_offset, offsets(log)) == (5, [4])


def test_records_that_delete_records_has_dropped_stay_dropped(log: PartitionLog) -> None:
    for _ in range(6):
        keyed(log, (b"a", b"x"), (b"b", b"x"))
        log.roll()
    log.delete_before(5)
    clean(log)
    assert (log.log_start_offset, offsets(log)) == (5, [10, 11])


def test_small_segments_become_one(tmp_path: Path) -> None:
    log = logs(tmp_path)
    for number in range(100):
        keyed(log, (b"k%d" % (number % 5), b"x" * 20))
    log.roll()
    assert len(list(tmp_path.glob("*.log"))) > 10
    for _ in range(3):
        clean(log)
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [f"{0:020d}.log", f"{100:020d}.log"]


# ---- the end of a segment


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_segment_ends_after_segment_ms_of_the_records_or_of_the_clock(log: PartitionLog, seconds: float) -> None:
    log.config = replace(COMPACTED, segment_ms=1000)
    keyed(log, (b"a", b"1"))
    keyed(log, (b"a", b"2"), time=NOW + round(seconds * 1000))
    assert len(log.segments.closed()) == (seconds > 1)
    advance(log, round(seconds * 1000))
    keyed(log, (b"a", b"3"), time=NOW)
    assert len(log.segments.closed()) == (seconds > 1) * 1
    assert log.segments.aged(log.config, log.clock.time_ms()) is False


def test_segment_of_a_log_that_was_not_compacted_ends_later(log: PartitionLog) -> None:
    log.config = LogConfig()
    keyed(log, (b"a", b"1"))
    log.config = replace(COMPACTED, max_compaction_lag_ms=1000)
    assert not log.segments.aged(log.config, log.clock.time_ms())
    advance(log, 1001)
    assert log.segments.aged(log.config, log.clock.time_ms())


# ---- crashes


def test_kill_at_each_step_of_a_swap_leaves_the_log_before_or_after_the_cleaning(tmp_path: Path) -> None:
    log = logs(tmp_path / "log", recovery_point=0)
    fill(log, 5)
    log.roll()
    log.flush()
    assert len(log.segments.closed()) > 3
    log.config = replace(COMPACTED, segment_bytes=1 << 20)
    before = contents(log)
    states: list[Path] = []
    plain = Path.replace, Path.unlink

    def keep() -> None:
        states.append(tmp_path / f"state{len(states)}")
        shutil.copytree(tmp_path / "log", states[-1])

    def replaced(path: Path, target: Path) -> Path:
        keep()
        return plain[0](path, target)

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        if path.exists():
            keep()
        plain[1](path, missing_ok)

    with mock.patch.object(Path, "replace", replaced), mock.patch.object(Path, "unlink", unlinked):
        clean_closed(log)
    keep()
    after = contents(log)
    assert after["stored"] != before["stored"]
    seen = []
    for state in states:
        for recovery_point in (0, log.end_offset):
            again = shutil.copytree(state, tmp_path / "again")
            found = contents(logs(again, recovery_point=recovery_point))
            assert found in (before, after)
            seen.append(found == after)
            assert not list(again.glob("*.cleaned")) + list(again.glob("*.swap"))
            shutil.rmtree(again)
    assert seen == sorted(seen), "once the cleaning counts, it counts for good"
    assert (seen[0], seen[-1]) == (False, True)


def test_cleaning_gives_up_when_the_log_is_truncated_meanwhile(log: PartitionLog) -> None:
    for _ in range(600):
        keyed(log, (b"a", b"x"))
    plain = type(log.segments).replace

    def truncated(segments: object, group: object) -> object:
        replacement = plain(segments, group)  # type: ignore[arg-type]
        log.truncate_to(1)
        return replacement

    with mock.patch.object(type(log.segments), "replace", truncated):
        assert clean(log) == 0
    assert (log.end_offset, log.clean_offset, offsets(log)) == (1, 0, [0])


def test_kafkas_tool_reads_a_cleaned_log(tmp_path: Path) -> None:
    log = logs(tmp_path)
    for seed in range(3):
        fill_with_new_producers(log, seed)
    expected = [record.offset for record in consume(log, committed=False)]
    clean(log)
    put(log, b"behind")
    log.close()
    text = dump(tmp_path, gaps=True)
    kept = [int(line.split()[2]) for line in text.splitlines() if line.startswith("| offset:") and "endTxn" not in line]
    assert set(kept) < set(expected) | {log.end_offset - 1}
    assert kept == [record.offset for record in consume(logs(tmp_path), committed=False)]
    assert "deleteHorizonMs: OptionalLong[" in text


def fill_with_new_producers(log: PartitionLog, seed: int) -> None:
    for number in range(12):
        keyed(log, (b"k%d" % (number % 3), b"v%d" % seed), (b"t%d" % number, None), codec=number % 5)
        owner = 100 * seed + number
        keyed(log, (b"k%d" % (number % 4), b"x"), producer=(owner, 0, 0), transactional=True)
        end(log, (owner, 0, 0), committed=number % 2 == 0)
    append(log, batch([b"x"] * 3, keys=[b"p", b"q", b"p"]))


# ---- large batches, many keys


def test_others_have_their_turns_while_a_large_batch_is_cleaned(log: PartitionLog) -> None:
    log.config = replace(COMPACTED, segment_bytes=1 << 20)
    keyed(log, *((b"%d" % (number // 2), b"") for number in range(10_000)), codec=1)
    turns = 0

    async def cleaned() -> int:
        nonlocal turns
        cleaner = LogCleaner(Timer(None, log.clock), 1.0)  # type: ignore[arg-type]
        task = asyncio.create_task(cleaner.clean_now(log))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        return await task

    assert asyncio.run(cleaned()) == 5_000
    assert turns > 60


@pytest.mark.parametrize("seed", range(10))
def test_log_with_more_keys_than_a_cleaning_knows_is_cleaned_in_several_rounds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, log = logs(None), logs(None)
    for one in (expected, log):
        fill(one, seed)
    clean(expected)
    monkeypatch.setattr(cleaning, "_MOST_KEYS", 2)
    clean(log)
    assert log.clean_offset == expected.clean_offset
    assert consume(log) == consume(expected)


def test_tombstone_behind_the_known_keys_stays(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"a", None))
    log.roll()
    monkeypatch.setattr(cleaning, "_MOST_KEYS", 1)
    for known in (1, 2):
        asyncio.run(Cleaning(log, cleanable_end(log)).run())
        assert log.clean_offset == known
        advance(log, 1000)
    assert table(consume(log)).keys() == {b"b", b"c"}


def test_batch_that_becomes_too_large_is_not_unpacked(log: PartitionLog) -> None:
    log.config = replace(COMPACTED, max_message_bytes=1000)
    keyed(log, (b"a", bytes(33 << 20)), codec=1)  # 32 MiB are always unpacked
    with pytest.raises(CorruptMessageError):
        clean(log)
    log.config = replace(COMPACTED, max_message_bytes=2 << 20)
    assert clean(log) == 0


@pytest.mark.parametrize("call", ["append", "written"])
def test_cleaning_of_a_deleted_log_leaves_the_next_log_in_its_folder_alone(tmp_path: Path, call: str) -> None:
    log = logs(tmp_path / "log")
    for _ in range(50):
        keyed(log, (b"a", b"x"))
    plain = getattr(CleanedSegment, call)

    def deleted(*arguments: Any) -> Any:
        if not log.closed:
            log.delete()
            logs(tmp_path / "log").close()
        return plain(*arguments)

    with mock.patch.object(CleanedSegment, call, deleted):
        assert clean(log) == 0
    names = {path.suffix for path in (tmp_path / "log").iterdir()}
    assert not names & {".swap", ".cleaned"}
