"""The tables of docs/scale.md, from one run of the command.

`python -m bench.scale.document build/bench/scale.json` prints them. With a file after it, it writes them into the file:
each below the comment that has its title, in the place of what was there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.claim import Metric
from bench.scale.check import LOADS, MEASURED, METRICS, PREDICTED, WITHIN

RUN, CHECK = "The run", "The check"


def lines(written: Mapping[str, Any]) -> Iterator[str]:
    """The file's tables as Markdown, with the machine and the day."""
    for title, block in blocks(written).items():
        yield from (f"<!-- {title} -->", "", *block, "")


def filled(text: str, written: Mapping[str, Any]) -> str:
    """The document with the tables of this run. Raises ValueError where one of them has no place."""
    for title, block in blocks(written).items():
        before, marker, after = text.partition(f"<!-- {title} -->\n\n")
        if not marker:
            raise ValueError(f"the document has no place for: {title}")
        _, _, rest = after.partition("\n\n")
        text = before + marker + "\n".join(block) + "\n\n" + rest
    return text


def blocks(written: Mapping[str, Any]) -> dict[str, list[str]]:
    """The lines of each table, by its title."""
    return {
        RUN: [_run(written)],
        CHECK: _table(
            ["load", *(metric.heading for metric in METRICS)],
            [[name, *_pairs(written["cases"], name)] for name in LOADS],
        ),
        **{sheet["title"]: _table(sheet["columns"], sheet["rows"]) for sheet in written["sheets"]},
    }


def _run(written: Mapping[str, Any]) -> str:
    machine = written["machine"]
    met = [_is_met(_ratio(written["cases"], name, metric)) for name in LOADS for metric in METRICS]
    return (
        f"Run of {machine['time'][:10]}, {machine['cores']} cores, load at the start {machine['load_at_start'][0]}: "
        f"{sum(met)} of {len(met)} predictions are within {WITHIN:.0%}."
    )


def _pairs(cases: Mapping[str, Any], name: str) -> Iterator[str]:
    """The prediction and the measurement of each metric; in bold where they differ by more than the goal allows."""
    predicted, measured = cases[f"{name}: {PREDICTED}"], cases[f"{name}: {MEASURED}"]
    for metric in METRICS:
        ratio = _ratio(cases, name, metric)
        text = f"{_figure(predicted, metric)} : {_figure(measured, metric)} = {ratio:.2f}"
        yield text if _is_met(ratio) else f"**{text}**"


def _ratio(cases: Mapping[str, Any], name: str, metric: Metric) -> float:
    return float(cases[f"{name}: {PREDICTED}"]["ratios"][metric.name])


def _is_met(ratio: float) -> bool:
    return abs(ratio - 1) <= WITHIN


def _figure(case: Mapping[str, Any], metric: Metric) -> str:
    return format(case["medians"][metric.name], metric.format)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]


def main(source: str, document: str = "") -> None:
    written = json.loads(Path(source).read_text())
    if document:
        Path(document).write_text(filled(Path(document).read_text(), written))
    else:
        print(*lines(written), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
