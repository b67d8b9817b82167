"""`python -m tools.suites [SUITE ...]`: run the suites, judge each failure, and write the table of the page."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import NamedTuple

from tools.suites import (
    FAILED,
    PASSED,
    ROOT,
    RealClusters,
    Suite,
    UnavailableError,
    aiokafka,
    embedded,
    kafka_python,
    kfake,
    kgo,
)
from tools.suites.known import KNOWN

SUITES = {"kafka-python": kafka_python.SUITE, "aiokafka": aiokafka.SUITE, "kgo": kgo.SUITE, "kfake": kfake.SUITE}
PAGE = ROOT / "docs" / "embedded-broker.md"
BEGIN, END = "<!-- suites: begin -->\n", "<!-- suites: end -->\n"


class Verdict(NamedTuple):
    """How a suite ended. `retried`, which are among the `passed`, failed at first and passed alone. `theirs` fail on
    Kafka too, `known` have a reason, `new` have none."""

    passed: int
    retried: list[str]
    theirs: list[str]
    known: dict[str, str]
    new: list[str]

    @property
    def run(self) -> int:
        return self.passed + len(self.theirs) + len(self.known) + len(self.new)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write the table of {PAGE.name}; needs every suite")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"some of {', '.join(SUITES)} (default: all)")
    arguments = parser.parse_args()
    if unknown := set(arguments.suites) - set(SUITES):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    verdicts: dict[str, Verdict] = {}
    with closing(RealClusters()) as real:
        for name in arguments.suites or SUITES:
            try:
                verdicts[name] = judge(name, SUITES[name], real)
            except UnavailableError as error:
                print(f"{SUITES[name].name} did not run: {error}")
            else:
                tell(SUITES[name].name, verdicts[name])
    if arguments.write:
        if missing := set(SUITES) - set(verdicts):
            parser.error(f"the table needs every suite; {', '.join(sorted(missing))} did not run")
        write_table(verdicts)
    return 1 if any(verdict.new for verdict in verdicts.values()) else 0


def judge(name: str, suite: Suite, real: RealClusters) -> Verdict:
    """Run a suite, and the tests that fail once more: on Apache Kafka, then alone on the embedded cluster, because
    a test may fail for the load of those beside it."""
    states = suite.run(embedded, None)
    failed = sorted(test for test, state in states.items() if state == FAILED)
    on_kafka = suite.run(real.cluster, failed) if failed else {}
    ours = [test for test in failed if on_kafka.get(test) == PASSED]
    alone = suite.run(embedded, ours) if ours else {}
    retried = [test for test in ours if alone.get(test) == PASSED]
    ours = [test for test in ours if test not in retried]
    reasons = KNOWN.get(name, {})
    return Verdict(
        passed=sum(state == PASSED for state in states.values()) + len(retried),
        retried=retried,
        theirs=[test for test in failed if on_kafka.get(test) != PASSED],
        known={test: reasons[test] for test in ours if test in reasons},
        new=[test for test in ours if test not in reasons],
    )


def tell(title: str, verdict: Verdict) -> None:
    print(f"{title}: {verdict.passed} of {verdict.run} tests pass on the embedded cluster")
    for test in verdict.retried:
        print(f"  passed at the second try: {test}")
    for test in verdict.theirs:
        print(f"  fails on Apache Kafka too: {test}")
    for test, reason in verdict.known.items():
        print(f"  known: {test}: {reason}")
    for test in verdict.new:
        print(f"  FAILS ON THE EMBEDDED CLUSTER ONLY: {test}")


def write_table(verdicts: dict[str, Verdict]) -> None:
    lines = ["| suite | pass | fail on Kafka 4.1.2 too | fail on the cluster only |\n", "|---|---|---|---|\n"]
    for name, verdict in verdicts.items():
        own = "; ".join(f"`{test.rpartition('.')[2]}`: {why}" for test, why in verdict.known.items())
        figures = f"{verdict.passed} of {verdict.run} | {len(verdict.theirs)} | {own or 'none'}"
        lines.append(f"| {SUITES[name].name} | {figures} |\n")
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(before + BEGIN + "".join(lines) + END + after)


if __name__ == "__main__":
    sys.exit(main())
