"""Fuzzes the public Python API: no argument crashes it, hangs it, or loses a record or memory.

python -m tests.hostile.fuzz_api --seconds 60         runs rounds of examples, each round in a process of its own
python -m tests.hostile.fuzz_api --seed 7 --rounds 1  runs one round again

An example makes producers and calls their methods with odd objects (objects.py, arrow.py), from many
threads, with signals and exceptions thrown in, while topics grow and shrink (machine.py). world.py
checks what must hold. hypothesis draws the example from the round's seed. A round that dies, hangs or breaks a promise
leaves a file in build/fuzz: the steps of its last example, and the output of its process.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path("build/fuzz")
# A longer step counts as hanging. close() may wait for delivery.timeout.ms, and the machine may be busy.
_STEP_SECONDS = 60.0
_EXAMPLES = 60
_STEPS = 12


# ---- a round, in its own process -------------------------------------------------------------------------------------


def run_round(seed: int, deadline: float, journal: Path, step_seconds: float) -> None:
    """Run the examples of one seed. None but the first begins after `deadline`."""
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    from kafkabuf.broker import EmbeddedCluster
    from tests.hostile.fuzz_api.machine import Machine

    faulthandler.enable()
    with _silence(), EmbeddedCluster(auto_create_topics=False) as cluster, journal.open("w", buffering=1) as notes:
        attributes = {"cluster": cluster, "notes": notes, "deadline": deadline, "patience": step_seconds}
        machine = type("Api", (Machine,), attributes)
        try:
            run_state_machine_as_test(
                seeded(seed)(machine),
                settings=settings(
                    max_examples=_EXAMPLES,
                    stateful_step_count=_STEPS,
                    # A smaller example may not fail again: the threads' order is not the seed's.
                    phases=[Phase.generate],
                    database=None,
                    deadline=None,
                    print_blob=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        except BaseException:  # hypothesis replaces the machine's own, because the example drew less than others
            if machine.failed or not machine.over:  # type: ignore[attr-defined]
                raise
        notes.write(f"# {machine.examples} examples\n")  # type: ignore[attr-defined]


@contextmanager
def _silence() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("kafkabuf", "asyncio", "concurrent.futures")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


# ---- rounds ----------------------------------------------------------------------------------------------------------


class Failure(NamedTuple):
    seed: int
    path: Path
    reason: str


def fuzz(
    seconds: float, seed: int, rounds: int | None = None, *, keep_going: bool = False, options: tuple[str, ...] = ()
) -> tuple[int, list[Failure]]:
    """The number of examples that ran, and the failures: the first failure, or all of them with `keep_going`."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    until, examples, number = time.monotonic() + seconds, 0, 0
    failures: list[Failure] = []
    while time.monotonic() < until and (rounds is None or number < rounds) and (keep_going or not failures):
        count, failure = _round(seed + number, until, options)
        examples += count
        failures += [] if failure is None else [failure]
        number += 1
    return examples, failures


def _round(seed: int, until: float, options: tuple[str, ...]) -> tuple[int, Failure | None]:
    journal = _FOLDER / f"api-{seed}.journal"
    command = [sys.executable, "-m", "tests.hostile.fuzz_api", "--seed", str(seed), "--until", str(until)]
    left = until - time.monotonic() + 4 * _STEP_SECONDS
    try:
        done = subprocess.run(
            [*command, "--journal", str(journal), *options],
            capture_output=True, text=True, errors="replace", timeout=left,
        )  # fmt: skip
        code, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, output = -1, f"hangs: no end after {left:.0f} s\n{error.stderr!r}"
    notes = journal.read_text() if journal.exists() else ""
    journal.unlink(missing_ok=True)
    output = notes[notes.rfind("==== ") :] + output
    if code == 0:
        return int(notes.rsplit("# ", 1)[1].split()[0]), None
    path = _FOLDER / f"api-{seed}.txt"
    path.write_text(f"exit code {code}; again: python -m tests.hostile.fuzz_api --seed {seed} --rounds 1\n\n{output}")
    return notes.count("==== "), Failure(seed, path, _reason(code, output))


def _reason(code: int, output: str) -> str:
    """The line of the output that names the failure."""
    lines = [line.strip() for line in output.splitlines()]
    signs = ("ERROR: AddressSanitizer", "runtime error:", "Fatal Python error", "Timeout (", "hangs:", "FuzzError")
    reasons = [line for sign in signs for line in lines if sign in line]
    return reasons[0] if reasons else next((line for line in reversed(lines) if line), f"exit code {code}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz_api", description="Fuzz the public Python API.")
    parser.add_argument("--seconds", type=float, default=60, help="how long (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round (default %(default)s)")
    parser.add_argument("--rounds", type=int, help="at most so many rounds")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    # Options of a round's process.
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--step-seconds", type=float, default=_STEP_SECONDS, help=argparse.SUPPRESS)
    parser.add_argument("--plant", help=argparse.SUPPRESS)  # a fault, by module:function
    options = parser.parse_args(arguments)
    if options.journal is not None:
        if options.plant is not None:
            module, _, name = options.plant.partition(":")
            getattr(importlib.import_module(module), name)()
        run_round(options.seed, options.until, options.journal, options.step_seconds)
        return 0
    began = time.monotonic()
    examples, failures = fuzz(options.seconds, options.seed, options.rounds, keep_going=options.keep_going)
    for failure in failures:
        print(f"seed {failure.seed}: {failure.reason}: see {failure.path}", file=sys.stderr)
    seconds = time.monotonic() - began
    print(f"the Python API: {examples} examples in {seconds:.0f} s, {len(failures) or 'no'} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
