"""Fuzzing of the public Python API: whatever it is given, nothing crashes, hangs, or is lost.

python -m tests.hostile.fuzz_api --seconds 60         rounds of examples, each round in a process of its own
python -m tests.hostile.fuzz_api --seed 7 --rounds 1  one round again

An example makes producers and calls their methods with odd objects (fuzz_api_objects.py, fuzz_api_arrow.py), from many
threads, with signals and exceptions thrown in, while topics grow and shrink (fuzz_api_machine.py); what must hold
is in fuzz_api_world.py. It is drawn by hypothesis from the round's seed. A round that dies, hangs or breaks a promise
leaves a file in build/fuzz: the steps of its last example, and what was said.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path("build/fuzz")
# A step that takes longer has hung: close() may wait for delivery.timeout.ms, and the machine may be busy.
_STEP_SECONDS = 60.0
_EXAMPLES = 60
_STEPS = 12


# ---- a round, in its own process -------------------------------------------------------------------------------------


def run_round(seed: int, deadline: float, journal: Path, step_seconds: float) -> None:
    """Examples of one seed; those that would begin after `deadline` do nothing, but for the first."""
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    from kafkabuf.broker import EmbeddedCluster
    from tests.hostile.fuzz_api_machine import Machine

    for name in ("kafkabuf", "asyncio", "concurrent.futures"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    faulthandler.enable()
    with EmbeddedCluster(auto_create_topics=False) as cluster, journal.open("w", buffering=1) as notes:
        given = {"cluster": cluster, "notes": notes, "deadline": deadline, "patience": step_seconds}
        machine = type("Api", (Machine,), given)
        run_state_machine_as_test(
            seeded(seed)(machine),
            settings=settings(
                max_examples=_EXAMPLES,
                stateful_step_count=_STEPS,
                phases=[Phase.generate],  # threads take turns as they like: nothing to be shrunk
                database=None,
                deadline=None,
                print_blob=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
        notes.write(f"# {machine.examples} examples\n")  # type: ignore[attr-defined]


# ---- rounds ----------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    seed: int
    path: Path
    reason: str


def fuzz(
    seconds: float, seed: int, rounds: int | None = None, *, keep_going: bool = False, options: tuple[str, ...] = ()
) -> tuple[int, list[Found]]:
    """How many examples there were, and what was found: the first of it, or with `keep_going` all."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    until, examples, number = time.monotonic() + seconds, 0, 0
    found: list[Found] = []
    while time.monotonic() < until and (rounds is None or number < rounds) and (keep_going or not found):
        count, problem = _round(seed + number, until, options)
        examples += count
        found += [] if problem is None else [problem]
        number += 1
    return examples, found


def _round(seed: int, until: float, options: tuple[str, ...]) -> tuple[int, Found | None]:
    journal = _FOLDER / f"api-{seed}.journal"
    command = [sys.executable, "-m", "tests.hostile.fuzz_api", "--seed", str(seed), "--until", str(until)]
    left = until - time.monotonic() + 4 * _STEP_SECONDS
    try:
        done = subprocess.run(
            [*command, "--journal", str(journal), *options],
            capture_output=True, text=True, errors="replace", timeout=left,
        )  # fmt: skip
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, said = -1, f"hangs: no end after {left:.0f} s\n{error.stderr!r}"
    notes = journal.read_text() if journal.exists() else ""
    journal.unlink(missing_ok=True)
    said = notes[notes.rfind("==== ") :] + said
    if code == 0:
        return int(notes.rsplit("# ", 1)[1].split()[0]), None
    path = _FOLDER / f"api-{seed}.txt"
    path.write_text(f"exit code {code}; again: python -m tests.hostile.fuzz_api --seed {seed} --rounds 1\n\n{said}")
    return notes.count("==== "), Found(seed, path, _reason(code, said))


def _reason(code: int, said: str) -> str:
    """In a line, what happened."""
    lines = [line.strip() for line in said.splitlines()]
    telling = ("ERROR: AddressSanitizer", "runtime error:", "Fatal Python error", "Timeout (", "hangs:", "FuzzError")
    found = [line for mark in telling for line in lines if mark in line]
    return found[0] if found else next((line for line in reversed(lines) if line), f"exit code {code}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz_api", description="Fuzz the public Python API.")
    parser.add_argument("--seconds", type=float, default=60, help="how long (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round (default %(default)s)")
    parser.add_argument("--rounds", type=int, help="no more than so many")
    parser.add_argument("--keep-going", action="store_true", help="go on after something was found")
    # For the process of a round.
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--step-seconds", type=float, default=_STEP_SECONDS, help=argparse.SUPPRESS)
    parser.add_argument("--plant", help=argparse.SUPPRESS)  # a fault, by module:function
    given = parser.parse_args(arguments)
    if given.journal is not None:
        if given.plant is not None:
            module, _, name = given.plant.partition(":")
            getattr(importlib.import_module(module), name)()
        run_round(given.seed, given.until, given.journal, given.step_seconds)
        return 0
    began = time.monotonic()
    examples, found = fuzz(given.seconds, given.seed, given.rounds, keep_going=given.keep_going)
    for one in found:
        print(f"seed {one.seed}: {one.reason}: see {one.path}", file=sys.stderr)
    print(f"the Python API: {examples} examples in {time.monotonic() - began:.0f} s, {len(found) or 'nothing'} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
