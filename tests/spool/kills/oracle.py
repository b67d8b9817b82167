"""Whether the logs have what the killed processes had sent: each record once, in order, and nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.spool.kills.ledger import Mark
from tests.spool.kills.plan import Plan, Record, life_of, thread_of

# How often a record of this mark may be in the logs.
_WANTED = {
    Mark.NEVER: (0, 0),
    Mark.UNDER_WAY: (0, 1),
    Mark.RETURNED: (1, 1),
    Mark.REFUSED: (0, 0),
    Mark.PURGED: (0, 0),
    Mark.PERHAPS: (0, 1),
    Mark.OPEN: (0, 0),
    Mark.COMMITTING: (0, 1),
}
_SHOWN = 5


@dataclass(frozen=True)
class Arrived:
    """One record as the reader has seen it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


Logs = Mapping[tuple[str, int], Sequence[Arrived]]  # by topic and partition, in the order of offsets


def faults(plan: Plan, marks: bytes, logs: Logs, again: int = 0, kept: Collection[int] = ()) -> list[str]:
    """What is wrong, a line each. A record may come `again` so many times more where nothing proves its arrival.

    `kept` are the numbers that the file still has.
    """
    found: list[str] = []
    numbers: dict[tuple[str, int], list[int]] = {}
    for place, log in logs.items():
        numbers[place] = []
        for offset, arrived in enumerate(log):
            number = _number(plan, len(marks), arrived)
            problem = "is none that was sent" if number is None else _differs(plan.record(number), place, arrived)
            if problem or number is None:
                found.append(f"{place[0]}-{place[1]}: the record at {offset} {problem}: {arrived}"[:500])
            else:
                numbers[place].append(number)
    counts = Counter(number for arrived_numbers in numbers.values() for number in arrived_numbers)
    found += _counted(plan, marks, counts, again, kept)
    found += _in_part(plan, marks, counts) if plan.transaction else ()
    for place, arrived_numbers in numbers.items():
        found += _out_of_order(place, arrived_numbers)
        found += _torn(place, {*arrived_numbers, *kept}, plan, marks)
    return found


def _number(plan: Plan, most: int, arrived: Arrived) -> int | None:
    number = plan.number_in(arrived.value)
    return number if number is not None and number < most else None


def _differs(record: Record, place: tuple[str, int], arrived: Arrived) -> str:
    if record.topic != place[0] or record.partition not in (None, place[1]):
        return f"belongs to partition {record.partition} of {record.topic}"
    if (record.key, record.value, record.headers) != (arrived.key, arrived.value, arrived.headers):
        return f"is not what was sent ({record})"
    if record.timestamp_ms not in (None, arrived.timestamp_ms):
        return f"was sent with timestamp {record.timestamp_ms}"
    return ""


def _counted(plan: Plan, marks: bytes, counts: Mapping[int, int], again: int, kept: Collection[int]) -> Iterator[str]:
    wrong: dict[tuple[Mark, int], list[int]] = defaultdict(list)
    for number, byte in enumerate(marks):
        mark = Mark(byte)
        lowest, highest = _WANTED[mark]
        if plan.drops or number in kept:
            lowest = 0
        more = again if highest or (mark is Mark.PURGED and not plan.once) else 0
        if not lowest <= counts[number] <= highest + more:
            wrong[mark, counts[number]].append(number)
    for (mark, count), those in wrong.items():
        lives = sorted({life_of(number) for number in those})
        text = f"{len(those)} records that are {mark.name} are there {count} times"
        yield f"{text}, of the lives {lives}: {those[:_SHOWN]} ... {those[-1]}"


def _in_part(plan: Plan, marks: bytes, counts: Mapping[int, int]) -> Iterator[str]:
    """A transaction is whole or absent. One whose commit returned is there: `_counted` sees that."""
    arrived: dict[int, set[bool]] = defaultdict(set)
    for number, byte in enumerate(marks):
        if byte == Mark.COMMITTING:
            arrived[plan.transaction_of(number)[0]].add(counts[number] > 0)
    for first, there in arrived.items():
        if len(there) > 1:
            yield f"of the transaction from {first} on, of life {life_of(first)}, a part is there"


def _out_of_order(place: tuple[str, int], numbers: Sequence[int]) -> Iterator[str]:
    """The records of a thread come in their order, and those of a process behind those of the processes before."""
    seen: set[int] = set()
    latest: dict[int, int] = {}
    life = 0
    for number in numbers:
        if number in seen:
            continue
        seen.add(number)
        if life_of(number) < life or number < latest.get(thread_of(number), 0):
            before = latest.get(thread_of(number), max(latest.values(), default=0))
            yield f"{place[0]}-{place[1]}: record {number} comes behind record {before}"
            return
        life = life_of(number)
        latest[thread_of(number)] = number


def _torn(place: tuple[str, int], there: Collection[int], plan: Plan, marks: bytes) -> Iterator[str]:
    """Of the call that a kill cut off, a partition and the file have the first rows, without a gap."""
    missing: dict[int, int] = {}
    for number, byte in enumerate(marks):
        if byte != Mark.UNDER_WAY or (plan.record(number).topic, plan.record(number).partition) != place:
            continue
        thread = thread_of(number)
        if number not in there:
            missing.setdefault(thread, number)
        elif thread in missing:
            yield f"{place[0]}-{place[1]}: row {number} of a call is there, and row {missing[thread]} before it is not"
            return
