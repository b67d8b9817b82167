"""What a reader gets of a file: the batches of it, without a change to it, also while a process goes on writing."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kafkabuf.batches import compression
from kafkabuf.batches._stored import SIZE_OF_BATCH
from kafkabuf.batches.codec import Codec
from kafkabuf.spool import _entries, _reading, reading
from kafkabuf.spool import file as spool_file
from kafkabuf.spool.file import HEADER, OWNER, Layout
from kafkabuf.spool.reading import DamagedBatch, HeldBatch, SpoolReader, UnreadableError
from rigs.fake_client import read_records
from rigs.producer import SLAB, TOPIC, Rig
from rigs.single_step import single_step
from tests.spool.test_damage import FLIPS, LAYOUT, PARTS
from tests.spool.test_every_instruction import DEEDS, SLABS, Deed, States
from tests.spool.test_recovery import SETTINGS, STORMS, Storm, killed, many_records


def whole(path: Path) -> list[HeldBatch]:
    """The batches with their data; asserts that none is damaged."""
    batches = []
    with SpoolReader(path) as reader:
        for batch in reader.batches(with_data=True):
            assert isinstance(batch, HeldBatch), batch
            batches.append(batch)
    return batches


def values_in(path: Path) -> list[bytes | None]:
    """The values as kafka-python reads them."""
    return [record.value for batch in whole(path) for record in read_records(batch.data)]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("storm", STORMS)
def test_reader_gets_the_records_that_the_next_process_gets_and_changes_nothing(
    path: Path, storm: Storm, settings: dict[str, Any]
) -> None:
    values = storm(rig := Rig(file=path, **settings))
    before = path.read_bytes()
    assert values_in(path) == values
    left = killed(rig, path.with_name("left"))
    assert values_in(left) == values
    assert path.read_bytes() == left.read_bytes() == before
    assert Rig(file=left, **settings).recovered is not None


def test_batch_has_the_numbers_the_format_and_the_time_of_its_entry(path: Path) -> None:
    rig = Rig(file=path, compression_type="gzip")
    began = time.time()
    for _ in range(2):
        rig.send(b"x" * 600)
    rig.drain_one()
    sent, open_batch = whole(path)
    assert (sent.topic, sent.partition, sent.records, sent.magic, sent.compression) == (TOPIC, 0, 1, 2, "gzip")
    assert (sent.producer_id, sent.producer_epoch, sent.base_sequence, sent.may_be_in_cluster) == (77, 0, 0, True)
    assert (open_batch.base_sequence, open_batch.may_be_in_cluster, open_batch.compression) == (-1, False, "none")
    assert began - 1 <= sent.opened_ms / 1000 <= time.time()
    assert (sent.number, open_batch.number, sent.transactional) == (0, 1, False)


def test_reader_knows_topics_and_what_was_acknowledged_last(path: Path) -> None:
    rig = Rig([1, 1], file=path)
    topic_id = uuid4()
    assert rig.file is not None
    rig.file.tables.note_topic(TOPIC, 2, topic_id)
    many_records(rig)
    rig.ack_all()
    rig.send(b"waits", partition=1)
    with SpoolReader(path) as reader:
        assert [(held.topic, held.partitions, held.topic_id) for held in reader.topics()] == [(TOPIC, 2, topic_id)]
        first, second = reader.partitions()
        assert (first.producer_id, first.producer_epoch, first.last_acknowledged_sequence) == (77, 0, 299)
        assert (second.partition, second.producer_id, second.last_acknowledged_offset) == (1, -1, -1)
        assert len(reader) == 1


def test_file_of_other_sizes_is_read_by_its_own_header(path: Path) -> None:
    rig = Rig(file=path, slabs=7, batch_size=3000, buffer_memory=30_001)
    rig.send(b"y" * 5000)
    with SpoolReader(path) as reader:
        assert reader.layout == Layout(30_001, 3000)
    assert values_in(path) == [b"y" * 5000]


def test_reader_names_the_process_that_has_the_file(path: Path) -> None:
    rig = Rig(file=path)
    with SpoolReader(path) as reader:
        assert (reader.holder, reader.owner, reader.of_this_boot) == (os.getpid(), os.getpid(), True)
    assert rig.file is not None
    rig.file.close()
    with SpoolReader(path) as reader:
        assert (reader.holder, reader.owner) == (None, os.getpid())


def test_holder_is_the_other_process_and_none_once_it_is_killed(path: Path) -> None:
    script = f"from kafkabuf.spool.file import *; f = SpoolFile({str(path)!r}, Layout{(*LAYOUT,)}); print(); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with SpoolReader(path) as reader:
            assert reader.holder == other.pid
        other.kill()
        other.wait(60)
        with SpoolReader(path) as reader:
            assert (reader.holder, reader.owner) == (None, other.pid)


def test_holder_is_found_without_a_list_of_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.read_text

    def no_list(path: Path, *arguments: Any, **named: Any) -> str:
        if str(path) == "/proc/locks":
            raise FileNotFoundError
        return real(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", no_list)
    rig = Rig(file=path)
    with SpoolReader(path) as reader:
        assert reader.holder == os.getpid()
    assert rig.file is not None
    rig.file.close()
    with SpoolReader(path) as reader:
        assert reader.holder is None
        Rig(file=path)  # the reader has kept no lock


def test_file_of_an_earlier_boot_is_recognized(path: Path) -> None:
    rig = Rig(file=path)
    left = killed(rig, path.with_name("left"))
    with left.open("r+b") as file:
        file.seek(HEADER.size)
        file.write(OWNER.pack(12345, b"another boot"))
    with SpoolReader(left) as reader:
        assert (reader.owner, reader.of_this_boot) == (12345, False)


# ---- while a process goes on


@pytest.mark.skipif(sys.platform != "linux", reason="ptrace(2) differs")
@pytest.mark.parametrize(
    "name", ["a record that moves its batch", "a compression", "a split", "a split of a part", "an acknowledged part"]
)
def test_each_record_is_read_at_any_instruction_of_its_process(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    deed: Deed = DEEDS[name]
    for module in (spool_file, reading):
        monkeypatch.setattr(module, "TOPICS", 4)
        monkeypatch.setattr(module, "PARTITIONS", 4)
    packed = packed_records(path.with_name("plain"), deed.before)
    monkeypatch.setattr(compression, "codec", lambda *_: Codec(1, putting(packed)))
    counts, states, last = set(), None, None
    for _ in single_step(partial(deed.prepare, path), deed.piece):
        states = states or States(path, Layout(SLABS * SLAB, SLAB))
        if (now := states.now()) == last:
            continue
        last = now
        values = values_in(path)
        sent = [*deed.before, *deed.during]
        assert values == (sent[: len(values)] if deed.left is None else sent[-len(values) :])
        counts.add(len(values))
        assert states.now() == now
    assert counts == (deed.left or {len(deed.before), len([*deed.before, *deed.during])})


def packed_records(path: Path, values: list[bytes]) -> bytes:
    """What gzip makes of a batch's records: the process then has no more to do than to copy it."""
    rig = Rig(file=path)
    for value in values:
        rig.send(value)
    (batch,) = whole(path)
    return gzip.compress(batch.data[61:])


