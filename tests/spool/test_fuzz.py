"""A share of the fuzzer of damaged files; `python -m tests.spool.fuzz` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.effort import effort
from tests.spool.fuzz import run


@pytest.mark.parametrize("stretch", range(4))
def test_damaged_files_yield_no_wrong_record_and_lose_no_whole_batch(tmp_path: Path, stretch: int) -> None:
    examples = effort(300)
    outcomes = {run(tmp_path, seed) for seed in range(stretch * examples, (stretch + 1) * examples)}
    assert outcomes == {"refused", "damaged", "whole"}
