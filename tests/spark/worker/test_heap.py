"""The collector does not visit the modules of a Python worker after each task."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kafkabuf.spark.worker import heap


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(heap, "_in_worker", lambda: True)
    monkeypatch.setattr(heap, "_calls", 0)
    yield
    gc.unfreeze()


def test_second_task_of_a_worker_freezes_what_the_first_has_loaded(worker: None) -> None:
    frozen = gc.get_freeze_count()
    heap.freeze()
    assert gc.get_freeze_count() == frozen
    heap.freeze()
    assert gc.get_freeze_count() > frozen
    still: list[list[int]] = [[]]  # made after the freeze, so the collector visits it
    heap.freeze()
    assert any(found is still for found in gc.get_objects())


def test_closed_producer_is_garbage_again(worker: None) -> None:
    heap.freeze()
    heap.freeze()
    heap.thaw()
    assert gc.get_freeze_count() == 0
    heap.freeze()
    assert gc.get_freeze_count() == 0
    heap.freeze()
    assert gc.get_freeze_count() > 0


def test_collector_of_other_programs_is_left_alone() -> None:
    frozen = gc.get_freeze_count()
    for _ in range(3):
        heap.freeze()
    assert gc.get_freeze_count() == frozen
