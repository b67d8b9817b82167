"""What a run found: a table, its goals met or missed, JSON with every single figure, and a plot."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import plot
from bench.claim import Claim, Measurement, Results, Verdict, median, ratio, ratios


def verdicts(claim: Claim, results: Results) -> list[Verdict]:
    """Of the goals whose cases were run."""
    return [verdict for goal in claim.goals if (verdict := goal.judge(results)) is not None]


def table(claim: Claim, results: Results) -> Table:
    """Medians of every metric, and of its ratios to the baseline."""
    compared = [metric for metric in claim.metrics if metric.ratio and claim.baseline in results]
    found = Table("", title=claim.title, caption=f"ratios: to {claim.baseline}", title_justify="left")
    for heading in (
        *(metric.heading for metric in claim.metrics),
        *(f"{metric.heading}, ratio" for metric in compared),
    ):
        found.add_column(heading, justify="right")
    found.columns[0].no_wrap = True
    for case in results:
        medians = (format(median(results, case, metric.name), metric.format) for metric in claim.metrics)
        quotients = (f"{ratio(results, case, claim.baseline, metric.name):.2f}" for metric in compared)
        found.add_row(case, *medians, *quotients)
    return found


def show(claim: Claim, results: Results, console: Console) -> None:
    console.print(table(claim, results))
    for note in claim.notes:
        console.print(f"* {note}", markup=False, highlight=False)
    show_verdicts(verdicts(claim, results), console)


def show_verdicts(found: Iterable[Verdict], console: Console) -> None:
    for verdict in found:
        console.print(verdict.line, markup=False, highlight=False, style=None if verdict.met else "bold")


def write(claim: Claim, results: Results, amount: int, machine: dict[str, object], folder: Path) -> list[Path]:
    """`folder`/NAME.json and, where matplotlib is installed, NAME.png; the paths of what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{claim.name}.json"
    path.write_text(json.dumps(as_json(claim, results, amount, machine), indent=1) + "\n")
    image = plot.write(claim, results, folder / f"{claim.name}.png") if claim.baseline in results else None
    return [path] if image is None else [path, image]


def as_json(claim: Claim, results: Results, amount: int, machine: dict[str, object]) -> dict[str, object]:
    return {
        "claim": claim.name,
        "title": claim.title,
        "machine": machine,
        claim.unit: amount,
        "rounds": max(len(rounds) for rounds in results.values()),
        "baseline": claim.baseline,
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
            for verdict in verdicts(claim, results)
        ],
        "notes": list(claim.notes),
    }


def _case(claim: Claim, results: Results, case: str, rounds: Iterable[Measurement]) -> dict[str, object]:
    compared = [metric.name for metric in claim.metrics if metric.ratio and claim.baseline in results]
    return {
        "share": claim.case(case).share,
        "medians": {metric.name: median(results, case, metric.name) for metric in claim.metrics},
        "ratios": {name: ratio(results, case, claim.baseline, name) for name in compared},
        "ratios_by_round": {name: ratios(results, case, claim.baseline, name) for name in compared},
        "rounds": list(rounds),
    }