def putting(packed: bytes) -> Callable[[memoryview, memoryview], int]:
    def compress(records: memoryview, target: memoryview) -> int:
        target[: len(packed)] = packed
        return len(packed)

    return compress


@pytest.mark.skipif(sys.platform != "linux", reason="ptrace(2) differs")
def test_compression_that_was_under_way_hides_nothing_that_comes_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader mends a batch in its own copy of a page. The process appends to another batch of the same page."""
    packed = packed_records(path.with_name("plain"), [b"x" * 300] * 2)
    monkeypatch.setattr(compression, "codec", lambda *_: Codec(1, putting(packed)))

    def prepare() -> Rig:
        rig = Rig([1, 1], file=path, slabs=SLABS, compression_type="gzip")
        rig.send(b"p" * 600, partition=1)  # the next two slabs lie in one page
        for value in (b"x" * 300, b"x" * 300, b"y" * 600):
            rig.send(value)
        return rig

    def piece(rig: Rig) -> None:
        rig.drain_one()
        rig.send(b"later")

    shadowed: list[bool] = []

    def noted(*arguments: Any) -> bool:
        shadowed.append(_reading.is_shadowed(*arguments))
        return shadowed[-1]

    monkeypatch.setattr(reading, "is_shadowed", noted)
    states = last = batches = None
    for _ in single_step(prepare, piece):
        states = states or States(path, Layout(SLABS * SLAB, SLAB))
        if (now := states.now()) != last and not any(shadowed):
            last = now
            batches = SpoolReader(path).batches(with_data=True)
            next(batches)
            next(batches)
    assert any(shadowed)
    assert batches is not None
    (behind,) = batches
    assert isinstance(behind, HeldBatch), behind
    assert [record.value for record in read_records(behind.data)] == [b"y" * 600, b"later"]


def test_batch_may_have_the_memory_of_a_batch_that_has_ended(path: Path) -> None:
    rig = Rig([1, 1], file=path, batch_size=4 * SLAB, buffer_memory=32 * SLAB)
    rig.send(b"x" * 3500)
    rig.send(b"small", partition=1)  # in a block of a slab
    with SpoolReader(path) as reader:
        batches = reader.batches()
        next(batches)
        ended = rig.incomplete()[0]
        rig.accumulator.discard(ended)
        ended.complete(0, -1)
        rig.send(b"z" * 2700, partition=1)  # the batch moves to the slab that is free again
        (batch,) = batches
        assert isinstance(batch, HeldBatch), batch
        assert batch.records == 2


def at_each_mend(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """The action runs whenever the reader has counted a batch's records, and before it takes them."""
    mend = _entries.mend

    def interrupted(*arguments: Any) -> int:
        count = mend(*arguments)
        action()
        return count

    monkeypatch.setattr(reading, "mend", interrupted)


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_read_is_whole_while_batches_come_move_and_end(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, codec: str
) -> None:
    draw = random.Random(seed)
    sizes: dict[str, Any] = {"batch_size": 4 * SLAB, "buffer_memory": 64 * SLAB}
    rig = Rig([1] * 4, file=path, **sizes, compression_type=codec, max_block_ms=0)
    sent = 0

    def send() -> None:
        nonlocal sent
        if rig.pool.free_bytes < 16 * SLAB:
            rig.ack_all()
        rig.send(b"%d " % sent * draw.choice((1, 20, 300)), partition=draw.randrange(4))
        sent += 1

    def step() -> None:
        draw.choice((*[send] * 6, rig.turn, rig.turn, rig.ack_under_way, rig.ack_under_way, rig.ack_all))()

    for _ in range(20):
        send()
    at_each_mend(monkeypatch, step)
    seen = 0
    for _ in range(30):
        send()
        numbers: dict[int, list[int]] = {}
        for batch in whole(path):
            records = read_records(batch.data)
            assert len(records) == batch.records
            numbers.setdefault(batch.partition, []).extend(int((record.value or b"").split()[0]) for record in records)
        assert all(each == sorted(set(each)) for each in numbers.values())
        seen += sum(map(len, numbers.values()))
    assert seen > 50, "the reader met too few records"


