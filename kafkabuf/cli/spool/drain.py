"""`kafkabuf spool drain`: a producer opens the file, and delivers what is in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from kafkabuf.cli.long_input import Interrupt, Show
from kafkabuf.cli.units import counted
from kafkabuf.process import threads
from kafkabuf.process._time import monotonic
from kafkabuf.producer import KafkaProducer
from kafkabuf.spool.reading import DamagedBatch, HeldBatch, SpoolReader

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig
    from kafkabuf.spool.recovered import Recovered
    from kafkabuf.transactions.groups import TopicPartition

_POLL_SECONDS = 0.1


def settings_of(reader: SpoolReader) -> dict[str, str] | None:
    """The settings with which a producer opens the file; None if no record in it waits to be sent.

    Raises click.ClickException while a process has the file, and for a file that has nothing but damage.
    """
    if reader.holder is not None:
        raise click.ClickException(
            f"process {reader.holder} has {reader.path} open, and delivers its records itself: end it first"
        )
    damaged = 0
    for batch in reader.batches():
        if isinstance(batch, DamagedBatch):
            damaged += 1
        elif not batch.transactional:
            return _settings_for(reader, batch)
    if damaged:
        raise click.ClickException(
            f"{reader.path} holds no record that waits, and {damaged} damaged batches: kafkabuf spool check says why"
        )
    return None


def _settings_for(reader: SpoolReader, batch: HeldBatch) -> dict[str, str]:
    settings = {
        "kafkabuf.buffer.path": str(reader.path),
        "buffer.memory": str(reader.layout.total),
        "batch.size": str(reader.layout.slab_size),
    }
    if batch.magic == 1:
        settings |= {"record.magic": "1", "enable.idempotence": "false"}
    return settings


@dataclass
class Outcome:
    """What came of the records of one partition, or of all. Its fields are keys of `--json`."""

    records: int
    in_cluster_before: int
    delivered: int
    unproven: int
    remaining: int


@dataclass
class Drained:
    path: str
    outcome: Outcome
    uncommitted: int
    damaged: list[str]
    partitions: dict[TopicPartition, Outcome]

    def as_json(self) -> dict[str, Any]:
        partitions = [
            {"topic": topic, "partition": partition, **asdict(outcome)}
            for (topic, partition), outcome in self.partitions.items()
        ]
        return {
            "path": self.path,
            **asdict(self.outcome),
            "uncommitted": self.uncommitted,
            "damaged": self.damaged,
            "partitions": partitions,
        }

    @property
    def whole(self) -> bool:
        """Whether the cluster has every record now."""
        return not (self.outcome.remaining or self.damaged)


def drain(config: ProducerConfig, interrupt: Interrupt, timeout: float | None, nbytes: int, show: Show) -> Drained:
    """Deliver until each record has an outcome, or until a signal or the time ends it: the others stay in the file.

    `show` gets the part of the `nbytes` whose records have an outcome, and their number.
    """
    deadline = None if timeout is None else monotonic() + timeout
    producer: KafkaProducer[Any, Any] = KafkaProducer(config)
    try:
        recovered = producer.recovered
        assert recovered is not None
        records = recovered.records.total()
        while (pending := recovered.pending) and not interrupt.seen and (deadline is None or monotonic() < deadline):
            show(nbytes * (records - pending) // records, records - pending)
            threads.sleep(_POLL_SECONDS)
    finally:
        producer.close(0)
    return _drained(recovered)


def _drained(recovered: Recovered) -> Drained:
    partitions = {place: _outcome(recovered, [place]) for place in sorted(recovered.partitions)}
    uncommitted = recovered.uncommitted.total()
    return Drained(
        recovered.path, _outcome(recovered, recovered.partitions), uncommitted, [*recovered.damaged], partitions
    )


def _outcome(recovered: Recovered, places: Collection[TopicPartition]) -> Outcome:
    counts = recovered.records, recovered.acknowledged, recovered.delivered, recovered.unproven
    records, before, delivered, unproven = (sum(count[place] for place in places) for count in counts)
    return Outcome(records, before, delivered, unproven, records - before - delivered)


def lines_of(drained: Drained) -> list[str]:
    """The outcome for people: a line for each thing that they have to know."""
    outcome = drained.outcome
    parts = [f"{outcome.delivered:,} of {counted(outcome.records, 'record')} delivered"]
    if outcome.in_cluster_before:
        parts.append(f"{outcome.in_cluster_before:,} were in the cluster already")
    lines = [*drained.damaged]
    if outcome.unproven:
        lines.append(
            f"of {counted(outcome.unproven, 'record')} nobody can know whether the cluster had them: the log above "
            "says why. -X kafkabuf.buffer.unproven=keep leaves such records in the file"
        )
    if drained.uncommitted:
        records = counted(drained.uncommitted, "record")
        lines.append(f"{records} of a transaction that was not committed: dropped, as a transaction promises")
    if outcome.remaining:
        parts.append(f"{outcome.remaining:,} remain in {drained.path}")
    return [*lines, ", ".join(parts)]
