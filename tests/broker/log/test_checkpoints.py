"""The checkpoints of a node's logs: written in steps, and right whatever happens between two of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.upkeep.checkpoints import CLEAN_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, Checkpoints, Key
from kafkabuf.broker.waiting.slices import finish
from tests.broker.log.support import put

AGAIN: Key = (1, "again", 0)
NAMES = (LOG_STARTS, HIGH_WATERMARKS, CLEAN_OFFSETS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "node-1").mkdir()
    return tmp_path


def new_checkpoints(folder: Path) -> Checkpoints:
    """As a new process reads them."""
    return Checkpoints(lambda node: folder / f"node-{node}")


def filled(count: int, start: int) -> PartitionLog:
    log = PartitionLog()
    for _ in range(count):
        put(log, b"x")
    log.delete_before(start)
    log.clean_offset = start
    return log


def stored(folder: Path, key: Key) -> list[int]:
    kept = new_checkpoints(folder)
    return [kept.offset(key[0], name, key[1:]) for name in NAMES]


def test_checkpoints_of_thousands_of_logs_are_written_in_steps(folder: Path) -> None:
    """A step reads the offsets of a hundred logs, or makes a hundred lines."""
    logs = {(1, "t", index): PartitionLog() for index in range(1_000)}
    kept = new_checkpoints(folder)
    assert sum(1 for _ in kept.writing(logs)) == 4 * 2 * 10
    assert sum(1 for _ in kept.writing(logs)) == 4 * 10, "nothing has changed"
    put(logs[1, "t", 500], b"x")
    assert sum(1 for _ in kept.writing(logs)) == 6 * 10, "recovery point and high watermark have changed"
    assert stored(folder, (1, "t", 500)) == [0, 1, 0]


def test_offsets_of_a_log_that_is_deleted_and_made_again_meanwhile_are_never_stored_for_the_new_log(
    folder: Path,
) -> None:
    """Whichever step of the work comes next."""
    moment, more = 0, True
    while more:
        logs = {(1, "a", 0): filled(9, 1), AGAIN: filled(5, 3), (1, "z", 0): filled(7, 2)}
        kept = new_checkpoints(folder)
        work = kept.writing(logs)
        for _ in range(moment):
            more = next(work, "over") != "over"
        del logs[AGAIN]
        kept.forget(1, AGAIN[1:])
        kept.make_way(1, AGAIN[1:])
        logs[AGAIN] = PartitionLog()
        finish(work) if more else None
        assert stored(folder, AGAIN) == [0, 0, 0], moment
        assert [stored(folder, key)[0] for key in ((1, "a", 0), (1, "z", 0))] == [1, 2]
        logs[AGAIN] = filled(4, 2)
        finish(kept.writing(logs))
        assert stored(folder, AGAIN) == [2, 4, 2]
        moment += 1
    assert moment > 8


def test_offsets_of_a_log_that_is_deleted_meanwhile_go_with_the_next_writing(folder: Path) -> None:
    logs = {(1, "a", 0): filled(9, 1), AGAIN: filled(5, 3)}
    kept = new_checkpoints(folder)
    finish(kept.writing(logs))
    work = kept.writing(logs)
    next(work)
    del logs[AGAIN]
    kept.forget(1, AGAIN[1:])
    finish(work)
    finish(kept.writing(logs))
    assert [stored(folder, key) for key in (AGAIN, (1, "a", 0))] == [[0, 0, 0], [1, 9, 1]]
