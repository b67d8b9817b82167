"""The slowest tests of a run as a Markdown table: `python -m tools.slowest build/tests/*.xml`.

The time of a test includes its fixtures. So the first test that needs a server or a session includes the start of it.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import chain
from pathlib import Path


def slowest(reports: Iterable[Path], count: int) -> list[tuple[str, float, int]]:
    """Of the tests that take longest: name, seconds of all its parameters together, and the number of these."""
    seconds: dict[str, float] = defaultdict(float)
    parameters = Counter[str]()
    for case in chain.from_iterable(ElementTree.parse(report).iter("testcase") for report in reports):
        path = case.attrib["classname"].replace(".", "/") + ".py"
        name = f"{path}::{case.attrib['name'].partition('[')[0]}"
        seconds[name] += float(case.attrib["time"])
        parameters[name] += 1
    longest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:count]
    return [(name, seconds[name], parameters[name]) for name in longest]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.slowest", description=__doc__)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--over", type=float, help="print only the names of the tests that take more seconds, sorted")
    arguments = parser.parse_args()
    if arguments.over is not None:
        everything = slowest(arguments.reports, sys.maxsize)
        print("\n".join(sorted(name for name, seconds, _ in everything if seconds > arguments.over)))
        return
    print("| seconds | runs | test |\n|---:|---:|---|")
    for name, seconds, runs in slowest(arguments.reports, arguments.count):
        print(f"| {seconds:.1f} | {runs} | `{name}` |")


if __name__ == "__main__":
    main()
