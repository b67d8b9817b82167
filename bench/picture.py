"""The picture of the README: rate and CPU time beside other producers, as SVG for a light or a dark page."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from bench.append import send
from bench.measure import CPU, RATE

# The cases that the picture shows, from top to bottom, and their names in it.
SHOWN = {
    send.SEND_LARGE: "kafkabuf",
    send.SEND_CALLBACK: "kafkabuf, callback for each record",
    send.CONFLUENT: "confluent-kafka, callback for each record",
    send.CONFLUENT_BARE: "confluent-kafka",
    send.CONFLUENT_BEST: "confluent-kafka, tuned",
    send.JAVA_LARGE: "Java's producer, warm",
    "aiokafka send_batch 128 KiB": "aiokafka, batches made by hand",
    "aiokafka send 128 KiB": "aiokafka",
    "kafka-python send 128 KiB": "kafka-python",
}
FONTS = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
# A bar that is longer than this many times the baseline's is cut.
LONGEST = 1.6


class Theme(NamedTuple):
    ink: str
    ours: str
    others: str


THEMES = {"light": Theme("#24292f", "#0f7f7a", "#b4bcc4"), "dark": Theme("#e6edf3", "#4fd1c5", "#59636e")}


def svg(run: Mapping[str, Any], theme: str) -> str:
    """The text of the picture, with a transparent ground. The same run gives the same text."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    names = [name for name in SHOWN if name in run["cases"]]
    with mpl.rc_context({"svg.hashsalt": "kafkabuf", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(9, 0.62 + 0.33 * len(names)), layout="constrained")
        FigureCanvasSVG(figure)
        rate, cpu = figure.subplots(1, 2, sharey=True)
        limit = LONGEST * run["cases"][send.CONFLUENT]["medians"][CPU.name]
        rates, costs = ([run["cases"][name]["medians"][metric] for name in names] for metric in (RATE.name, CPU.name))
        _draw(rate, names, [figure / 1e6 for figure in rates], "million records a second", colours, None)
        _draw(cpu, names, costs, "µs of CPU time for a record", colours, limit)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    # Whatever sans-serif font the reader's machine has; the names of fonts of this machine mean nothing there.
    return re.sub(r"font: (\d+)px [^\";]*", rf"font: \1px {FONTS}", text.getvalue())


def _draw(panel: Any, names: list[str], figures: list[float], title: str, colours: Theme, limit: float | None) -> None:
    longest = max(figures) if limit is None else limit
    for row, (name, figure) in enumerate(zip(names, figures, strict=True)):
        shown = min(figure, longest)
        panel.barh(row, shown, height=0.66, color=colours.ours if name.startswith("kafkabuf") else colours.others)
        text = f"{figure:.3g}" if figure <= longest else f"{figure:.3g} →"
        place = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        panel.annotate(text, (shown, row), **place, fontsize=9, color=colours.ink)
    panel.set_xlim(0, longest * 1.16)
    panel.set_xticks([])
    panel.set_yticks(range(len(names)), [SHOWN[name] for name in names], fontsize=9, color=colours.ink)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.set_title(title, loc="left", fontsize=10, color=colours.ink)
    panel.tick_params(axis="both", length=0)
    for side in panel.spines.values():
        side.set_visible(False)
