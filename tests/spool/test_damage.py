"""A damaged file: opening it ends, crashes nothing, and queues no two batches over one memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkabuf.batches._stored import SIZE_OF_BATCH
from kafkabuf.errors import ConfigError
from kafkabuf.spool.file import Layout
from rigs.producer import SLAB, Rig
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
