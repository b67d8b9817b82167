"""A claim as a picture: bars of the median ratio to the baseline, and a dot for each round."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from bench.claim import Claim, Metric, Results, median, ratio, ratios

# Okabe and Ito's colours, told apart by every kind of colour vision.
OURS, LIMIT, OTHERS, INK = "#0072B2", "#E69F00", "#BBBBBB", "#333333"
LOG_SCALE_FROM = 40.0


def write(claim: Claim, results: Results, path: Path) -> Path | None:
    """One panel for each metric that has ratios. None where matplotlib is missing: it is in the extra `bench` only."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = [metric for metric in claim.metrics if metric.ratio]
    size = (2.6 + 4.2 * len(metrics), 1.5 + 0.34 * len(results))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(claim.title, x=0.01, ha="left", fontsize=12, color=INK)
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        _draw(panel, claim, results, metric)
    figure.savefig(path, dpi=150)
    return path


def _draw(panel: Any, claim: Claim, results: Results, metric: Metric) -> None:
    cases = list(results)
    for row, case in enumerate(cases):
        found = ratio(results, case, claim.baseline, metric.name)
        rounds = ratios(results, case, claim.baseline, metric.name)
        panel.barh(row, found, height=0.62, color=_colour(case), zorder=1)
        panel.plot(rounds, [row] * len(rounds), "o", ms=3, mfc="white", mec=INK, mew=0.7, zorder=3)
        text = f" {found:.2f}  ({median(results, case, metric.name):{metric.format}})"
        panel.text(max(found, *rounds), row, text, va="center", fontsize=8, color=INK)
    panel.axvline(1, color=INK, lw=0.8, zorder=2)
    values = [value for case in cases for value in ratios(results, case, claim.baseline, metric.name) if value > 0]
    if values and max(values) / min(values) > LOG_SCALE_FROM:
        panel.set_xscale("log")
    panel.set_yticks(range(len(cases)), cases, fontsize=8)
    panel.set_ylim(len(cases) - 0.4, -0.6)
    panel.margins(x=0.3)
    panel.set_xlabel(f"{metric.heading}: ratio to {claim.baseline} (and median); {metric.direction}", fontsize=8)
    panel.tick_params(axis="both", length=0, labelsize=8, colors=INK)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _colour(case: str) -> str:
    if case.startswith("kafkabuf"):
        return OURS
    return LIMIT if case.startswith("replay") else OTHERS
