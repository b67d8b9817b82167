"""The share of seeds and examples that a run does."""

from __future__ import annotations

import pytest

from tests import effort


@pytest.mark.parametrize(("divisor", "count"), [(1, 20), (2, 10), (8, 2), (40, 1)])
def test_share_of_a_count_is_at_least_one(divisor: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "_DIVISOR", divisor)
    assert effort.effort(20) == count
