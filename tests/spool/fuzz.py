"""Damages files of buffers, opens them, and compares what is delivered with what was sent.

    python -m tests.spool.fuzz --examples 10000
    python -m tests.spool.fuzz --seed 17 --examples 1

An example flips bits, overwrites bytes, cuts the file, or puts pages of an earlier state in it, as a loss of power
does. Then the file is refused with its reason, or no record is delivered that was not sent, or to another partition, or
twice, or before an earlier one; and each batch that no damage has touched is delivered. An open batch has no checksum:
a flip in one of its records may change that record.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import random
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkabuf.batches._split import split
from kafkabuf.batches._stored import SIZE_OF_BATCH, SIZE_OF_SPLIT
from kafkabuf.errors import ConfigError
from kafkabuf.spool import file as spool_file
from kafkabuf.spool._entries import facts_of, live_entries
from kafkabuf.spool.file import Layout
from rigs.producer import SLAB, TOPIC, Rig, assert_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

SLABS, PARTITIONS, PAGE = 16, 3, 4096
LAYOUT_OF_ENTRY = struct.Struct("=Q32xQ")  # of a StoredBatch: its builder's base and position
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compressed": {"compression_type": "gzip"},
    "magic 1": {"record_magic": 1, "enable_idempotence": False},
    "magic 1, compressed": {"record_magic": 1, "enable_idempotence": False, "compression_type": "gzip"},
}


class Held(NamedTuple):
    """A batch of a file: its records, and the bytes of the file on which they depend."""

    partition: int
    values: list[bytes]
    is_open: bool
    ranges: list[tuple[int, int]]


class Whole(NamedTuple):
    """A file as a kill leaves it, and as it was before."""

    settings: dict[str, Any]
    data: bytes
    earlier: bytes
    sent: dict[int, list[bytes]]  # by partition, in order, also what was acknowledged
    held: list[Held]
    is_split: bool


@contextmanager
def small_tables() -> Iterator[None]:
    """A file is opened in a moment."""
    before = spool_file.TOPICS, spool_file.PARTITIONS
    spool_file.TOPICS = spool_file.PARTITIONS = 4
    try:
        yield
    finally:
        spool_file.TOPICS, spool_file.PARTITIONS = before


def opened(path: Path, settings: dict[str, Any]) -> Rig:
    return Rig([1] * PARTITIONS, file=path, slabs=SLABS, **settings)


# ---- whole files -----------------------------------------------------------------------------------------------------


def make(folder: Path, draw: random.Random, settings: dict[str, Any]) -> Whole:
    path = folder / "made"
    path.unlink(missing_ok=True)
    rig = opened(path, settings)
    sent: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    _send(rig, draw, sent)
    if draw.random() < 0.5:
        rig.ack_all()
        _send(rig, draw, sent)
    earlier = path.read_bytes()
    _send(rig, draw, sent)
    is_split = draw.random() < 0.5
    for partition in range(PARTITIONS):
        if draw.random() < 0.5 and rig.queue(partition).batches and rig.queue(partition).head.count > 1:
            batch = rig.drain_one(partition)
            if is_split and batch.count > 1:
                split(rig.accumulator, batch)
    if draw.random() < 0.7:
        rig.accumulator.close_open_batches()
    whole = Whole(settings, path.read_bytes(), earlier, sent, _held(rig, sent), is_split)
    assert rig.file is not None
    rig.file.close()
    return whole


def _send(rig: Rig, draw: random.Random, sent: dict[int, list[bytes]]) -> None:
    for _ in range(draw.randrange(1, 12)):
        partition = draw.randrange(PARTITIONS)
        value = b"%d:%d:" % (partition, len(sent[partition])) + draw.randbytes(draw.choice((4, 4, 40, 300)))
        sent[partition].append(value)
        rig.send(value, partition)


def _held(rig: Rig, sent: dict[int, list[bytes]]) -> list[Held]:
    assert rig.file is not None
    layout, tables = rig.file.layout, rig.file.tables
    arena = ctypes.addressof(ctypes.c_char.from_buffer(rig.file.arena))
    open_numbers = {batch.number for batch in rig.incomplete() if not batch.closed}
    numbers = {(batch.partition, batch.number) for batch in rig.incomplete()}
    assert len(numbers) == len(rig.incomplete())
    held = []
    left = {partition: list(values) for partition, values in sent.items()}
    for place in reversed(live_entries(tables)):
        facts = facts_of(tables, place)
        partition, count = facts["partition"], facts["count"]
        assert isinstance(partition, int)
        assert isinstance(count, int)
        entry = bytes.fromhex(str(facts["entry"]))
        base, position = LAYOUT_OF_ENTRY.unpack_from(entry)
        values = left[partition][len(left[partition]) - count :]
        del left[partition][len(left[partition]) - count :]
        at = layout.arena_at + base - arena
        ranges = [(at, at + position), (layout.batches_at + place * SIZE_OF_BATCH,) * 2]
        ranges[1] = (ranges[1][0], ranges[1][0] + SIZE_OF_BATCH)
        held.append(Held(partition, values, int(str(facts["number"])) in open_numbers, ranges))
    return held


# ---- damage ----------------------------------------------------------------------------------------------------------


class Damaged(NamedTuple):
    data: bytes
    touched: list[tuple[int, int]]


def flip(draw: random.Random, whole: Whole) -> Damaged:
    data, touched = bytearray(whole.data), []
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        at, size = draw.choice(_parts(whole))
        place = at + draw.randrange(size)
        if draw.random() < 0.8:
            data[place] ^= 1 << draw.randrange(8)
            touched.append((place, place + 1))
        else:
            data[place : place + 8] = draw.choice((draw.randbytes(8), bytes(8)))[: len(data) - place]
            touched.append((place, place + 8))
    return Damaged(bytes(data), touched)


def tear(draw: random.Random, whole: Whole) -> Damaged:
    """Some pages are on the disk in their earlier state, or not at all."""
    data, touched = bytearray(whole.data), []
    size = draw.choice((512, PAGE))
    for place in range(0, len(data), size):
        if draw.random() < 0.3 and data[place : place + size] != whole.earlier[place : place + size]:
            data[place : place + size] = whole.earlier[place : place + size]
            touched.append((place, place + size))
    return Damaged(bytes(data), touched)


def cut(draw: random.Random, whole: Whole) -> Damaged:
    end = draw.randrange(len(whole.data))
    return Damaged(whole.data[:end], [(0, len(whole.data))])


def old(draw: random.Random, whole: Whole) -> Damaged:
    return Damaged(whole.earlier, [(0, len(whole.data))])


DAMAGES: list[Callable[[random.Random, Whole], Damaged]] = [flip, flip, flip, flip, tear, tear, cut, old]


def _parts(whole: Whole) -> list[tuple[int, int]]:
    """Where a small producer writes."""
    layout = Layout(SLABS * SLAB, SLAB)
    ranges = [(start, end - start) for held in whole.held for start, end in held.ranges]
    return [
        *((0, 72), (layout.topics_at, 300), (layout.partitions_at, 160), (layout.batches_at, 2048)),
        *((layout.split_at, SIZE_OF_SPLIT), (layout.arena_at, layout.total), *ranges),
    ]


# ---- the oracle ------------------------------------------------------------------------------------------------------


def check(path: Path, whole: Whole, damaged: Damaged) -> str:
    """Open the file and compare. Returns what came of it."""
    path.write_bytes(damaged.data)
    path.chmod(0o600)
    for beside in path.parent.glob(path.name + ".damaged-*"):
        beside.unlink()
    try:
        rig = opened(path, whole.settings)
    except ConfigError:
        assert len(damaged.data) < len(whole.data) or _touches(damaged, [(0, 72)]), "a whole header was refused"
        return "refused"
    assert rig.recovered is not None
    assert len(list(path.parent.glob(path.name + ".damaged-*"))) == len(rig.recovered.damaged)
    rig.pool.check()
    rig.ack_all()
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)
    changed = 0
    for (topic, partition), records in rig.log.items():
        assert topic == TOPIC, f"a record went to {topic}"
        sent = iter(whole.sent[partition])
        for record in records:
            if record.value in whole.sent[partition]:
                assert record.value in sent, f"a record of {partition} was delivered twice, or out of order"
            else:
                changed += 1
    may_change = [held for held in whole.held if held.is_open and _touches(damaged, held.ranges)]
    assert changed <= sum(len(held.values) for held in may_change), "a record was delivered that nobody has sent"
    _require_whole(rig, whole, damaged)
    assert rig.file is not None
    rig.file.close()
    return "damaged" if rig.recovered.damaged else "whole"


def _require_whole(rig: Rig, whole: Whole, damaged: Damaged) -> None:
    layout = Layout(SLABS * SLAB, SLAB)
    if _touches(damaged, [(layout.topics_at, layout.batches_at)]):
        return  # all batches depend on these tables
    for held in whole.held:
        if not _touches(damaged, held.ranges):
            values = [record.value for record in rig.log.get((TOPIC, held.partition), [])]
            assert all(value in values for value in held.values), f"a whole batch of {held.partition} is lost"


def _touches(damaged: Damaged, ranges: list[tuple[int, int]]) -> bool:
    return any(a < end and start < b for a, b in damaged.touched for start, end in ranges)


def run(folder: Path, seed: int) -> str:
    """One example. The same seed is the same example."""
    draw = random.Random(seed)
    with small_tables():
        whole = make(folder, draw, draw.choice(list(SETTINGS.values())))
        return check(folder / "left", whole, draw.choice(DAMAGES)(draw, whole))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spool.fuzz", description="Damage files and open them.")
    parser.add_argument("--examples", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first example")
    arguments = parser.parse_args()
    outcomes: dict[str, int] = {}
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.examples):
            try:
                outcome = run(Path(folder), seed)
            except BaseException:
                print(f"--seed {seed} fails", file=sys.stderr)
                raise
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(f"{arguments.examples} examples: {outcomes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
