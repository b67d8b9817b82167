"""A process is killed, and the next one finds its records in the file: whole, in order, and once."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.batches import compression
from kafkabuf.batches._split import split
from kafkabuf.batches.codec import Codec
from kafkabuf.errors import KafkaError
from rigs.producer import PRODUCER_ID, SLAB, TOPIC, Rig, assert_whole, only_request
from tests.batches.split_support import Topic, refuse
from tests.effort import effort
from tests.waiting import wait_until

Storm = Callable[[Rig], list[bytes]]


def one_record(rig: Rig) -> list[bytes]:
    rig.send(b"only")
    return [b"only"]


def many_records(rig: Rig) -> list[bytes]:
    values = [b"%d" % number for number in range(300)]
    for value in values:
        rig.send(value, key=b"key", headers=[("h", b"1")] if rig.accumulator.magic == 2 else None)
    return values


def growing_batch(rig: Rig) -> list[bytes]:
    values = [b"%d" % number * size for number, size in enumerate((1, 10, 50, 90, 150))]
    for value in values:
        rig.send(value)
    return values


def oversize_record(rig: Rig) -> list[bytes]:
    values = [b"small", b"x" * 3 * SLAB, b"behind"]
    for value in values:
        rig.send(value)
    return values


def table(rig: Rig) -> list[bytes]:
    values = [b"row %d" % number for number in range(200)]
    rig.producer.send_arrow(pa.record_batch({"value": values, "partition": pa.array([0] * 200, pa.int32())}), TOPIC)
    return values


def in_flight(rig: Rig) -> list[bytes]:
    values = many_records(rig)
    rig.turn()
    return values


def partly_acknowledged(rig: Rig) -> list[bytes]:
    rig.send(b"acknowledged")
    rig.ack_all()
    return many_records(rig)


STORMS: list[Storm] = [one_record, many_records, growing_batch, oversize_record, table, in_flight, partly_acknowledged]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compressed": {"compression_type": "gzip"},
    "magic 1": {"record_magic": 1, "enable_idempotence": False},
    "magic 1, compressed": {"record_magic": 1, "enable_idempotence": False, "compression_type": "gzip"},
    "without numbers": {"enable_idempotence": False},
}


def killed(rig: Rig, path: Path) -> Path:
    """The file as a kill at this moment would leave it."""
    assert rig.file is not None
    return Path(shutil.copy(rig.file.path, path))


def delivered(rig: Rig) -> list[bytes | None]:
    rig.ack_all()
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)
    return [record.value for record in rig.log.get((TOPIC, 0), [])]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("storm", STORMS)
def test_next_process_delivers_what_the_killed_one_took(path: Path, storm: Storm, settings: dict[str, Any]) -> None:
    values = storm(rig := Rig(file=path, **settings))
    after = Rig(file=killed(rig, path.with_name("left")), **settings)
    assert after.recovered is not None
    assert (after.recovered.records, after.recovered.damaged) == ({(TOPIC, 0): len(values)}, [])
    after.send(b"new")
    assert delivered(after) == [*values, b"new"]


def test_batch_keeps_the_numbers_under_which_it_may_have_been_sent(path: Path) -> None:
    rig = Rig(file=path)
    rig.fill(batches=3)
    before = [rig.drain_one() for _ in range(2)]
    after = Rig(file=killed(rig, path.with_name("left")))
    assert [(b.producer_id, b.producer_epoch, b.base_sequence) for b in after.incomplete()] == [
        *((b.producer_id, b.producer_epoch, b.base_sequence) for b in before),
        (-1, -1, -1),
    ]


def test_delivered_records_leave_an_empty_file(path: Path) -> None:
    rig = Rig(file=path)
    many_records(rig)
    rig.ack_all()
    after = Rig(file=killed(rig, path.with_name("left")))
    assert after.recovered is not None
    assert not after.recovered.records
    assert_whole(after.pool)


def test_failed_records_do_not_come_back(path: Path) -> None:
    rig = Rig(file=path, delivery_timeout_ms=1_000, request_timeout_ms=500, linger_ms=0)
    rig.lead(-1)
    rig.send(b"expires")
    rig.clock.advance(2)
    rig.turn()
    assert not rig.incomplete()
    after = Rig(file=killed(rig, path.with_name("left")))
    assert after.recovered is not None
    assert not after.recovered.records


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("seed", range(effort(40)))
def test_parts_of_a_split_batch_come_back_as_they_are(path: Path, seed: int, settings: dict[str, Any]) -> None:
    """Of batches that the broker finds too large: the parts that were acknowledged stay away, the others go once."""
    draw = random.Random(seed)
    limit = draw.choice((270, 500))
    sent: list[bytes | None] = [b"%03d" % n * draw.choice((1, 5, 60)) for n in range(draw.choice((3, 12, 60)))]
    there: list[bytes | None] = []
    settings = {"linger_ms": 0, "max_in_flight_requests_per_connection": 1, **settings}
    rig = Rig(file=path, **settings)
    for value in sent:
        rig.send(value)
    for process in range(3):
        topic = Topic(rig, limit)
        for _ in range(draw.randrange(10)):
            rig.turn()
            topic.answer_under_way()
            rig.clock.advance(0.5)
        rig.turn()
        there += topic.values()
        rig = Rig(file=killed(rig, path.with_name(f"left {process}")), **settings)
        assert rig.recovered is not None
        assert (rig.recovered.records.total(), rig.recovered.damaged) == (len(sent) - len(there), [])
        assert [batch.count for batch in rig.incomplete()] == [batch.count for batch in rig.queue().batches]
    topic = Topic(rig, limit)
    topic.serve()
    assert there + topic.values() == sent
    assert rig.recovered is not None
    assert (rig.recovered.delivered, rig.recovered.pending) == (rig.recovered.records, 0)
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_failed_part_of_a_split_batch_does_not_come_back(path: Path, settings: dict[str, Any]) -> None:
    rig = Rig(file=path, linger_ms=0, **settings)
    for _ in range(8):
        rig.send(random.Random(1).randbytes(50))
    for _ in range(2):
        split(rig.accumulator, rig.drain_one())
    front, middle, *rest = rig.queue().batches
    middle.fail(KafkaError("failed"))
    after = Rig(file=killed(rig, path.with_name("left")), linger_ms=0, **settings)
    assert [(b.first, b.count, b.base_sequence) for b in after.queue().batches] == [
        (b.first, b.count, b.base_sequence) for b in (front, *rest)
    ]
    assert len(delivered(after)) == 8 - middle.count


def test_last_part_fails_before_the_first_and_the_first_comes_back(path: Path) -> None:
    rig = Rig(file=path)
    for value in (b"first", b"last"):
        rig.send(value)
    split(rig.accumulator, rig.drain_one())
    rig.queue().batches[1].fail(KafkaError("failed"))
    after = Rig(file=killed(rig, path.with_name("left")))
    assert delivered(after) == [b"first"]


def test_numbers_that_a_part_got_but_never_used_are_its_own(path: Path) -> None:
    rig = Rig(file=path)
    for value in (b"first", b"last"):
        rig.send(value)
    split(rig.accumulator, rig.drain_one())
    state = rig.accumulator.producer_state
    assert state is not None
    state.set_producer_id_and_epoch(PRODUCER_ID, 1)
    state.start_sequences_at_beginning(rig.queue())
    after = Rig(file=killed(rig, path.with_name("left")))
    assert [(b.producer_epoch, b.base_sequence) for b in after.queue().batches] == [(1, 0), (1, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_blocks_and_slabs_of_many_partitions_are_taken_where_they_lie(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    rig = Rig([1] * 12, file=tmp_path / "buffer", slabs=64)
    for number in range(60):
        rig.send(b"%d" % number * draw.choice((1, 30, 150, 300)), partition=draw.randrange(12))
    for batch in draw.sample(rig.incomplete(), k=4):
        rig.accumulator.discard(batch)
        batch.complete(0, -1)
    left = [(batch.partition, batch.count) for batch in rig.incomplete()]
    after = Rig([1] * 12, file=killed(rig, tmp_path / "left"), slabs=64)
    assert [(batch.partition, batch.count) for batch in after.incomplete()] == left
    after.pool.check()
    after.ack_all()
    assert_whole(after.pool)
    assert sum(map(len, after.log.values())) == sum(count for _, count in left)


def test_codec_of_the_next_process_takes_no_memory_of_recovered_records(path: Path) -> None:
    values = many_records(rig := Rig(file=path, compression_type="none"))
    after = Rig(file=killed(rig, path.with_name("left")), compression_type="gzip")
    assert after.recovered is not None
    assert not after.recovered.damaged
    assert delivered(after) == values


def test_file_without_a_free_slab_is_delivered_by_a_process_that_compresses(path: Path) -> None:
    rig = Rig(file=path, slabs=8)
    rig.fill(batches=8)
    after = Rig(file=killed(rig, path.with_name("left")), slabs=8, compression_type="gzip")
    assert len(delivered(after)) == 8


@pytest.mark.parametrize("before", ["gzip", "zstd"])  # those that kafka-python reads without further libraries
@pytest.mark.parametrize("after", ["none", "gzip", "zstd"])
def test_compressed_batch_is_split_by_a_process_with_another_codec(path: Path, before: str, after: str) -> None:
    values = in_flight(rig := Rig(file=path, compression_type=before))
    rig = Rig(file=killed(rig, path.with_name("left")), compression_type=after)
    request = only_request(rig)
    (records,) = request.produced.records.values()
    assert records[22] & 7 > 0  # the codec in the batch's attributes
    refuse(rig, request)
    assert delivered(rig) == values


def test_record_that_was_sent_plain_is_sent_again_as_it_was(path: Path) -> None:
    values = in_flight(rig := Rig(file=path))
    after = Rig(file=killed(rig, path.with_name("left")), compression_type="gzip", compression_thread_enable=True)
    while after.accumulator.compress_ahead():
        pass
    assert delivered(after) == values


def test_forced_close_while_a_batch_is_compressed_leaves_it_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Sender leaves the batch to the next process, and then the compression thread's codec returns."""
    gzip = compression.codec("gzip", -1, 9, 3)

    def compress(records: memoryview, target: memoryview) -> int:
        rig.accumulator.abort()
        return gzip.compress(records, target)

    monkeypatch.setattr(compression, "codec", lambda *_: Codec(gzip.id, compress))
    rig = Rig(file=path, compression_type="gzip", compression_thread_enable=True)
    values = [b"%d" % number * (SLAB - 200) for number in range(6)]  # a batch each
    for value in values:
        rig.send(value)
    rig.accumulator.close_open_batches()
    assert rig.accumulator.compress_ahead()
    monkeypatch.undo()
    after = Rig(file=killed(rig, path.with_name("left")))
    assert after.recovered is not None
    assert not after.recovered.damaged
    assert delivered(after) == values