def test_batch_that_ends_while_it_is_read_is_left_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(file=path)
    rig.fill(batches=2)
    at_each_mend(monkeypatch, rig.ack_all)
    assert whole(path) == []


def test_batch_that_never_holds_still_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(file=path)
    rig.fill(batches=1)
    monkeypatch.setattr(reading, "is_unchanged", lambda before, after: False)
    with SpoolReader(path) as reader:
        assert list(reader.batches()) == [DamagedBatch(0, "its process changes it faster than it can be read")]


# ---- what is damaged, and what is no file of ours


def test_two_entries_over_one_memory_are_told(path: Path) -> None:
    rig = Rig(file=path)
    rig.send(b"first")
    left = killed(rig, path.with_name("left"))
    data = bytearray(left.read_bytes())
    at = LAYOUT.batches_at
    data[at + SIZE_OF_BATCH : at + 2 * SIZE_OF_BATCH] = data[at : at + SIZE_OF_BATCH]
    left.write_bytes(data)
    with SpoolReader(left) as reader:
        first, second = reader.batches()
    assert isinstance(first, HeldBatch)
    assert second == DamagedBatch(1, "its memory belongs to another batch, too")


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_crash_no_reader(path: Path, seed: int) -> None:
    many_records(rig := Rig(file=path))
    data, draw = killed(rig, path.with_name("left")).read_bytes(), random.Random(seed)
    kinds: set[type] = set()
    for _ in range(FLIPS // 4):
        damaged = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 8))):
            at, size = draw.choice(PARTS)
            damaged[at + draw.randrange(size)] ^= 1 << draw.randrange(8)
        flipped = path.with_name("flipped")
        flipped.write_bytes(damaged)
        try:
            with SpoolReader(flipped) as reader:
                kinds |= {type(batch) for batch in reader.batches(with_data=True)}
        except UnreadableError:
            kinds.add(UnreadableError)
        assert flipped.read_bytes() == damaged
    assert kinds == {HeldBatch, DamagedBatch, UnreadableError}


