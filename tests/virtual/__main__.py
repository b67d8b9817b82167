"""`python -m tests.virtual --seed 17` replays one seed or several; `--first 0 --seeds 1000` runs many, on all cores."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter

from tests.virtual.scenario import simulate
from tests.virtual.world import Violation

_STRETCH = 25  # seeds that a process runs at a time


def _run(first: int) -> tuple[int, Counter[str], list[str]]:
    logging.disable(logging.WARNING)
    done: Counter[str] = Counter()
    failed = []
    for seed in range(first, first + _STRETCH):
        try:
            done += simulate(seed)
        except Exception as error:
            kind = "" if isinstance(error, Violation) else f"seed {seed}: {error!r}\n"
            failed.append(f"{kind}{error}\nreplay: python -m tests.virtual --seed {seed}")
    return first, done, failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.virtual", description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", help="run only these, with the client's log")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep-going", action="store_true", help="count the failures instead of ending at the first")
    options = parser.parse_args()
    if options.seed is not None:
        for seed in options.seed:
            print(dict(simulate(seed)))
        return 0
    started, done, seeds, failures = time.monotonic(), Counter[str](), 0, 0
    starts = range(options.first, options.first + options.seeds, _STRETCH)
    with multiprocessing.Pool(options.jobs, maxtasksperchild=40) as pool:
        for first, counts, failed in pool.imap_unordered(_run, starts):
            seeds += _STRETCH
            done += counts
            for text in failed:
                failures += 1
                print(text, file=sys.stderr, flush=True)
            if failed and not options.keep_going:
                break
            if first % (40 * _STRETCH) == 0:
                print(f"{seeds} seeds, {failures} failed, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{seeds} seeds, {failures} failed, {time.monotonic() - started:.0f} s: {dict(done.most_common(40))}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
