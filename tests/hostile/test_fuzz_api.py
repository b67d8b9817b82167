"""The API fuzzer finds each kind of fault that a test plants in the process of its round."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.producer import KafkaProducer
from tests.hostile import fuzz_api

_kept: list[Any] = []


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fuzz_api, "_FOLDER", tmp_path)
    return tmp_path


def test_fuzzer_finds_nothing_in_the_producers(folder: Path) -> None:
    examples, failures = fuzz_api.fuzz(5, seed=0)
    assert examples > 0
    assert [(failure.seed, failure.reason, failure.path.read_text()) for failure in failures] == []
    assert list(folder.iterdir()) == []


# ---- faults ----------------------------------------------------------------------------------------------------------


def crashes() -> None:
    KafkaProducer.purge = lambda *_, **__: ctypes.string_at(0)  # type: ignore[method-assign, assignment]


def hangs() -> None:
    KafkaProducer.flush = lambda *_: time.sleep(1000)  # type: ignore[method-assign]


def raises_a_forbidden_error() -> None:
    def partitions_for(self: KafkaProducer, topic: str) -> Any:
        raise SystemError("planted")

    KafkaProducer.partitions_for = partitions_for  # type: ignore[method-assign]


def keeps_memory() -> None:
    def send_many(self: KafkaProducer, *arguments: Any) -> Any:
        _kept.append(self.pool.allocate(1, 0))
        return original(self, *arguments)

    original = KafkaProducer.send_many
    KafkaProducer.send_many = send_many  # type: ignore[method-assign, assignment]


def goes_on_after_close() -> None:
    KafkaProducer.close = lambda *_: None  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (crashes, "Fatal Python error: Segmentation fault"),
        (hangs, "Timeout (0:00:09)!"),
        (raises_a_forbidden_error, "FuzzError: "),
        (keeps_memory, "FuzzError: memory is missing"),
        (goes_on_after_close, "FuzzError: the Sender's thread goes on"),
    ],
)
def test_planted_fault_is_found(fault: Callable[[], None], reason: str, folder: Path) -> None:
    options = ("--plant", f"{__name__}:{fault.__name__}", "--step-seconds", "9")
    _, failures = fuzz_api.fuzz(60, seed=0, options=options)
    assert [failure.reason.startswith(reason) for failure in failures] == [True], failures
    report = failures[0].path.read_text()
    assert "again: python -m tests.hostile.fuzz_api --seed" in report
    assert "\nopen(" in report, "the steps of its last example are missing"
