"""`python -m tests.spool.kills --kills 2000 --seed 1` kills so many processes; `--case 17` replays a case."""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import count

from rigs.real_kafka import KAFKA_4
from tests.spool.kills.real import RealTrouble
from tests.spool.kills.runs import Done, run, run_cases
from tests.spool.kills.trouble import EmbeddedTrouble


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.spool.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="the first case; each further case has the next seed")
    parser.add_argument("--case", type=int, nargs="+", help="run only the cases of these seeds")
    parser.add_argument("--times", type=int, default=1, help="run each case so often: kills are a matter of luck")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep-going", action="store_true", help="count the faults instead of ending at the first")
    parser.add_argument("--no-splits", action="store_true", help="no topic refuses batches as too large")
    parser.add_argument("--real", nargs="?", const=KAFKA_4, metavar="VERSION", help="on three nodes of Apache Kafka")
    parser.add_argument("--copies", action="store_true", help="open what a killed process had left a second time, too")
    options = parser.parse_args()
    if options.copies:
        os.environ["KILLS_OPEN_COPIES"] = "1"  # for the processes of the runs
    started, total = time.monotonic(), Done()
    if options.case is not None or options.real is not None:
        seeds = options.case * options.times if options.case is not None else count(options.seed * 1_000)
        kills = options.kills if options.case is None else None
        trouble = EmbeddedTrouble() if options.real is None else RealTrouble(options.real)
        total = run_cases(seeds, kills, trouble, not options.no_splits)
        print(*total.faults, sep="\n", file=sys.stderr)
    else:
        for done in run(options.kills, options.seed, options.jobs, splits=not options.no_splits):
            total += done
            print(f"{total.counts['kills']} kills of {options.kills}", file=sys.stderr, flush=True)
            if done.faults:
                print(*done.faults, sep="\n", file=sys.stderr, flush=True)
                if not options.keep_going:
                    break
    print(f"{total}; {time.monotonic() - started:.0f} s")
    return int(bool(total.faults))


if __name__ == "__main__":
    sys.exit(main())
