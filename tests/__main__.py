"""`python -m tests [--slow]`: all tests in three parts, side by side, each in a pytest of its own.

The tests of Spark share one session. The tests of Kafka share one server of each version. The other tests run on all
cores, each file on one of them (pytest-xdist). The output and the times of each part are left in build/tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path("build/tests")
PYTEST = [sys.executable, "-m", "pytest", "-q"]
# Without the plugin's own order: tests/conftest.py lets the longest files start first.
ON_ALL_CORES = ["-n", str(len(os.sched_getaffinity(0))), "--dist", "loadfile", "--no-loadscope-reorder"]
PARTS = {
    "spark": ["-m", "spark{}"],
    "kafka": ["-m", "kafka and not spark{}"],
    "python": ["-m", "not kafka and not spark{}", *ON_ALL_CORES],
}


def start(part: str, which: str) -> subprocess.Popen[bytes]:
    options = [option.format(which) for option in PARTS[part]]
    # A cache of their own: two processes that write one lose each other's failures.
    files = [f"--junitxml={FOLDER / part}.xml", "-o", f"cache_dir={FOLDER / part}.cache"]
    with (FOLDER / f"{part}.log").open("wb") as log:
        return subprocess.Popen([*PYTEST, *files, *options], stdout=log, stderr=subprocess.STDOUT)


def report(part: str, status: int, seconds: float) -> None:
    """The summary of a part that passed, all the output of one that failed."""
    lines = (FOLDER / f"{part}.log").read_text(errors="replace").splitlines()
    if status != 0:
        print("\n".join(lines))
    summary = lines[-1].strip("= ") if lines else "no output"
    print(f"tests: {part}: {summary}; {seconds:.0f} s, exit status {status}", flush=True)


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
    failed = []
    while running:
        time.sleep(0.1)
        for part, process in list(running.items()):
            if (status := process.poll()) is not None:
                del running[part]
                report(part, status, time.monotonic() - started)
                failed += [part] if status else []
    print(f"tests: {'failed: ' + ', '.join(failed) if failed else 'all passed'}, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
