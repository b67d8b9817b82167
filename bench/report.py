"""The report of a run: a table, the goals that it met and missed, JSON with every figure, and a plot."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import plot
from bench.claim import Claim, Measurement, Metric, Results, Verdict, median, ratio, ratios


def table(claim: Claim, results: Results) -> Table:
    """The median of every metric, with the median of its ratios to the baseline."""
    shown = Table("", title=claim.title, caption="x: times the baseline, marked =", title_justify="left")
    for metric in claim.metrics:
        shown.add_column(metric.heading, justify="right")
    for case in results:
        shown.add_row(case, *(_cell(claim, results, case, metric) for metric in claim.metrics))
    return shown


def _cell(claim: Claim, results: Results, case: str, metric: Metric) -> str:
    text = format(median(results, case, metric.name), metric.format)
    if not metric.ratio:
        return text
    baseline = claim.baseline_of(case)
    return f"{text}  {'=' if case == baseline else 'x'} {ratio(results, case, baseline, metric.name):>5.2f}"


def show(claim: Claim, results: Results, console: Console) -> None:
    console.print(table(claim, results))
    for note in claim.notes:
        console.print(f"* {note}", markup=False, highlight=False)
    show_verdicts(claim.verdicts(results), console)


def show_verdicts(verdicts: Iterable[Verdict], console: Console) -> None:
    for verdict in verdicts:
        console.print(verdict.line, markup=False, highlight=False, style=None if verdict.met else "bold")


def write(
    claim: Claim,
    results: Results,
    amount: int,
    machine: dict[str, object],
    folder: Path,
) -> list[Path]:
    """Write `folder`/NAME.json and, if matplotlib is installed, NAME.png; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{claim.name}.json"
    path.write_text(json.dumps(as_json(claim, results, amount, machine), indent=1) + "\n")
    if not plot.available():
        return [path]
    image = path.with_suffix(".png")
    plot.write(claim, results, image)
    return [path, image]


def as_json(claim: Claim, results: Results, amount: int, machine: dict[str, object]) -> dict[str, object]:
    return {
        "claim": claim.name,
        "title": claim.title,
        "machine": machine,
        claim.unit: amount,
        "rounds": max(len(rounds) for rounds in results.values()),
        "cases": {case: _case(claim, results, case, rounds) for case, rounds in results.items()},
        "goals": [
            {
                "text": verdict.goal.text,
                "case": verdict.goal.case,
                "metric": verdict.goal.metric,
                "other": verdict.goal.other,
                "at_most" if verdict.goal.at_most else "at_least": verdict.goal.bound,
                "figure": verdict.figure,
                "met": verdict.met,
            }
            for verdict in claim.verdicts(results)
        ],
        "notes": list(claim.notes),
    }


def _case(claim: Claim, results: Results, case: str, rounds: Iterable[Measurement]) -> dict[str, object]:
    baseline = claim.baseline_of(case)
    compared = [metric.name for metric in claim.metrics if metric.ratio]
    return {
        "share": claim.case(case).share,
        "medians": {metric.name: median(results, case, metric.name) for metric in claim.metrics},
        "baseline": baseline,
        "ratios": {name: ratio(results, case, baseline, name) for name in compared},
        "ratios_by_round": {name: ratios(results, case, baseline, name) for name in compared},
        "rounds": list(rounds),
    }
