"""A producer that many threads share. `python -m tests.hostile.threads` does it for longer, and without a GIL."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.hostile import threads


@pytest.mark.parametrize("share", [threads.share, threads.share_with_polls])
def test_threads_that_share_a_producer_lose_and_double_nothing(share: Callable[[str, float, int], int]) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # seconds: under the GIL a thread loses it in the middle of most calls
    try:
        with threads.cluster() as servers:
            assert share(servers, 1.0, 6) > 1_000
    finally:
        sys.setswitchinterval(interval)
