"""The oracle of the kills sees each planted fault, and finds none where there is none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from rigs.producer import SLAB
from tests.spool.kills.ledger import Ledger, Mark
from tests.spool.kills.oracle import Arrived, faults
from tests.spool.kills.plan import MOST, THREADS, TOPICS, Life, Plan
from tests.spool.kills.reader import Reader
from tests.spool.kills.reports import Held, Report, not_delivered, problems, wrong_commit
from tests.spool.kills.storm import Storm

SETTINGS: dict[str, Any] = {"batch_size": SLAB, "buffer_memory": 64 * SLAB, "linger_ms": 1}
LIFE = Life("", 0.0, "up", 0, 1, 600, False, None, {})
PLAN = Plan(0, TOPICS, small=False, once=True, magic=2, now_ms=1_700_000_000_000, lives=[LIFE])
Send = Callable[..., Any]


class Faulty:
    """A producer whose send() does something else with a record."""

    def __init__(self, producer: Any, fault: Fault) -> None:
        self._producer = producer
        self._fault = fault
        self._planted = False
        self.held: list[dict[str, Any]] = []

    def send(self, topic: str, value: bytes, **more: Any) -> Any:
        call = {"topic": topic, "value": value, **more}
        if not self._planted and more["partition"] == 0:
            self._planted = True
            return self._fault(self, self._producer.send, call)
        future = self._producer.send(**call)
        if self.held and (self.held[0]["topic"], 0) == (topic, more["partition"]):
            self._producer.send(**self.held.pop())
        return future

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


Fault = Callable[[Faulty, Send, dict[str, Any]], Any]


def lose(faulty: Faulty, send: Send, call: dict[str, Any]) -> None:
    pass


def double(faulty: Faulty, send: Send, call: dict[str, Any]) -> Any:
    send(**call)
    return send(**call)


def hold_back(faulty: Faulty, send: Send, call: dict[str, Any]) -> None:
    faulty.held.append(call)


def change(faulty: Faulty, send: Send, call: dict[str, Any]) -> Any:
    return send(**call | {"value": call["value"] + b"!"})


def misplace(faulty: Faulty, send: Send, call: dict[str, Any]) -> Any:
    return send(**call | {"topic": "narrow" if call["topic"] == "wide" else "wide", "partition": 0})


def add(faulty: Faulty, send: Send, call: dict[str, Any]) -> Any:
    send("wide", b"of nobody", partition=0)
    return send(**call)


@dataclass
class Stage:
    cluster: EmbeddedCluster
    reader: Reader

    def found(self, folder: Path, fault: Fault | None) -> list[str]:
        """What the oracle finds behind a storm that ended well."""
        producer: Any = KafkaProducer(bootstrap_servers=self.cluster.bootstrap_servers, **SETTINGS)
        with Ledger(folder / "ledger", 1) as ledger:
            with producer:
                Storm(PLAN, LIFE, Faulty(producer, fault) if fault else producer, ledger, 0).run()
            return faults(PLAN, ledger.marks(), self.reader.read(PLAN.topics))


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with EmbeddedCluster() as cluster:
        for topic, partitions in PLAN.topics.items():
            cluster.create_topic(topic, partitions)
        with Reader(cluster.bootstrap_servers) as reader:
            yield Stage(cluster, reader)


def test_oracle_finds_nothing_where_nothing_is_wrong(stage: Stage, tmp_path: Path) -> None:
    assert stage.found(tmp_path, None) == []


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        (lose, "1 records that are RETURNED are there 0 times"),
        (double, "1 records that are RETURNED are there 2 times"),
        (hold_back, "comes behind record"),
        (change, "is not what was sent"),
        (misplace, "belongs to partition"),
        (add, "is none that was sent"),
    ],
)
def test_oracle_sees_a_planted_fault(stage: Stage, tmp_path: Path, fault: Fault, wanted: str) -> None:
    found = stage.found(tmp_path, fault)
    assert any(wanted in problem for problem in found), found


# ---- marks, on logs that nobody has sent


def logs(*numbers: int) -> dict[tuple[str, int], list[Arrived]]:
    """Logs with records of these numbers, in that order."""
    made: dict[tuple[str, int], list[Arrived]] = defaultdict(list)
    for number in numbers:
        record = PLAN.record(number)
        place = record.topic, record.partition or 0
        made[place].append(Arrived(record.key, record.value, record.headers, record.timestamp_ms or 0))
    return made


def marks(mark: Mark) -> bytes:
    return bytes((mark,)) * 40 + bytes(THREADS * MOST - 40)


@pytest.mark.parametrize("mark", [Mark.NEVER, Mark.REFUSED, Mark.PURGED, Mark.OPEN])
def test_record_without_a_promise_may_not_arrive(mark: Mark) -> None:
    assert faults(PLAN, marks(mark), {}) == []
    (problem,) = faults(PLAN, marks(mark), logs(5))
    assert problem.startswith(f"1 records that are {mark.name} are there 1 times")


def test_call_that_a_kill_cut_off_may_leave_its_first_rows_only() -> None:
    same = [n for n in range(40) if (PLAN.record(n).topic, PLAN.record(n).partition) == ("wide", 0)]
    assert faults(PLAN, marks(Mark.UNDER_WAY), logs(*same[:3])) == []
    (problem,) = faults(PLAN, marks(Mark.UNDER_WAY), logs(same[0], same[2]))
    assert problem == f"wide-0: row {same[2]} of a call is there, and row {same[1]} before it is not"


def test_next_process_comes_behind_the_one_before() -> None:
    same = [n for n in range(THREADS * MOST, 2 * THREADS * MOST) if PLAN.record(n).partition == 0]
    mine = [n for n in range(40) if (PLAN.record(n).topic, PLAN.record(n).partition) == ("wide", 0)]
    later = next(n for n in same if PLAN.record(n).topic == "wide")
    both = bytes((Mark.PERHAPS,)) * (2 * THREADS * MOST)
    assert faults(PLAN, both, logs(mine[0], mine[1], later)) == []
    (problem,) = faults(PLAN, both, logs(mine[0], later, mine[1]))
    assert problem == f"wide-0: record {mine[1]} comes behind record {mine[0]}"


def test_record_may_come_again_only_where_its_arrival_is_not_proven() -> None:
    assert faults(PLAN, marks(Mark.PERHAPS), logs(5, 5), again=1) == []
    assert faults(PLAN, marks(Mark.PERHAPS), logs(5, 5))


def test_record_that_the_file_still_has_may_be_missing() -> None:
    assert faults(PLAN, marks(Mark.RETURNED), logs(*range(39)), kept=[39]) == []
    assert faults(PLAN, marks(Mark.RETURNED), logs(*range(39)), kept=[38])


def test_transaction_is_whole_or_absent() -> None:
    plan = replace(PLAN, transaction=10)
    assert faults(plan, marks(Mark.COMMITTING), logs(*range(10, 30))) == []
    (problem,) = faults(plan, marks(Mark.COMMITTING), logs(*range(10, 29)))
    assert problem == "of the transaction from 20 on, of life 0, a part is there"


# ---- what a process says of its file

REPORT = Report(
    records=9, acknowledged=2, delivered=4, kept=2, failed=1, pending=0, uncommitted=3, damaged=0, commit=None
)
HELD = Held(numbers=range(9), uncommitted=3)


def test_report_of_what_the_file_held_is_right() -> None:
    assert list(problems(REPORT, HELD)) == []
    assert list(not_delivered(REPORT, arrived=4)) == []


@pytest.mark.parametrize(
    "wrong",
    [{"records": 8}, {"delivered": 5}, {"pending": 1}, {"acknowledged": 1}, {"uncommitted": 2}, {"damaged": 1}],
)
def test_report_that_counts_wrongly_is_seen(wrong: dict[str, Any]) -> None:
    assert list(problems(replace(REPORT, **wrong), HELD))


@pytest.mark.parametrize("arrived", [3, 7])
def test_records_that_are_said_to_be_delivered_must_have_come(arrived: int) -> None:
    assert list(not_delivered(REPORT, arrived))


@pytest.mark.parametrize(
    ("mark", "there", "commit", "right"),
    [
        (Mark.COMMITTING, 1, ("committed", 10), True),
        (Mark.COMMITTING, 1, ("committed", 9), False),
        (Mark.COMMITTING, 0, ("committed", 10), False),
        (Mark.COMMITTING, 0, ("aborted", 10), True),
        (Mark.COMMITTING, 1, ("aborted", 10), False),
        (Mark.COMMITTING, 0, ("unknown", 10), False),
        (Mark.OPEN, 0, ("aborted", 10), False),
        (Mark.OPEN, 0, None, True),
    ],
)
def test_outcome_of_a_commit_is_that_of_the_logs(
    mark: Mark, there: int, commit: tuple[str, int] | None, right: bool
) -> None:
    plan = replace(PLAN, transaction=10, lives=[LIFE, LIFE])
    counts = dict.fromkeys(range(30, 40), there)
    problem = list(wrong_commit(plan, replace(REPORT, commit=commit), marks(mark) + marks(Mark.NEVER), counts))
    assert bool(problem) is not right
