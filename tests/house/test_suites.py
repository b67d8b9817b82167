"""The verdict on another client's test suite hides no test that failed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tools.suites import FAILED, PASSED, Clusters, RealClusters, States, Suite, embedded
from tools.suites.__main__ import judge, tell


def test_test_that_passes_alone_is_printed_beside_the_other_failures(capsys: pytest.CaptureFixture[str]) -> None:
    def run(clusters: Clusters, tests: Iterable[str] | None) -> States:
        if tests is None:
            return {"good": PASSED, "shaky": FAILED, "theirs": FAILED, "ours": FAILED}
        passing = "shaky" if clusters is embedded else "shaky ours"
        return {test: PASSED if test in passing.split() else FAILED for test in tests}

    tell("A suite", judge("a suite", Suite("A suite", run), RealClusters()))
    assert capsys.readouterr().out.splitlines() == [
        "A suite: 2 of 4 tests pass on the embedded cluster",
        "  passed at the second try: shaky",
        "  fails on Apache Kafka too: theirs",
        "  FAILS ON THE EMBEDDED CLUSTER ONLY: ours",
    ]
