"""`python -m bench.scale.document build/bench/scale.json` prints the tables of docs/scale.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.claim import Metric
from bench.scale.check import LOADS, MEASURED, METRICS, PREDICTED, WITHIN


def lines(written: Mapping[str, Any]) -> Iterator[str]:
    """The file's tables as Markdown, with the machine and the day."""
    machine = written["machine"]
    yield f"{machine['time'][:10]}, {machine['cores']} cores, load at the start {machine['load_at_start'][0]}"
    yield ""
    columns = ["", *(metric.heading for metric in METRICS)]
    yield from _table(columns, [[name, *_pairs(written["cases"], name)] for name in LOADS])
    for sheet in written["sheets"]:
        yield from ("", sheet["title"], "")
        yield from _table(sheet["columns"], sheet["rows"])


def _pairs(cases: Mapping[str, Any], name: str) -> Iterator[str]:
    """The prediction and the measurement of each metric; in bold where they differ by more than the goal allows."""
    predicted, measured = cases[f"{name}: {PREDICTED}"], cases[f"{name}: {MEASURED}"]
    for metric in METRICS:
        ratio = predicted["ratios"][metric.name]
        text = f"{_figure(predicted, metric)} : {_figure(measured, metric)} = {ratio:.2f}"
        yield text if abs(ratio - 1) <= WITHIN else f"**{text}**"


def _figure(case: Mapping[str, Any], metric: Metric) -> str:
    return format(case["medians"][metric.name], metric.format)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    print(*lines(json.loads(Path(sys.argv[1]).read_text())), sep="\n")
