"""The performance gate: `python -m bench.gate` fails if a kernel executes more instructions than its baseline.

Each kernel of bench/kernels.py has two figures in bench/baseline.json. Neither depends on how busy the machine is:

- `own`: the instructions inside kafkabuf's extensions for one unit of work. They depend only on the compiler, Cython
  and Python's headers, and can be compared where these are the same.
- `ratio`: the instructions of the whole process, interpreter and libc included, over those of a reference kernel in the
  same process. This figure shows work that moved into Python, and Python code of ours that grew.

A loss is an `own` more than BAND, or a `ratio` more than RATIO_BAND, above the baseline. `--accept` makes the present
counts the baseline.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.callgrind import CallgrindError, Count, count_kernels
from bench.kernels import KERNELS, REFERENCE, SOUND, TRIALS
from kafkabuf import _records

BASELINE = Path(__file__).with_name("baseline.json")
BAND = 0.03
# Wider than BAND: objects' addresses decide about collisions in the interpreter's caches, up to 2 % of a Sender's turn.
RATIO_BAND = 0.05
# The band of ratios under another build of the interpreter, for which only the reference kernel makes up.
WIDE_BAND = 0.10
# The figures, own and ratio, in which a trial must show a loss.
EXPECTED_LOSSES = {
    "the same again": (False, False),
    "a tenth more records": (True, True),
    "a Python call more": (False, True),
}


@dataclass(frozen=True)
class Reading:
    """A kernel's two figures for one unit of its work."""

    own: float
    ratio: float


@dataclass(frozen=True)
class Baseline:
    """Accepted readings. `own` is compared only in the same `environment`; `interpreter` decides the ratios' band."""

    environment: dict[str, str]
    interpreter: str
    kernels: dict[str, Reading]


class Verdict(Enum):
    SAME = "ok"
    FASTER = "faster: make bench-accept"
    SLOWER = "SLOWER"
    NEW = "NOT IN THE BASELINE"
    GONE = "NO LONGER COUNTED"

    @property
    def fails(self) -> bool:
        return self in (Verdict.SLOWER, Verdict.NEW, Verdict.GONE)


# ---- comparing -------------------------------------------------------------------------------------------------------


def change(before: float, now: float) -> float:
    """The relative change: 0.05 is five percent more. Any count is infinitely more than 0."""
    if before == now:
        return 0.0
    return now / before - 1 if before else float("inf")


def losses(before: Reading, now: Reading, ratio_band: float = RATIO_BAND) -> tuple[bool, bool]:
    """Whether `own` is above its band, and whether `ratio` is."""
    return change(before.own, now.own) > BAND, change(before.ratio, now.ratio) > ratio_band


def judge(before: Reading | None, now: Reading | None, ratio_band: float = RATIO_BAND) -> Verdict:
    """A loss in one figure is a loss, even if the other figure has gained."""
    if before is None:
        return Verdict.NEW
    if now is None:
        return Verdict.GONE
    if any(losses(before, now, ratio_band)):
        return Verdict.SLOWER
    faster = change(before.own, now.own) < -BAND or change(before.ratio, now.ratio) < -ratio_band
    return Verdict.FASTER if faster else Verdict.SAME


def verdicts(before: Baseline, now: Baseline) -> dict[str, Verdict]:
    band = RATIO_BAND if before.interpreter == now.interpreter else WIDE_BAND
    names = list(now.kernels) + [name for name in before.kernels if name not in now.kernels]
    return {name: judge(before.kernels.get(name), now.kernels.get(name), band) for name in names}


def differences(before: Baseline, now: Baseline) -> list[str]:
    """The differences of environment that change the compiled code. Without one, the counts can be compared."""
    return [
        f"{name}: the baseline has {before.environment[name]!r}, here it is {value!r}"
        for name, value in now.environment.items()
        if before.environment and value != before.environment[name]
    ]


def blind_spots(counted: Mapping[str, Reading]) -> list[str]:
    """Trials in which the gate misses a loss, or shows a loss that is not there."""
    return [
        f"{trial}: losses in (own, whole) are {shown}, and must be {EXPECTED_LOSSES[trial]}"
        for trial in TRIALS
        if (shown := losses(counted[SOUND], counted[trial])) != EXPECTED_LOSSES[trial]
    ]


# ---- counting --------------------------------------------------------------------------------------------------------


def readings(counts: Mapping[str, Count]) -> dict[str, Reading]:
    reference = counts[REFERENCE].total
    return {name: Reading(round(count.own, 2), round(count.total / reference, 4)) for name, count in counts.items()}


