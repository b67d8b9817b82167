"""The sweep of missing memory in short form. `python -m tests.hostile.no_memory` is the whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.hostile.no_memory import CASES, memory_hooks
from tests.hostile.no_memory_aio import CASES as LOOP_CASES
from tests.needs import ROOT

SHORT = (
    "Send", "SendMany", "SendArrow", "Flush", "Result", "Metrics", "Close", "Transaction", "Abort", "Confluent",
    "ConfluentFlush", "KafkaPython",
)  # fmt: skip
SHORT_OF_LOOPS = ("AioSend", "AioSendInLine", "AioSendAndWait", "AioFlush", "AioKafkaSend")
NO_TESTCAPI = "this interpreter has no _testcapi.set_nomemory, which makes allocations fail"


def test_every_call_lacks_memory_at_some_of_its_allocations_and_nothing_breaks() -> None:
    if memory_hooks() is None:
        pytest.skip(NO_TESTCAPI)
    # In a process of its own: the sweep forks, and must be the only thread.
    command = [
        sys.executable,
        "-m",
        "tests.hostile.no_memory",
        "--step",
        "13",
        "--failures",
        "1",
        "4",
        "--calls",
        *SHORT,
        *SHORT_OF_LOOPS,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert "no memory: 0 faults" in done.stdout


def test_sweep_finds_what_it_looks_for() -> None:
    if memory_hooks() is None:
        pytest.skip(NO_TESTCAPI)
    command = [sys.executable, "-m", "tests.hostile.planted_no_memory"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr


def test_sweep_has_the_calls_of_the_producer_and_of_two_faces() -> None:
    assert {"Send", "SendMany", "SendArrow", "Flush", "Close", "Result", "Metrics"} <= set(CASES)
    assert {"Transaction", "Abort"} <= set(CASES)
    assert {"Confluent", "ConfluentFlush", "KafkaPython"} <= set(CASES)


def test_sweep_has_the_calls_of_the_producers_of_event_loops() -> None:
    assert {"AioSend", "AioSendAndWait", "AioSendMany", "AioFlush", "AioStop", "AioTransaction"} <= set(LOOP_CASES)
    assert {"AioKafkaSend", "AioKafkaSendAndWait", "AioKafkaFlush", "AioKafkaStop", "AioKafkaBatch"} <= set(LOOP_CASES)
    assert set(LOOP_CASES) <= set(CASES)
