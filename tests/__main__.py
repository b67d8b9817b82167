"""`python -m tests [--slow]`: all tests in three parts, side by side, each in a pytest of its own.

The tests of Spark's session share it. The tests of Kafka share one server of each version. The other tests, those of
the sink without Spark among them, run in one more process than cores, because some of them wait, and each file in one
of these (pytest-xdist). The output and the times of each part are left in build/tests.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.quick import workers

FOLDER = Path("build/tests")
PYTEST = [sys.executable, "-m", "pytest", "-q"]
# Without the plugin's own order: tests/conftest.py lets the longest files start first.
IN_PARALLEL = ["-n", str(workers()), "--dist", "loadfile", "--no-loadscope-reorder"]
OUTCOMES = ("failed", "passed", "skipped", "xfailed", "xpassed", "error", "errors")
OUTCOME = re.compile(rf"(\d+) ({'|'.join(OUTCOMES)})\b")
ENDING = re.compile(r"\b\d+ \w+.* in \d+\.\d+s\b")
PARTS = {
    "spark": ["-m", "session{}"],
    "kafka": ["-m", "kafka and not session{}"],
    "python": ["-m", "not kafka and not session{}", *IN_PARALLEL],
}


def start(part: str, which: str) -> subprocess.Popen[bytes]:
    options = [option.format(which) for option in PARTS[part]]
    # A cache of their own: two processes that write one lose each other's failures.
    files = [f"--junitxml={FOLDER / part}.xml", "-o", f"cache_dir={FOLDER / part}.cache"]
    with (FOLDER / f"{part}.log").open("wb") as log:
        return subprocess.Popen([*PYTEST, *files, *options], stdout=log, stderr=subprocess.STDOUT)


def report(part: str, status: int, seconds: float) -> Counter[str]:
    """Print the summary of a part that passed, or all the output of a part that failed. Return the counts."""
    lines = (FOLDER / f"{part}.log").read_text(errors="replace").splitlines()
    if status != 0:
        print("\n".join(lines))
    # Threads of a program that ends may write behind pytest.
    summary = next((line.strip("= ") for line in reversed(lines) if ENDING.search(line)), "no summary")
    print(f"tests: {part}: {summary}; {seconds:.0f} s, exit status {status}", flush=True)
    return Counter({outcome: int(count) for count, outcome in OUTCOME.findall(summary)})


def closing_line(outcomes: Counter[str], seconds: float) -> str:
    """The outcomes of all parts, as pytest's own last line has them."""
    counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in OUTCOMES if outcomes[outcome])
    return f" {counts or 'no tests ran'} in {seconds:.2f}s ".center(100, "=")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("--slow", action="store_true", help="the slow tests too, and all seeds and examples")
    slow = parser.parse_args().slow
    if slow:
        os.environ["KAFKABUF_EFFORT"] = "whole"
    FOLDER.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    running = {part: start(part, "" if slow else " and not slow") for part in PARTS}
    print(f"tests: running {', '.join(running)}; their output goes to {FOLDER}/*.log", flush=True)
    failed, outcomes = [], Counter[str]()
    while running:
        time.sleep(0.1)
        for part, process in list(running.items()):
            if (status := process.poll()) is not None:
                del running[part]
                outcomes += report(part, status, time.monotonic() - started)
                failed += [part] if status else []
    if failed:
        print(f"tests: failed: {', '.join(failed)}")
    print(closing_line(outcomes, time.monotonic() - started))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
