"""A damaged file: what is damaged is named and put aside, and the rest is delivered."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.batches._stored import SIZE_OF_BATCH
from kafkabuf.errors import ConfigError
from kafkabuf.spool.aside import put_aside
from kafkabuf.spool.file import Layout
from rigs.producer import SLAB, TOPIC, Rig, assert_whole
from tests.spool.test_recovery import growing_batch, killed, many_records

FLIPS = 400
LAYOUT = Layout(32 * SLAB, SLAB)
# The parts that a small producer writes to.
PARTS = [
    (0, 64),
    (LAYOUT.topics_at, 512),
    (LAYOUT.partitions_at, 128),
    (LAYOUT.batches_at, 8192),
    (LAYOUT.arena_at, LAYOUT.total),
]


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    rig = Rig(file=tmp_path / "buffer")
    growing_batch(rig)
    rig.drain_one()
    many_records(rig)
    return killed(rig, tmp_path / "left").read_bytes()


def open_and_close(path: Path) -> int:
    """The number of records that are queued; -1: the file is refused."""
    try:
        rig = Rig(file=path)
    except ConfigError:
        return -1
    assert rig.recovered is not None
    rig.pool.check()
    for batch in rig.incomplete():
        batch.complete(-1, -1)
    rig.pool.check()
    assert rig.file is not None
    rig.file.close()
    return rig.recovered.records.total()


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_crash_nothing(tmp_path: Path, whole: bytes, seed: int) -> None:
    draw, path = random.Random(seed), tmp_path / "left"
    path.write_bytes(whole)
    every = open_and_close(path)
    assert every == 305
    counts = set()
    for _ in range(FLIPS // 4):
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 1, 1, 2, 8))):
            at, size = draw.choice(PARTS)
            place = at + draw.randrange(size)
            damaged[place] ^= 1 << draw.randrange(8)
            if draw.random() < 0.2:
                damaged[place : place + 8] = draw.randbytes(8)
        path.write_bytes(damaged)
        counts.add(open_and_close(path))
    assert len(counts) > 3, "the flips hit nothing"


def test_two_entries_over_one_memory_are_not_both_queued(tmp_path: Path) -> None:
    rig = Rig(file=tmp_path / "buffer")
    rig.send(b"first")
    left = killed(rig, tmp_path / "left")
    data = bytearray(left.read_bytes())
    data[LAYOUT.batches_at + SIZE_OF_BATCH : LAYOUT.batches_at + 2 * SIZE_OF_BATCH] = data[LAYOUT.batches_at :][
        :SIZE_OF_BATCH
    ]
    left.write_bytes(data)
    after = Rig(file=left)
    assert after.recovered is not None
    assert after.recovered.records.total() == 1
    assert "its memory belongs to another batch" in after.recovered.damaged[0]


def with_flip(path: Path, wanted: bytes) -> Path:
    """One bit of the value is another."""
    data = bytearray(path.read_bytes())
    data[data.index(wanted)] ^= 1
    path.write_bytes(data)
    return path


def aside(path: Path) -> tuple[dict[str, object], bytes]:
    """What is in the only file that was put aside."""
    (beside,) = path.parent.glob(path.name + ".damaged-*")
    assert beside.stat().st_mode & 0o777 == 0o600
    line, _, data = beside.read_bytes().partition(b"\n")
    return json.loads(line), data


def values(rig: Rig) -> list[bytes | None]:
    rig.ack_all()
    return [record.value for record in rig.log.get((TOPIC, 0), [])]


@pytest.mark.parametrize("magic", [1, 2])
def test_damaged_batch_is_put_aside_and_the_others_are_delivered(tmp_path: Path, magic: int) -> None:
    settings: dict[str, Any] = {"record_magic": magic, "enable_idempotence": magic == 2}
    rig = Rig(file=tmp_path / "buffer", **settings)
    for value in (b"first" * 100, b"second" * 100, b"third" * 100):
        rig.send(value)
        rig.accumulator.close_open_batches()
    left = with_flip(killed(rig, tmp_path / "left"), b"second" * 100)
    after = Rig(file=left, **settings)
    facts, data = aside(left)
    assert (facts["topic"], facts["partition"], facts["count"]) == (TOPIC, 0, 1)
    assert facts["reason"] == "its checksum is wrong"
    assert facts["bytes"] == len(data)
    assert b"second" * 99 in data
    assert after.recovered is not None
    assert f"{left}.damaged-1" in after.recovered.damaged[0]
    assert values(after) == [b"first" * 100, b"third" * 100]
    assert_whole(after.pool)
    assert not Rig(file=killed(after, tmp_path / "again"), **settings).recovered


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("is_open", [False, True])
def test_flip_anywhere_in_an_entry_costs_its_batch_at_most(tmp_path: Path, magic: int, is_open: bool) -> None:
    settings: dict[str, Any] = {"record_magic": magic, "enable_idempotence": magic == 2}
    rig = Rig([1] * 3, file=tmp_path / "buffer", **settings)
    for number in range(3):
        rig.send(b"%d" % number * 100, partition=number)
    if not is_open:
        rig.accumulator.close_open_batches()
    left = killed(rig, tmp_path / "left")
    whole, draw = left.read_bytes(), random.Random(magic)
    second = whole.index(b"1" * 100) - LAYOUT.arena_at  # the entries' order is that of their slabs
    assert second > 0
    for byte in range(SIZE_OF_BATCH):
        data = bytearray(whole)
        data[LAYOUT.batches_at + SIZE_OF_BATCH + byte] ^= 1 << draw.randrange(8)
        left.write_bytes(data)
        after = Rig([1] * 3, file=left, **settings)
        after.ack_all()
        for number in (0, 2):
            assert [record.value for record in after.log[TOPIC, number]] == [b"%d" % number * 100], byte
        assert after.file is not None
        after.file.close()


def test_records_in_front_of_the_damage_of_an_open_batch_are_delivered(tmp_path: Path) -> None:
    rig = Rig(file=tmp_path / "buffer")
    for value in (b"first", b"second", b"third"):
        rig.send(value)
    left = killed(rig, tmp_path / "left")
    data = bytearray(left.read_bytes())
    data[data.index(b"second") - 5] ^= 0x40  # its length
    left.write_bytes(data)
    after = Rig(file=left)
    facts, end = aside(left)
    assert facts["reason"] == "what follows its first 1 records is no record"
    assert b"second" in end
    assert b"third" in end
    after.send(b"new")
    assert values(after) == [b"first", b"new"]


def test_damage_stays_in_the_file_if_it_cannot_be_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(file=tmp_path / "buffer")
    rig.send(b"damaged" * 100)
    rig.accumulator.close_open_batches()
    left = with_flip(killed(rig, tmp_path / "left"), b"damaged" * 100)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        after = Rig(file=left)
    assert after.recovered is not None
    assert "no file beside could be written: No space left on device" in after.recovered.damaged[0]
    assert not list(tmp_path.glob("left.damaged-*"))
    after.send(b"new" * 100)  # does not take the memory
    assert values(after) == [b"new" * 100]
    assert after.file is not None
    after.file.close()
    Rig(file=left)
    assert b"damaged" * 99 in aside(left)[1]


def test_damage_is_put_aside_beside_earlier_damage(tmp_path: Path) -> None:
    assert [put_aside(tmp_path / "buffer", {"reason": "r"}, b"data").name for _ in range(2)] == [
        "buffer.damaged-1",
        "buffer.damaged-2",
    ]


def test_header_with_a_flip_is_refused(tmp_path: Path) -> None:
    rig = Rig(file=tmp_path / "buffer")
    left = killed(rig, tmp_path / "left")
    data = bytearray(left.read_bytes())
    data[41] ^= 1  # of buffer.memory
    left.write_bytes(data)
    with pytest.raises(ConfigError, match="has a damaged header"):
        Rig(file=left)
