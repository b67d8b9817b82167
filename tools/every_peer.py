"""Runs the producer tests of every client that kafkabuf has a face for, and prints a table: `make test-peers`.

The broker is the embedded cluster, or with --kafka a real Apache Kafka. Each tools/peers_*.py has the tests of a
client; `python -m tools.peers_aiokafka --help` lists the options of a single run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tools.peers import Outcome, outcome_file

PREFIX = "peers_"
TOOLS = sorted(Path(__file__).parent.glob(f"{PREFIX}*.py"))


def main() -> int:
    names = [*map(peer_of, TOOLS)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", action="store_true", help="use a real Apache Kafka instead of the embedded cluster")
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"some of {', '.join(names)} (default: all)")
    arguments = parser.parse_args()
    if unknown := set(arguments.peers) - set(names):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [(name, tool) for name, tool in zip(names, TOOLS, strict=True) if name in (arguments.peers or names)]
    outcomes = {name: run(tool.stem, embedded=not arguments.kafka) for name, tool in chosen}
    print_table(outcomes)
    return 0 if all(outcome is not None and not outcome.failed for outcome in outcomes.values()) else 1


def peer_of(tool: Path) -> str:
    return tool.stem.removeprefix(PREFIX).replace("_", "-")


def run(tool: str, *, embedded: bool) -> Outcome | None:
    """Run a client's tests. None: they did not end."""
    module = f"tools.{tool}"
    package = importlib.import_module(module).PEER.package
    outcome_file(package).unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", module, *(["--embedded"] if embedded else [])], check=False)
    return read_outcome(package)


def read_outcome(package: str) -> Outcome | None:
    file = outcome_file(package)
    return Outcome(**json.loads(file.read_text())) if file.exists() else None


def print_table(outcomes: dict[str, Outcome | None]) -> None:
    print(f"\n{'peer':<18}{'pass with it':>14}{'with kafkabuf':>15}{'fail':>6}{'left out':>10}")
    for name, outcome in outcomes.items():
        if outcome is None:
            print(f"{name:<18}{'did not run':>14}")
            continue
        figures = f"{outcome.theirs:>14}{outcome.ours:>15}{len(outcome.failed):>6}{len(outcome.left_out):>10}"
        print(f"{name:<18}{figures}")
    for name, outcome in outcomes.items():
        if outcome is not None:
            print_tests(name, outcome)


def print_tests(name: str, outcome: Outcome) -> None:
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for test, reason in outcome.left_out.items():
        by_reason[reason].append(test.rpartition(".")[2])
    for reason, tests in sorted(by_reason.items()):
        print(f"\n{name}, left out: {reason}: {', '.join(tests)}")
    for test in outcome.failed:
        print(f"\n{name}, fails with kafkabuf only: {test}")


if __name__ == "__main__":
    sys.exit(main())
