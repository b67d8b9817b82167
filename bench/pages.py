"""The figures of README.md and docs/numbers.md from the results of a run: `python -m bench.pages [build/bench]`.

A page has a place for the figures of a claim between the comments `<!-- figures CLAIM -->` (a sentence) or
`<!-- figures CLAIM table -->`, and `<!-- /figures -->`. Places whose CLAIM.json the folder lacks stay as they are, and
so do those of a claim that a run of all claims gave less work than its own command does. send.json also gives the
pictures docs/assets/send-light.svg and send-dark.svg. A sentence and the pictures, which the README shows first, need
five rounds (`make bench-send ARGS="--rounds 5"`), and stay as they are with fewer.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import claims, picture
from bench.append import send
from bench.claim import Metric
from bench.measure import CPU, RATE

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "numbers.md")
ASSETS = ROOT / "docs" / "assets"
FEWEST_ROUNDS = 5
_PLACE = re.compile(r"(<!-- figures ([\w-]+)( table)? -->\n)(.*?)(<!-- /figures -->)", re.DOTALL)

Run = Mapping[str, Any]
"""The content of a claim's JSON."""


def filled(page: str, runs: Mapping[str, Run]) -> str:
    """The text of a page with the figures of the runs, by the claim's name."""

    def place(match: re.Match[str]) -> str:
        start, name, kind, _, end = match.groups()
        if name not in runs or (not kind and not steady(runs[name])):
            return match[0]
        new = table(runs[name], claims.load(name).metrics) if kind else SENTENCES[name](runs[name])
        return f"{start}{new}\n{end}"

    return _PLACE.sub(place, page)


def table(run: Run, metrics: Sequence[Metric]) -> str:
    """A row for each case: the medians of its metrics, and their ratios to its baseline."""
    compared = [metric for metric in metrics if metric.ratio]
    headings = ["", *(metric.heading for metric in metrics), *(f"{metric.heading}, ratio" for metric in compared)]
    rows = [
        [
            f"**{name}**" if name == case["baseline"] else name,
            *(format(case["medians"][metric.name], metric.format) for metric in metrics),
            *(f"{case['ratios'][metric.name]:.2f}" for metric in compared),
        ]
        for name, case in run["cases"].items()
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, ["---", *["---:"] * (len(headings) - 1)], *rows)]
    baselines = " or ".join(dict.fromkeys(case["baseline"] for case in run["cases"].values()))
    return "\n".join((*lines, "", f"Ratios are to {baselines}. {circumstances(run)}"))


def counts_of_rounds(run: Run) -> list[int]:
    return [len(case["rounds"]) for case in run["cases"].values()]


def steady(run: Run) -> bool:
    return min(counts_of_rounds(run)) >= FEWEST_ROUNDS


def circumstances(run: Run) -> str:
    machine = run["machine"]
    fewest, most = min(counts := counts_of_rounds(run)), max(counts)
    rounds = f"Medians of {most if fewest == most else f'{fewest} to {most}'} rounds" if most > 1 else "One round"
    kafka = "" if machine["kafka"] == "not used" else f", which Apache Kafka {machine['kafka']} shares"
    return f"{rounds} on {machine['time'][:10]}; {machine['cores']} cores of {machine['processor']}{kafka}."


def pair(run: Run, case: str, other: str) -> str:
    """How two cases compare: the medians of the rounds' ratios."""
    rounds = list(zip(run["cases"][case]["rounds"], run["cases"][other]["rounds"], strict=True))
    rate, cpu = (
        statistics.median(ours[name] / theirs[name] for ours, theirs in rounds) for name in (RATE.name, CPU.name)
    )
    return f"{rate:.1f} times the rate at {cpu:.2f} of the CPU time"


def sentence_of_send(run: Run) -> str:
    told = pair(run, send.SEND_CALLBACK, send.CONFLUENT)
    bare = pair(run, send.SEND_LARGE, send.CONFLUENT_BARE)
    return (
        "Beside confluent-kafka, 100-byte values, acks=all: with a callback for each record in both,\n"
        f"{told}. Without callbacks, {bare};\n"
        "the future that `send()` returns still tells each outcome, where a bare `produce()` tells nothing\n"
        f"(`make bench-send`). {circumstances(run)}"
    )


SENTENCES: dict[str, Callable[[Run], str]] = {"send": sentence_of_send}


def is_whole(run: Run) -> bool:
    """Whether the run had the claim's amount of work, which its pages state."""
    claim = claims.load(run["claim"])
    return int(run[claim.unit]) >= claim.amount


def main(folder: Path) -> None:
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json") if path.stem in claims.MODULES}
    runs = {name: run for name, run in found.items() if is_whole(run)}
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), runs), encoding="utf-8")
    if "send" in runs and steady(runs["send"]):
        for theme in picture.THEMES:
            (ASSETS / f"send-{theme}.svg").write_text(picture.svg(runs["send"], theme), encoding="utf-8")
    print(f"figures of {', '.join(sorted(runs)) or 'no claim'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "bench")