def test_process_that_never_got_a_producer_id_leaves_records_that_nobody_has(path: Path) -> None:
    rig = Rig(file=path)
    assert rig.accumulator.producer_state is not None
    rig.accumulator.producer_state.set_producer_id_and_epoch(-1, -1)
    rig.send(b"never sent")
    after = Rig(file=killed(rig, path.with_name("left")))
    assert after.recovered is not None
    assert after.recovered.partitions[TOPIC, 0].evidence.idempotent


@pytest.mark.parametrize(("expire", "lives"), [("since_send", False), ("since_recovery", True), ("never", True)])
def test_time_before_the_kill_counts_for_a_record_if_the_user_says_so(path: Path, expire: str, lives: bool) -> None:
    """The file has the time of day at which the batch was opened. The rig's own clock stands still."""
    times = {"linger_ms": 0, "request_timeout_ms": 20, "delivery_timeout_ms": 50}
    settings: dict[str, Any] = {"buffer_path": str(path), "buffer_expire": expire, **times}
    rig = Rig(file=path, **settings)
    rig.send(b"late")
    sent = time.time()
    left = killed(rig, path.with_name("left"))
    wait_until(lambda: time.time() > sent + 0.1)
    after = Rig(file=left, **settings)
    after.lead(-1)
    after.turn()
    assert bool(after.incomplete()) is lives
    assert after.recovered is not None
    assert after.recovered.failed.total() == (not lives)
