"""Each of Kafka's tests that matters here has a test of ours or a reason why not; the table agrees with our tests."""

from __future__ import annotations

import pytest

from tests.house.kafka_cases import NOT_APPLICABLE, PENDING, Case, all_tests, claimed, expand, read_table

# How many cases each of Kafka's classes has, as counted in the study of its sources.
CASES = {
    "BufferPoolTest": 13,
    "RecordAccumulatorTest": 32,
    "ProducerBatchTest": 11,
    "BuiltInPartitionerTest": 4,
    "SenderTest": 74,
    "TransactionManagerTest": 140,
    "DelayedOperationTest": 9,
    "TimerTest": 2,
    "TimerTaskListTest": 2,
    "SystemTimerReaperTest": 2,
}


@pytest.fixture(scope="module")
def table() -> dict[Case, str]:
    return read_table()


def test_table_has_every_case(table: dict[Case, str]) -> None:
    assert {kind: sum(case[0] == kind for case in table) for kind in CASES} == CASES
    assert len(table) == sum(CASES.values())


def test_every_test_in_the_table_exists(table: dict[Case, str]) -> None:
    listed = {test for place in table.values() if place.startswith("tests/") for test in place.split(" ")}
    assert listed - all_tests() == set()


def test_table_agrees_with_the_comments(table: dict[Case, str]) -> None:
    tests, faults = claimed(table)
    assert faults == []
    commented = {case: " ".join(sorted(names)) for case, names in tests.items()}
    listed = {case: place for case, place in table.items() if place.startswith("tests/")}
    pending = {case for case, place in table.items() if place == PENDING}
    wrong = {case for case in commented.keys() | listed.keys() if commented.get(case) != listed.get(case)} - pending
    assert wrong == set(), "python -m tests.house.kafka_cases brings the table up to date"


def test_every_case_has_a_test_or_a_reason(table: dict[Case, str]) -> None:
    for case, place in table.items():
        has_reason = place.startswith(NOT_APPLICABLE) and len(place) > len(NOT_APPLICABLE) + 20
        assert place == PENDING or has_reason or place.startswith("tests/"), case
    pending = [f"{kind}.{name}" for (kind, name), place in table.items() if place == PENDING]
    print(f"{len(pending)} cases pending")


def test_braces_are_expanded() -> None:
    assert expand("test{A,B}C{,D}") == ["testAC", "testACD", "testBC", "testBCD"]
