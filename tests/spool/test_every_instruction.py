"""A kill between any two instructions leaves each record whole or absent, and in its place."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from kafkabuf.batches._split import split
from kafkabuf.batches._stored import SIZE_OF_SPLIT
from kafkabuf.errors import KafkaError
from kafkabuf.spool import file as spool_file
from kafkabuf.spool.file import Layout
from rigs.producer import SLAB, TOPIC, Rig
from rigs.single_step import single_step

SLABS = 8


class Deed(NamedTuple):
    """What a process does before, and the piece in which it is killed. `during` are the records of the piece."""

    before: list[bytes]
    piece: Callable[[Rig], object]
    during: list[bytes]
    settings: dict[str, Any] = {}  # noqa: RUF012 (nobody changes it)
    ready: Callable[[Rig], object] = lambda rig: None  # what the process does with the records before the piece
    left: set[int] | None = None  # the piece ends records: how many are left then

    def prepare(self, path: Path) -> Rig:
        """The process, up to the piece."""
        rig = Rig(file=path, slabs=SLABS, **self.settings)
        for value in self.before:
            rig.send(value)
        self.ready(rig)
        return rig


def send(value: bytes) -> Callable[[Rig], object]:
    return lambda rig: rig.send(value)


def send_table(values: list[bytes]) -> Callable[[Rig], object]:
    data = pa.record_batch({"value": values, "partition": pa.array([0] * len(values), pa.int32())})
    return lambda rig: rig.producer.send_arrow(data, TOPIC)


def complete(rig: Rig) -> None:
    rig.incomplete()[0].complete(0, -1)


def compress_and_put_back(rig: Rig) -> None:
    rig.accumulator.put_back(rig.queue(), rig.drain_one())


def split_head(rig: Rig) -> None:
    split(rig.accumulator, rig.drain_one())


def split_twice(rig: Rig) -> None:
    for _ in range(2):
        split_head(rig)


def complete_front(rig: Rig) -> None:
    rig.drain_one().complete(0, -1)


def complete_front_and_drain(rig: Rig) -> None:
    complete_front(rig)
    rig.drain_one()


def split_and_compress(rig: Rig) -> None:
    split_twice(rig)
    compress_and_put_back(rig)


def leave_front(rig: Rig) -> None:
    for front in rig.accumulator.leave_behind(rig.drain_one()):
        rig.accumulator.fail(front, KafkaError("it stays"))


def leave_front_and_drain(rig: Rig) -> None:
    leave_front(rig)
    rig.drain_one()


FIVE = [b"%d" % number * 50 for number in range(5)]
MAGIC_1 = {"record_magic": 1, "enable_idempotence": False}
GZIP = {"compression_type": "gzip", "compression_gzip_level": 1}
DEEDS = {
    "the first record": Deed([], send(b"first"), [b"first"]),
    "a record": Deed([b"there"], send(b"another"), [b"another"]),
    "a record that moves its batch": Deed([b"x" * 150, b"y" * 150], send(b"z" * 300), [b"z" * 300]),
    "a record behind a full batch": Deed([b"x" * 800], send(b"z" * 800), [b"z" * 800]),
    "a record of three slabs": Deed([b"there"], send(b"z" * 2500), [b"z" * 2500]),
    "a message": Deed([b"there"], send(b"another"), [b"another"], MAGIC_1),
    "a table": Deed([b"there"], send_table([b"1" * 500, b"2" * 500, b"3"]), [b"1" * 500, b"2" * 500, b"3"]),
    "a drain": Deed([b"there", b"too"], lambda rig: rig.drain_one(), []),
    "a compression": Deed([b"x" * 300] * 2, lambda rig: rig.drain_one(), [], GZIP),
    "a compressed message": Deed(
        [b"x" * 300] * 2,
        lambda rig: rig.drain_one(),
        [],
        MAGIC_1 | GZIP,
    ),
    "an acknowledgement": Deed([b"there", b"too"], complete, [], left={0, 2}),
    "a split": Deed(FIVE, split_head, []),
    "a split of a part": Deed(FIVE, split_head, [], ready=split_head),
    "a split of messages": Deed(FIVE, split_head, [], MAGIC_1),
    "a split of compressed records": Deed(FIVE, split_head, [], GZIP, compress_and_put_back),
    "a split of compressed messages": Deed(FIVE, split_head, [], MAGIC_1 | GZIP, compress_and_put_back),
    "a compression of a part": Deed(FIVE, lambda rig: rig.drain_one(), [], GZIP, split_head),
    "an acknowledged part": Deed(FIVE, complete_front_and_drain, [], ready=split_twice, left={4, 5}),
    "a part that stays": Deed(FIVE, leave_front_and_drain, [], ready=split_twice),
    "a compressed part that stays": Deed(FIVE, leave_front, [], GZIP, split_and_compress),
}


@pytest.mark.skipif(sys.platform != "linux", reason="ptrace(2) differs")
@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_kill_at_any_instruction_leaves_each_record_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: Deed
) -> None:
    monkeypatch.setattr(spool_file, "TOPICS", 4)  # the file is opened some thousand times
    monkeypatch.setattr(spool_file, "PARTITIONS", 4)
    path, left = tmp_path / "buffer", tmp_path / "left"
    settings = {"slabs": SLABS, **deed.settings}
    seen: set[int] = set()
    states = last = None
    copied = 0
    for _ in single_step(partial(deed.prepare, path), deed.piece):
        if states is None:
            states = States(path, Layout(SLABS * SLAB, SLAB))
        now = states.now()
        if now == last:
            continue
        copied = copied + 1 if last is not None and now[:-1] == last[:-1] else 0
        last = now
        if copied > 64 and copied % 16:  # in the middle of the bytes of a long record: one state of sixteen is tried
            continue
        left.write_bytes(states.whole())
        count = delivered(left, deed, settings)
        seen.add(count)
    wanted = deed.left or set(range(len(deed.before), len([*deed.before, *deed.during]) + 1))
    assert seen == wanted, "the piece ended before or behind what the test is about"


class States:
    """The states of a file that another process writes."""

    def __init__(self, path: Path, layout: Layout) -> None:
        with path.open("rb") as file:
            self._mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._parts = [
            slice(layout.topics_at, layout.topics_at + 512),
            slice(layout.partitions_at, layout.partitions_at + 128),
            slice(layout.batches_at, layout.batches_at + 1024),
            slice(layout.split_at, layout.split_at + SIZE_OF_SPLIT),
            slice(layout.arena_at, layout.arena_at + layout.total),
        ]

    def now(self) -> tuple[bytes, ...]:
        """The parts that a small producer writes to. The scratch counts only where another part says so."""
        return tuple(self._mapping[part] for part in self._parts)

    def whole(self) -> bytes:
        return self._mapping[:]


def delivered(left: Path, deed: Deed, settings: dict[str, Any]) -> int:
    """The number of records that the next process delivers from the file; asserts that they are the first ones."""
    rig = Rig(file=left, **settings)
    assert rig.recovered is not None
    assert rig.recovered.damaged == []
    rig.ack_all()
    values = [record.value for record in rig.log.get((TOPIC, 0), [])]
    every = [*deed.before, *deed.during]
    assert values == (every[: len(values)] if deed.left is None else every[len(every) - len(values) :])
    assert rig.file is not None
    rig.file.close()
    return len(values)
