"""The closing line of `python -m tests`, by which CI says how many tests failed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import __main__ as runner


@pytest.mark.parametrize(
    "behind", ["", "[kafkabuf] connection to bootstrap server 127.0.0.1:32931 failed: Connection refused\n"]
)
def test_counts_are_those_of_pytests_last_line_whatever_threads_write_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    (tmp_path / "spark.log").write_text(f"...\n2 failed, 866 passed in 777.28s (0:12:57)\n{behind}")
    assert runner.report("spark", 0, 777.0) == Counter(failed=2, passed=866)


def test_part_without_a_last_line_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    (tmp_path / "spark.log").write_text("ERROR: file not found\n")
    assert runner.report("spark", 4, 0.1) == Counter()