def environment() -> dict[str, str]:
    return {
        "machine": platform.machine(),
        "compiler": compiler(Path(_records.__file__).read_bytes()),
        "flags": sysconfig.get_config_var("CFLAGS") or "",
        "cython": importlib.metadata.version("cython"),
        "python": "{}.{}".format(*sys.version_info),
    }


def compiler(extension: bytes) -> str:
    """Name and major version of the compiler of an extension, from the ELF section .comment."""
    match = re.search(rb"(clang) version (\d+)", extension) or re.search(rb"(GCC): \([^)]*\) (\d+)", extension)
    return b" ".join(match.groups()).decode() if match else "unknown"


def interpreter() -> str:
    return f"{sys.version}, {' '.join(platform.libc_ver())}"


# ---- the baseline ----------------------------------------------------------------------------------------------------


def load(path: Path) -> Baseline:
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError:
        return Baseline({}, "", {})
    kernels = {name: Reading(**figures) for name, figures in stored["kernels"].items()}
    return Baseline(stored["environment"], stored["interpreter"], kernels)


def save(path: Path, baseline: Baseline) -> None:
    path.write_text(json.dumps(asdict(baseline), indent=1) + "\n")


# ---- the command -----------------------------------------------------------------------------------------------------


def table(before: Baseline, now: Baseline, judged: Mapping[str, Verdict]) -> Table:
    shown = Table(
        title="Instructions: kafkabuf's own for one unit, and the whole process's over the reference kernel's"
    )
    shown.add_column("kernel", no_wrap=True)
    for heading in ("own: baseline", "now", "change", "whole: baseline", "now", "change"):
        shown.add_column(heading, justify="right")
    shown.add_column("verdict")
    for name, verdict in judged.items():
        old, new = before.kernels.get(name), now.kernels.get(name)
        cells = [*_cells(old, new, "own", ".1f"), *_cells(old, new, "ratio", ".3f")]
        shown.add_row(name, *cells, verdict.value, style="red" if verdict.fails else None)
    return shown


def _cells(before: Reading | None, now: Reading | None, figure: str, form: str) -> list[str]:
    figures = [getattr(reading, figure) for reading in (before, now) if reading is not None]
    percent = f"{change(*figures):+.1%}" if len(figures) == 2 else ""
    return [*("" if reading is None else format(getattr(reading, figure), form) for reading in (before, now)), percent]


def show_trials(counted: Mapping[str, Reading]) -> None:
    sound = counted[SOUND]
    print(f"The gate's trials on '{SOUND}':")
    for trial in TRIALS:
        own, ratio = change(sound.own, counted[trial].own), change(sound.ratio, counted[trial].ratio)
        print(f"  {trial}: own {own:+.1%}, whole {ratio:+.1%}: {judge(sound, counted[trial]).name}")


@click.command()
@click.option("--accept", is_flag=True, help="Make the present counts the baseline, and show the changes.")
def main(accept: bool) -> None:
    """Count the kernels' instructions and compare them with bench/baseline.json."""
    try:
        counted = readings(count_kernels())
    except CallgrindError as error:
        raise click.ClickException(str(error)) from None
    before = load(BASELINE)
    now = Baseline(environment(), interpreter(), {name: counted[name] for name in KERNELS if name != REFERENCE})
    changes, judged = differences(before, now), verdicts(before, now)
    Console(width=140).print(table(before, now, judged))
    show_trials(counted)
    if blind := blind_spots(counted):
        raise click.ClickException(
            "the gate misjudges its trials, so that its verdicts cannot be trusted:\n  " + "\n  ".join(blind)
        )
    if accept:
        save(BASELINE, now)
        print("\n".join(["bench/baseline.json now has these counts: check the changes, and commit it.", *changes]))
    elif changes:
        raise click.ClickException(
            "the counts cannot be compared:\n  " + "\n  ".join(changes) + "\n"
            "In a new environment of CI, run `make bench-accept` and commit its baseline. Elsewhere, run it on a good "
            "commit, then run `make bench-gate` on yours, and leave that baseline out of your commit."
        )
    elif failed := [name for name, verdict in judged.items() if verdict.fails]:
        raise click.ClickException(
            f"above their band, or without a baseline: {', '.join(failed)}. Find out why. If the loss is worth its "
            "price, run `make bench-accept`, and give the reason in the commit message."
        )


if __name__ == "__main__":
    main()
