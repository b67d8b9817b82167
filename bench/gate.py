"""The performance regression gate: `python -m bench.gate` fails when a kernel executes more instructions than it did.

Each kernel of bench/kernels.py has two figures in bench/baseline.json, and neither depends on how busy the machine is:

- `own`: instructions inside kafkabuf's extensions for one unit of work. They are the compiler's output and nothing
  else's, so they compare wherever it, Cython and Python's headers are the same.
- `ratio`: instructions of the whole process, the interpreter's and libc's with ours, over those of a reference kernel
  that runs beside it. It sees work moved into Python, and Python code of ours that grew.

`own` more than BAND, or `ratio` more than RATIO_BAND, above the baseline is a loss. `--accept` makes what is counted
now the baseline.
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
# Wider: where objects lie moves collisions in the interpreter's caches, which is worth up to 2 % of a Sender's turn.
RATIO_BAND = 0.05
# For ratios where the baseline's interpreter was built otherwise: then the reference kernel has to even it out.
WIDE_BAND = 0.10
# In which of its figures, own and ratio, a trial shows a loss.
SEEN = {
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
    """`environment` decides whether `own` can be compared at all, `interpreter` how closely `ratio` can."""

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
    """0.05 for five percent more; what is counted from nothing on is infinitely more."""
    if before == now:
        return 0.0
    return now / before - 1 if before else float("inf")


def losses(before: Reading, now: Reading, ratio_band: float = RATIO_BAND) -> tuple[bool, bool]:
    """Whether `own`, and whether `ratio`, is beyond its band."""
    return change(before.own, now.own) > BAND, change(before.ratio, now.ratio) > ratio_band


def judge(before: Reading | None, now: Reading | None, ratio_band: float = RATIO_BAND) -> Verdict:
    """One figure that is lost is a loss, whatever the other has gained."""
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
    """What makes the compiled code another without anybody's doing; nothing: it can be compared."""
    return [
        f"{what}: the baseline has {before.environment[what]!r}, here it is {found!r}"
        for what, found in now.environment.items()
        if before.environment and found != before.environment[what]
    ]


def blind_spots(found: Mapping[str, Reading]) -> list[str]:
    """Trials in which the gate does not see what is there, or sees what is not."""
    return [
        f"{trial}: loss seen in own {seen[0]}, in whole {seen[1]}; it must be {SEEN[trial][0]}, {SEEN[trial][1]}"
        for trial in TRIALS
        if (seen := losses(found[SOUND], found[trial])) != SEEN[trial]
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
    """Name and major version of what compiled an extension, which says so in its ELF section .comment."""
    match = re.search(rb"(clang) version (\d+)", extension) or re.search(rb"(GCC): \([^)]*\) (\d+)", extension)
    return b" ".join(match.groups()).decode() if match else "unknown"


def interpreter() -> str:
    return f"{sys.version}, {' '.join(platform.libc_ver())}"


# ---- the baseline ----------------------------------------------------------------------------------------------------


def load(path: Path) -> Baseline:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return Baseline({}, "", {})
    kernels = {name: Reading(**figures) for name, figures in found["kernels"].items()}
    return Baseline(found["environment"], found["interpreter"], kernels)


def save(path: Path, baseline: Baseline) -> None:
    path.write_text(json.dumps(asdict(baseline), indent=1) + "\n")


# ---- the command -----------------------------------------------------------------------------------------------------


def table(before: Baseline, now: Baseline, found: Mapping[str, Verdict]) -> Table:
    shown = Table(
        title="Instructions: kafkabuf's own for one unit, and the whole process's over the reference kernel's"
    )
    shown.add_column("kernel", no_wrap=True)
    for heading in ("own: baseline", "now", "change", "whole: baseline", "now", "change"):
        shown.add_column(heading, justify="right")
    shown.add_column("verdict")
    for name, verdict in found.items():
        old, new = before.kernels.get(name), now.kernels.get(name)
        cells = [*_cells(old, new, "own", ".1f"), *_cells(old, new, "ratio", ".3f")]
        shown.add_row(name, *cells, verdict.value, style="red" if verdict.fails else None)
    return shown


def _cells(before: Reading | None, now: Reading | None, figure: str, form: str) -> list[str]:
    figures = [getattr(reading, figure) for reading in (before, now) if reading is not None]
    percent = f"{change(*figures):+.1%}" if len(figures) == 2 else ""
    return [*("" if reading is None else format(getattr(reading, figure), form) for reading in (before, now)), percent]


def show_trials(found: Mapping[str, Reading]) -> None:
    sound = found[SOUND]
    print(f"The gate tried on '{SOUND}':")
    for trial in TRIALS:
        own, ratio = change(sound.own, found[trial].own), change(sound.ratio, found[trial].ratio)
        print(f"  {trial}: own {own:+.1%}, whole {ratio:+.1%}: {judge(sound, found[trial]).name}")


@click.command()
@click.option("--accept", is_flag=True, help="Make what is counted now the baseline, and show what changed.")
def main(accept: bool) -> None:
    """Count the kernels' instructions and compare them with bench/baseline.json."""
    try:
        counted = readings(count_kernels())
    except CallgrindError as error:
        raise click.ClickException(str(error)) from None
    before = load(BASELINE)
    now = Baseline(environment(), interpreter(), {name: counted[name] for name in KERNELS if name != REFERENCE})
    unlike, found = differences(before, now), verdicts(before, now)
    Console(width=140).print(table(before, now, found))
    show_trials(counted)
    if blind := blind_spots(counted):
        raise click.ClickException(
            "the gate does not see what it must, so its verdicts are worth nothing:\n  " + "\n  ".join(blind)
        )
    if accept:
        save(BASELINE, now)
        print("\n".join(["bench/baseline.json holds these counts now: look at what changed, and commit it.", *unlike]))
    elif unlike:
        raise click.ClickException(
            "the counts cannot be compared:\n  " + "\n  ".join(unlike) + "\n"
            "Where this is CI's new environment, commit what `make bench-accept` writes. Elsewhere run it on a commit "
            "known to be good, and `make bench-gate` on yours; leave that baseline out of your commit."
        )
    elif failed := [name for name, verdict in found.items() if verdict.fails]:
        raise click.ClickException(
            f"beyond their band, or without a baseline: {', '.join(failed)}. Find out why. What is "
            "worth its price is accepted with `make bench-accept`, and the commit message says what for."
        )


if __name__ == "__main__":
    main()
