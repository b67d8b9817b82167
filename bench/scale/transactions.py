"""What the guarantees of the Spark sink ask of the coordinators in a micro-batch, by the protocol's rules.

`kafkabuf/spark/guarantees/exactly_once.py` and `atomic.py` have the protocols, for transactions of version 2 (KIP-890).
A transaction has the partitions that it writes, and the partition of `__consumer_offsets` with its marker. Its end
writes a control record to each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.scale.jobs import Size


@dataclass(frozen=True)
class Asked:
    """What a micro-batch asks of the coordinators."""

    transactions: int
    requests: int
    """Requests of tasks and driver to coordinators."""
    first_requests: int
    """The same in the first micro-batch, and where a task finds no note of the task before it on its host."""
    partitions: int
    """Partitions that join transactions, those of the markers too: as many control records follow."""
    leaders: int
    """Requests to leaders that look for writers (DescribeProducers)."""


def exactly_once(tasks: int, partitions_of_task: int) -> Asked:
    """A transaction for each task: TxnOffsetCommit and EndTxn.

    A task without a note also looks both coordinators up (its admin looks for the group's again), and asks for a
    producer id and for its marker.
    """
    return Asked(tasks, 2 * tasks, 7 * tasks, tasks * (partitions_of_task + 1), 0)


def atomic(tasks: int, partitions: int, brokers: int) -> Asked:
    """One transaction for all tasks, which the driver begins and ends.

    The driver asks for a producer id and for the marker before the tasks. Afterwards it describes the transaction,
    commits the marker and ends the transaction. Each task asks the leader of its partition who writes there, and the
    driver asks all leaders. The first time the driver also looks coordinators up, and looks for a marker of
    exactly_once.
    """
    return Asked(1, 5, 11, partitions + 1, tasks + min(brokers, partitions))


COLUMNS = (
    "a micro-batch",
    "transactions",
    "requests",
    "of the first",
    "partitions added",
    "DescribeProducers",
)


def rows(sizes: Sequence[Size]) -> list[list[str]]:
    """The table of docs/scale.md."""
    return [_row(name, size, asked) for size in sizes for name, asked in asked_by(size)]


def asked_by(size: Size) -> Iterator[tuple[str, Asked]]:
    yield "exactly_once, keys", exactly_once(size.workers, size.partitions)
    yield "exactly_once, aligned", exactly_once(size.partitions, 1)
    yield "atomic, aligned", atomic(size.partitions, size.partitions, size.brokers)


def _row(name: str, size: Size, asked: Asked) -> list[str]:
    return [
        f"{size.name}: {name}",
        f"{asked.transactions:,}",
        f"{asked.requests:,}",
        f"{asked.first_requests:,}",
        f"{asked.partitions:,}",
        f"{asked.leaders:,}",
    ]