def header(total: int, slab_size: int) -> bytes:
    return Layout(total, slab_size).header()


WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty: no producer has written to it"),
    "zeros": (bytes(10_000), "is empty"),
    "garbage": (random.Random(0).randbytes(10_000), "is a file of another program"),
    "a beginning": (header(32 * SLAB, SLAB)[:30], "is a file of another program"),
    "a header alone": (header(32 * SLAB, SLAB), rf"is cut short: it has 56 bytes of the {LAYOUT.size}"),
    "huge counts": (header(1 << 62, 1), "is cut short"),
    "no slab": (header(1 << 20, 1 << 21), "is damaged: its header names 1048576 bytes in slabs of 2097152"),
    "slabs of nothing": (header(1 << 20, 1)[:-8] + bytes(8), "is damaged"),
    "negative counts": (header(1, 1)[:-16] + b"\xff" * 16, "is damaged"),
    "another version": (header(1, 1)[:20] + b"\x09\0\0\0" + header(1, 1)[24:], "has format 9, and this kafkabuf reads"),
    "another byte order": (header(1, 1)[:16] + b"\x01\x02\x03\x04" + header(1, 1)[20:], "with another byte order"),
    "too long": (header(32 * SLAB, SLAB).ljust(LAYOUT.size + 1, b"\0"), "is damaged: it has"),
}


@pytest.mark.parametrize("name", WRONG)
def test_file_that_is_no_buffer_is_refused_with_the_reason(path: Path, name: str) -> None:
    content, reason = WRONG[name]
    path.write_bytes(content)
    with pytest.raises(UnreadableError, match=reason):
        SpoolReader(path)


def test_more_slabs_than_a_pool_has_are_refused(path: Path) -> None:
    layout = Layout(1 << 31, 1)
    with path.open("wb") as file:
        file.write(layout.header())
        file.truncate(layout.size)  # without blocks on the disk
    with pytest.raises(UnreadableError, match=r"cannot be read: .* slabs of batch.size 1 bytes, more than the"):
        with SpoolReader(path) as reader:
            list(reader.batches())


def test_path_without_a_plain_file_is_refused(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    for name, reason in [
        ("", "is a folder"),
        ("pipe", "is no plain file"),
        ("nowhere", "cannot be read: No such file"),
    ]:
        with pytest.raises(UnreadableError, match=reason):
            SpoolReader(tmp_path / name)
    with pytest.raises(UnreadableError, match="is no plain file"):
        SpoolReader("/dev/null")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_file_of_another_user_is_refused(path: Path) -> None:
    Rig(file=path)
    path.chmod(0)
    with pytest.raises(UnreadableError, match="cannot be read: Permission denied"):
        SpoolReader(path)
