"""`producer.recovered` of a process that ended in peace, beside what an independent reader counts in file and logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiokafka.record.memory_records import MemoryRecords

from kafkabuf.spool.reading import HeldBatch, SpoolReader
from tests.spool.kills.ledger import Mark
from tests.spool.kills.plan import Plan, first_number


@dataclass(frozen=True)
class Report:
    """Counts of records. `commit` is the outcome of the commit that was begun last, and the number of its records."""

    records: int
    acknowledged: int
    delivered: int
    kept: int
    failed: int
    pending: int
    uncommitted: int
    damaged: int
    commit: tuple[str, int] | None

    @classmethod
    def of(cls, recovered: Any) -> Report:
        counts = (recovered.records, recovered.acknowledged, recovered.delivered, recovered.kept, recovered.failed)
        commit = recovered.commit and (str(recovered.commit.outcome), recovered.commit.records)
        records, acknowledged, delivered, kept, failed = (count.total() for count in counts)
        return cls(
            records=records,
            acknowledged=acknowledged,
            delivered=delivered,
            kept=kept,
            failed=failed,
            pending=recovered.pending,
            uncommitted=recovered.uncommitted.total(),
            damaged=len(recovered.damaged),
            commit=commit,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Report:
        fields = json.loads(text)
        return cls(**fields | {"commit": fields["commit"] and tuple(fields["commit"])})


@dataclass(frozen=True)
class Held:
    """What a file holds: the numbers of its records, and how many belong to a transaction."""

    numbers: Sequence[int]
    uncommitted: int

    @classmethod
    def of(cls, path: Path, plan: Plan) -> Held:
        numbers: list[int] = []
        uncommitted = 0
        if not path.exists() or not any(path.read_bytes()[:64]):  # a kill came before its process had made it
            return cls(numbers, uncommitted)
        with SpoolReader(path) as reader:
            for batch in reader.batches(with_data=True):
                if not isinstance(batch, HeldBatch):
                    continue  # the process that opens the file reports it
                values = list(_values_in(batch.data))
                if batch.transactional:
                    uncommitted += len(values)
                else:
                    numbers += [-1 if (number := plan.number_in(value)) is None else number for value in values]
        return cls(numbers, uncommitted)


def _values_in(data: bytes) -> Iterator[bytes | None]:
    """As aiokafka reads a batch, which has all codecs."""
    batches = MemoryRecords(data)
    while (batch := batches.next_batch()) is not None:
        for record in batch:
            yield record.value


def problems(report: Report, held: Held) -> Iterator[str]:
    """Where the report of a process differs from the file that it found."""
    if report.damaged:
        yield f"{report.damaged} batches are damaged"
    if report.records != len(held.numbers):
        yield f"the file held {len(held.numbers)} records: {report}"
    if report.uncommitted != held.uncommitted:
        yield f"the file held {held.uncommitted} records of an open transaction: {report}"
    ends = report.acknowledged + report.delivered + report.kept + report.failed + report.pending
    if ends != report.records:
        yield f"{ends} records have an outcome or are pending: {report}"


def not_delivered(report: Report, arrived: int) -> Iterator[str]:
    """`arrived` counts the records of earlier processes that came into the logs in the time of this process. A request
    of a killed process may come in the meantime: its records are acknowledged."""
    if not report.delivered <= arrived <= report.delivered + report.acknowledged:
        yield f"{arrived} records of earlier processes came in the meantime: {report}"


def wrong_commit(plan: Plan, report: Report, marks: bytes, counts: Mapping[int, int]) -> Iterator[str]:
    """Where the last process says something else of the commit before than the logs do."""
    if report.commit is None:
        return
    outcome, records = report.commit
    before = range(first_number(len(plan.lives) - 1, 0))
    begun = [n for n in before if marks[n] in (Mark.COMMITTING, Mark.RETURNED)]
    if not begun:
        yield f"no commit was begun: {report}"
        return
    first, end = plan.transaction_of(begun[-1])
    numbers = [number for number in begun if first <= number < end]
    there = counts[numbers[0]] > 0
    if outcome == "committed" and (not there or records != len(numbers)):
        yield f"the {len(numbers)} records from {first} on are {'there' if there else 'not there'}: {report}"
    if outcome == "aborted" and there and marks[numbers[0]] == Mark.COMMITTING:
        yield f"the transaction from {first} on is there: {report}"
    if outcome not in ("committed", "aborted"):
        yield f"what became of the transaction from {first} on is not known: {report}"
