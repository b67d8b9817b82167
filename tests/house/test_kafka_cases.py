"""Each test of Kafka's that matters here has one of ours, or a reason why not; the table that says so is no lie."""

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


def test_case_was_left_out_of_the_table(table: dict[Case, str]) -> None:
    assert {kind: sum(case[0] == kind for case in table) for kind in CASES} == CASES
    assert len(table) == sum(CASES.values())


def test_table_names_a_test_that_is_not_there(table: dict[Case, str]) -> None:
    named = {test for where in table.values() if where.startswith("tests/") for test in where.split(" ")}
    assert named - all_tests() == set()


def test_table_and_comments_disagree(table: dict[Case, str]) -> None:
    tests, faults = claimed(table)
    assert faults == []
    said = {case: " ".join(sorted(found)) for case, found in tests.items()}
    listed = {case: where for case, where in table.items() if where.startswith("tests/")}
    pending = {case for case, where in table.items() if where == PENDING}
    wrong = {case for case in said.keys() | listed.keys() if said.get(case) != listed.get(case)} - pending
    assert wrong == set(), "python -m tests.house.kafka_cases brings the table up to date"


def test_case_has_neither_test_nor_reason(table: dict[Case, str]) -> None:
    for case, where in table.items():
        reason = where.startswith(NOT_APPLICABLE) and len(where) > len(NOT_APPLICABLE) + 20
        assert where == PENDING or reason or where.startswith("tests/"), case
    pending = [f"{kind}.{name}" for (kind, name), where in table.items() if where == PENDING]
    print(f"{len(pending)} cases pending")


def test_braces_are_expanded_wrongly() -> None:
    assert expand("test{A,B}C{,D}") == ["testAC", "testACD", "testBC", "testBCD"]
