"""A claim as a picture: a bar for the median ratio to the baseline, and a dot for each round."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from bench.claim import Claim, Metric, Results, median, ratio, ratios

# Okabe and Ito's colours, which every kind of colour vision can tell apart.
OURS, LIMIT, OTHERS, INK = "#0072B2", "#E69F00", "#BBBBBB", "#333333"
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1}
# The most panels side by side; more panels lie in two columns.
WIDEST = 3
# The room for figures right of the longest bar, as a part of the bar.
MARGIN = 0.45


def available() -> bool:
    """Whether matplotlib is installed, which only the extra `bench` installs."""
    return importlib.util.find_spec("matplotlib") is not None


def write(claim: Claim, results: Results, path: Path) -> None:
    """One panel for each metric that has ratios."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = [metric for metric in claim.metrics if metric.ratio]
    columns = len(metrics) if len(metrics) <= WIDEST else 2
    rows = -(-len(metrics) // columns)
    figure = Figure(figsize=(3 + 3.8 * columns, 0.9 + (0.7 + 0.32 * len(results)) * rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(claim.title, x=0.01, ha="left", fontsize=13, color=INK)
    figure.supxlabel(_legend(claim, results), x=0.01, ha="left", fontsize=8, color=INK)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
    for panel, metric in zip(panels, metrics, strict=False):
        _draw(panel, claim, results, metric)
    for panel in panels[len(metrics) :]:
        panel.remove()
    figure.savefig(path, dpi=150)


def _legend(claim: Claim, results: Results) -> str:
    baselines = "; ".join(dict.fromkeys(claim.baseline_of(case) for case in results))
    text = f"Ratio to {baselines}: the bar is the median, the dots are the rounds; in brackets the median figure."
    verdicts = claim.verdicts(results)
    return f"{text}\nGoals met: {sum(verdict.met for verdict in verdicts)} of {len(verdicts)}." if verdicts else text


def _draw(panel: Any, claim: Claim, results: Results, metric: Metric) -> None:
    longest = 1.0
    for row, case in enumerate(results):
        baseline = claim.baseline_of(case)
        typical = ratio(results, case, baseline, metric.name)
        rounds = ratios(results, case, baseline, metric.name)
        panel.barh(row, typical, height=0.62, color=_colour(case), zorder=1)
        panel.plot(rounds, [row] * len(rounds), "o", ms=3.5, mfc="white", mec=INK, mew=0.7, zorder=3)
        text = f"{typical:.2f}  ({median(results, case, metric.name):{metric.format}})"
        end = max(typical, *rounds)
        panel.annotate(
            text, (end, row), (6, 0), textcoords="offset points", va="center", fontsize=8, color=INK, bbox=PAPER
        )
        longest = max(longest, end)
    panel.axvline(1, color=INK, lw=0.8, zorder=2)
    panel.set_xlim(0, longest * (1 + MARGIN))
    panel.set_yticks(range(len(results)), list(results), fontsize=8)
    panel.set_ylim(len(results) - 0.4, -0.6)
    panel.set_title(f"{metric.heading} ({metric.direction})", loc="left", fontsize=9, color=INK)
    panel.tick_params(axis="both", length=0, labelsize=8, colors=INK)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _colour(case: str) -> str:
    if case.startswith("kafkabuf"):
        return OURS
    return LIMIT if case.startswith("replay") else OTHERS
