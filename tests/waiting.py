"""A wait for what other threads or processes do, with a deadline that a busy machine keeps."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.001)
