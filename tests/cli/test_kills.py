"""`kafkabuf produce --resume` that is killed: no row is lost, and no row that was settled comes again."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cli.resume_kills import (
    KINDS,
    Run,
    arrived,
    broker_process,
    is_faulty,
    letter,
    lines_of,
    numbers_of,
    value,
)


def counted(run: Run, numbers: Iterable[int | None], *, faulty: bool) -> int:
    """Each row has come, and again at most once for each run that was killed before the row was settled. Returns how
    many texts are none that was sent."""
    copies, others = bytearray(run.rows + 1), 0
    for number in numbers:
        if number is None or is_faulty(run.kind, number) != faulty:
            others += 1
        else:
            copies[number] += 1
    settled = sorted(run.settled)
    wanted = [number for number in range(1, run.rows + 1) if is_faulty(run.kind, number) == faulty]
    lost = [number for number in wanted if not copies[number]]
    assert not lost, f"{len(lost)} rows are lost, the first is row {lost[0]}; kills behind {run.settled}"
    doubled = [number for number in wanted if copies[number] > 1 + bisect_left(settled, number)]
    assert not doubled, f"{len(doubled)} settled rows came again, first {doubled[0]}; kills behind {run.settled}"
    again = sum(copies[number] for number in wanted) - len(wanted)
    print(f"{run.kind}: {len(wanted)} {'faulty ' * faulty}rows, {again} again, {others} others, {len(settled)} kills")
    return others


def check(kind: str, folder: Path, rows: int, kills: int, seed: int) -> None:
    with broker_process(folder / "data") as broker:
        run = Run(kind, folder, broker, rows, random.Random(seed))
        run.until_done(kills)
        if not run.settled:  # the machine was so quick that the input ended before the first kill
            (folder / "longer").mkdir()
            check(kind, folder / "longer", 2 * rows, kills, seed)
            return
        assert counted(run, numbers_of(arrived(broker), lambda number: value(kind, number)), faulty=False) == 0
        with run.letters.open("rb") as file:
            torn = counted(run, numbers_of(lines_of(file), lambda number: letter(kind, number)), faulty=True)
        # A kill can tear the letter that is written.
        assert torn <= kills


def test_killed_runs_lose_no_line_and_no_dead_letter(tmp_path: Path) -> None:
    check("jsonl", tmp_path, 300_000, kills=2, seed=1)


@pytest.mark.slow  # up to 20 kills, two seconds each, for each format
@pytest.mark.parametrize("kind", KINDS)
def test_input_of_each_format_arrives_whole_behind_many_kills(tmp_path: Path, kind: str) -> None:
    check(kind, tmp_path, 4_000_000, kills=20, seed=KINDS.index(kind))
