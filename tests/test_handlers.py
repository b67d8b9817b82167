"""A signal's handler runs in the middle of whatever its thread was doing, and may call the producer from there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from kafkabuf.clock import ManualClock, SystemClock
from kafkabuf.lifetime import Running
from kafkabuf.metadata import Metadata
from kafkabuf.transaction_state import Result
from tests.network_support import PATIENCE, config_for
from tests.producer_support import Rig


def within_metadata() -> None:
    metadata = Metadata(config_for(("boot", 9092)), ManualClock(auto_advance=True))
    with metadata._lock:
        metadata.add_topic("t")
        metadata.request_update()


def within_the_end_of_a_transaction() -> None:
    result = Result("commit")
    with result._lock:
        assert not result.wait(0, SystemClock())
        result.end()


@pytest.mark.parametrize("handler", [within_metadata, within_the_end_of_a_transaction])
def test_handler_is_not_kept_waiting_by_its_own_thread(handler: Callable[[], None]) -> None:
    thread = threading.Thread(target=handler, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_handler_that_closes_may_come_at_any_line_of_close() -> None:
    """As the tracer does, which runs at each of them."""
    rig = Rig()
    running = Running(rig.accumulator, rig.sender, "test")

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        lines.add((frame.f_code.co_name, frame.f_lineno))
        assert not running.wait(0)  # Python traces no tracer
        return trace

    def close() -> None:
        sys.settrace(trace)
        try:
            running.wait(0.001)
        finally:
            sys.settrace(None)

    lines: set[tuple[str, int]] = set()
    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(lines) > 5
