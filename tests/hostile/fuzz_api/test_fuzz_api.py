"""The API fuzzer finds each kind of fault that a test plants in the process of its round."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.producer import KafkaProducer
from tests.hostile.fuzz_api import __main__ as fuzz_api
from tests.hostile.fuzz_api import machine as fuzz_api_machine

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


def test_round_ends_with_the_example_that_runs_at_its_deadline(folder: Path) -> None:
    """hypothesis went on to draw 60 examples that did nothing, which took minutes on a busy machine."""
    journal, drawn = folder / "journal", []
    original = fuzz_api_machine.Machine.__init__

    def counted(machine: fuzz_api_machine.Machine) -> None:
        drawn.append(machine)
        original(machine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz_api_machine.Machine, "__init__", counted)
        fuzz_api.run_round(0, time.monotonic() - 1, journal, 60)
    assert (journal.read_text().count("===="), len(drawn)) == (1, 2)


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


def test_failure_of_an_example_that_ends_after_the_deadline_is_found() -> None:
    """hypothesis runs the example once more, which must not count as the end of the round."""
    options = ("--plant", f"{__name__}:{goes_on_after_close.__name__}", "--step-seconds", "9")
    _, failures = fuzz_api.fuzz(0.5, seed=0, options=options)
    assert [failure.reason.partition(":")[0] for failure in failures] == ["FuzzError"], failures


def test_failure_counts_though_the_round_is_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What hypothesis raises at the end of a round is the deadline's, unless an example has failed."""

    def run(machine: Any, settings: object) -> None:
        machine.failed, machine.over = failed, True
        raise AssertionError("planted")

    monkeypatch.setattr("hypothesis.stateful.run_state_machine_as_test", run)
    failed = False
    fuzz_api.run_round(0, time.monotonic() + 60, folder / "journal", 60)
    failed = True
    with pytest.raises(AssertionError, match="planted"):
        fuzz_api.run_round(0, time.monotonic() + 60, folder / "journal", 60)
