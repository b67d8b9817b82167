"""Rows of a batch that the broker refused: which rows it blames, and which rows only share their batch (KIP-467)."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from kafkabuf.append.report import ERRORS, ROWS, BulkReport
from kafkabuf.errors import InvalidRecordError, InvalidTimestampError, RefusedWithOthersError
from rigs.fake_client import Answer, Sent, encode_answer
from rigs.producer import SLAB, TOPIC, Rig, assert_whole

INVALID_RECORD, INVALID_TIMESTAMP, TOO_LARGE = 87, 32, 10


def refuse(rig: Rig, sent: Sent, answers: dict[int, Answer]) -> None:
    """Answer a request; partitions that `answers` leaves out take their records."""
    found = {key: answers.get(key[1], Answer()) for key in sent.produced.records}
    rig.client.answer_with(sent, encode_answer(sent.request.version, sent.correlation_id, found))


def outcome(answers: dict[int, Answer], partitions: list[int], report: str = ROWS) -> BulkReport:
    """The report of rows for these partitions, whose only batches got these answers."""
    rig = Rig(leaders=(1, 1), linger_ms=0)
    rows = pa.record_batch({"value": ["v"] * len(partitions), "partition": pa.array(partitions, pa.int32())})
    pending = rig.producer.send_arrow(rows, TOPIC, report)
    for sent in rig.sent_after_turn():
        refuse(rig, sent, answers)
    rig.turn()
    assert_whole(rig.pool)
    return pending


def test_each_guilty_row_has_its_own_error_and_the_others_of_its_batch_say_so() -> None:
    named = {0: Answer(INVALID_RECORD, -1, record_errors=[(0, "first"), (2, "third")])}
    report = outcome(named, [0, 1, 0, 1, 0, 0])
    failures = report.failures(0)
    assert [(str(failure.error), failure.first_row, failure.last_row, failure.rows) for failure in failures] == [
        ("first", 0, 0, 1),
        ("the broker refused 2 other record(s) of this record's batch: first; third", 2, 5, 2),
        ("third", 4, 4, 1),
    ]
    assert [type(failure.error) for failure in failures] == [
        InvalidRecordError, RefusedWithOthersError, InvalidRecordError
    ]  # fmt: skip
    assert report.result(0, errors="return").error_code.tolist() == [87, 0, -1, 0, 87, -1]


def test_result_raises_the_first_failure_with_the_number_of_failed_rows() -> None:
    named = {0: Answer(INVALID_RECORD, -1, record_errors=[(0, "first"), (2, "third")])}
    report = outcome(named, [1, 0, 1, 0, 0, 0])
    with pytest.raises(InvalidRecordError, match=r"^4 of 6 rows failed, the first with: first ") as raised:
        report.result(0)
    assert raised.value.report is report
    assert raised.value.__cause__ is report.exception(0)
    with pytest.raises(ValueError, match="'raise' or 'return', found 'ignore'"):
        report.result(0, errors="ignore")


def test_error_of_a_report_reaches_another_process_without_the_report() -> None:
    report = outcome({0: Answer(INVALID_RECORD, -1)}, [0, 0])
    with pytest.raises(InvalidRecordError) as raised:
        report.result(0)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (type(copy), str(copy), copy.report) == (InvalidRecordError, str(raised.value), None)


def test_failed_rows_are_named_by_number_with_the_records_that_share_their_error() -> None:
    both = {0: Answer(INVALID_TIMESTAMP, -1, record_errors=[(1, "old")]), 1: Answer(INVALID_RECORD, -1)}
    report = outcome(both, [0, 1, 0, 1, 0])
    found = [(type(one.error), one.partition, one.rows.tolist(), one.records) for one in report.failed_rows(0)]
    assert sorted(found, key=lambda one: one[2]) == [
        (RefusedWithOthersError, 0, [0, 4], 2),
        (InvalidRecordError, 1, [1, 3], 2),
        (InvalidTimestampError, 0, [2], 1),
    ]


def test_delivered_rows_are_no_failed_rows() -> None:
    assert outcome({}, [0, 1, 0]).failed_rows(0) == ()


def test_report_without_rows_names_guilty_rows_where_it_knows_them() -> None:
    named = {0: Answer(INVALID_RECORD, -1, record_errors=[(1, "second")])}
    failures = outcome(named, [0, 0, 0], ERRORS).failures(0)
    assert [(failure.first_row, failure.last_row, failure.rows) for failure in failures] == [(0, 2, 2), (1, 1, 1)]
    failures = outcome(named, [0, 1, 0], ERRORS).failures(0)
    assert [(failure.first_row, failure.last_row, failure.rows) for failure in failures] == [(0, 2, 1), (0, 2, 1)]
    with pytest.raises(ValueError, match="keeps no rows"):
        outcome(named, [0], ERRORS).failed_rows(0)


@pytest.mark.parametrize("place", [-1, 3, 1_000])
def test_place_outside_of_the_batch_blames_no_row(place: int) -> None:
    report = outcome({0: Answer(INVALID_RECORD, -1, record_errors=[(place, "lie")])}, [0, 0, 0])
    (failed,) = report.failed_rows(0)
    assert (type(failed.error), failed.rows.tolist(), failed.records) == (InvalidRecordError, [0, 1, 2], 3)


def test_guilty_row_is_named_in_a_batch_that_two_calls_filled() -> None:
    rig = Rig(linger_ms=5)
    first, second = (rig.producer.send_arrow(pa.record_batch({"value": ["a", "b", "c"]}), TOPIC) for _ in range(2))
    rig.linger_over()
    (sent,) = rig.sent_after_turn()
    refuse(rig, sent, {0: Answer(INVALID_RECORD, -1, record_errors=[(4, "it")])})
    rig.turn()
    assert [(one.rows.tolist(), one.records) for one in first.failed_rows(0)] == [([0, 1, 2], 5)]
    assert [(one.rows.tolist(), one.records) for one in second.failed_rows(0)] == [([1], 1), ([0, 2], 5)]
    assert second.result(0, errors="return").error_code.tolist() == [-1, 87, -1]


def test_guilty_row_is_named_in_a_part_of_a_split_batch() -> None:
    rig = Rig(linger_ms=0)
    values = [b"%d" % n + b"x" * (SLAB // 8) for n in range(4)]
    report = rig.producer.send_arrow(pa.record_batch({"value": values}), TOPIC)
    (sent,) = rig.sent_after_turn()
    refuse(rig, sent, {0: Answer(TOO_LARGE, -1)})
    parts = []
    for _ in range(10):
        for sent in [*rig.sent_after_turn(), *rig.client.under_way]:
            if sent in rig.client.under_way:
                parts.append(sent.values())
                guilty = [place for place, value in enumerate(sent.values()) if value == values[2]]
                refuse(rig, sent, {0: Answer(INVALID_RECORD, -1, record_errors=[(guilty[0], "it")])} if guilty else {})
        rig.clock.advance(1)
    assert len(parts) == 2
    by_error = {type(one.error): one.rows.tolist() for one in report.failed_rows(0)}
    assert by_error == {InvalidRecordError: [2], RefusedWithOthersError: [3]}
    assert_whole(rig.pool)
