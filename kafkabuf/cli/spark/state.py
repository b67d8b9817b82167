"""What the cluster knows of the Spark sinks, as `kafkabuf spark` shows it.

Every time is in milliseconds since 1970. None stands for what cannot be known. The dataclasses are the JSON of
`kafkabuf spark status --json` (docs/spark.md), so their names are stable.

This file needs no pyspark: it knows the names that kafkabuf/spark/reports/marker.py gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

PREFIX = "kafkabuf-sink."


class SinkName(NamedTuple):
    """What the name of a group or of a transactional id tells. `write_id` is "" for a write without a writeId."""

    sink_id: str
    partition: int | None = None
    write_id: str | None = None

    @classmethod
    def parse(cls, name: str) -> SinkName | None:
        """None for a name that no sink has."""
        sink_id, colon, rest = name.removeprefix(PREFIX).partition(":")
        if not name.startswith(PREFIX) or not sink_id:
            return None
        if not colon:
            return cls(sink_id)
        if rest.isdecimal():
            return cls(sink_id, partition=int(rest))
        kind, _, write_id = rest.partition(":")
        return cls(sink_id, write_id=write_id) if kind == "write" else None

    @property
    def transactional_id(self) -> str:
        """The id of the transactions that write the marker. A df.write uses the sink's."""
        return f"{PREFIX}{self.sink_id}" + ("" if self.partition is None else f":{self.partition}")


@dataclass(frozen=True)
class Marker:
    """What the sink remembers of its newest micro-batch (of a Spark partition), or of a write.

    `written_ms` is when the transaction that wrote the marker began; `expires_ms` is before Kafka deletes the marker.
    """

    group: str
    partition: int | None
    write_id: str | None
    topic: str
    micro_batch: int | None
    query_id: str | None
    run_id: str | None
    rows: int | None
    checksum: str | None
    written_ms: int | None = None
    expires_ms: int | None = None


@dataclass(frozen=True)
class Partition:
    topic: str
    partition: int


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that has not ended, of a sink or of another program.

    `transactional_id` is None where no coordinator names it to this user. `ends_ms` is when the coordinator aborts it
    by itself; None also where the coordinator is ending it (`is_ending`).
    `last_timestamp_ms` is the timestamp of the producer's newest batch, in a partition that is held back.
    """

    transactional_id: str | None
    state: str | None
    producer_id: int
    producer_epoch: int
    started_ms: int | None = None
    ends_ms: int | None = None
    last_timestamp_ms: int | None = None
    partitions: tuple[Partition, ...] = ()

    @property
    def is_ending(self) -> bool:
        """Whether the coordinator writes the end to every partition, for which it has no time-out."""
        return self.state is not None and self.state.startswith("Prepare")

    def is_same(self, other: OpenTransaction) -> bool:
        """Whether both are one transaction, in the same state or another."""
        return (self.producer_id, self.producer_epoch, self.started_ms) == (
            other.producer_id,
            other.producer_epoch,
            other.started_ms,
        )


@dataclass(frozen=True)
class HeldBack:
    """A partition whose read_committed readers wait. `transactions` are the open ones there, the oldest first."""

    topic: str
    partition: int
    last_stable_offset: int
    high_watermark: int
    transactions: tuple[OpenTransaction, ...]


@dataclass(frozen=True)
class Sink:
    sink_id: str
    markers: tuple[Marker, ...]
    transactions: tuple[OpenTransaction, ...]


@dataclass
class Status:
    """`warnings` says what could not be asked, and why.

    `incomplete` names what this user may see only in part: "markers", "transactions" or "held_back". `topics` are the
    topics whose readers were looked for.
    """

    sinks: list[Sink] = field(default_factory=list)
    held_back: list[HeldBack] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def miss(self, part: str, warning: str) -> None:
        """Say that a part is incomplete, and why."""
        if part not in self.incomplete:
            self.incomplete.append(part)
        if warning not in self.warnings:
            self.warnings.append(warning)
