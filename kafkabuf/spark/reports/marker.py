"""Markers: a marker says that a micro-batch or a write has been written, and how many rows it had.

A marker is an offset that a transaction commits together with the rows (KIP-447), for a group without consumers. So the
marker exists if and only if the rows do. The sink reads it with require_stable, after it has initialised the
transactional id: from then on no earlier attempt can write the marker.

    transactional id           group                                 the marker is about
    kafkabuf-sink.SINKID       kafkabuf-sink.SINKID                  a micro-batch that is one transaction (atomic)
    kafkabuf-sink.SINKID:N     kafkabuf-sink.SINKID:N                Spark partition N of a micro-batch (exactly_once)
    kafkabuf-sink.SINKID       kafkabuf-sink.SINKID:write            the newest df.write without a writeId (atomic)
    kafkabuf-sink.SINKID       kafkabuf-sink.SINKID:write:WRITEID    the df.write with this writeId (atomic)

    topic partition            0 of the marker topic
    offset                     the number of the next micro-batch; 1 for a df.write
    metadata                   JSON: rows, checksum, and query, run, before (micro-batch) or write (df.write)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from kafkabuf.admin.admin import Admin
from kafkabuf.errors import IllegalStateError, KafkaError
from kafkabuf.spark.options.options import Guarantee, OnLostMarker, SinkOptions
from kafkabuf.spark.worker.place import MicroBatch
from kafkabuf.transactions.groups import OffsetAndMetadata

PREFIX = "kafkabuf-sink."


def transactional_id_for(sink_id: str, partition: int | None = None) -> str:
    """The transactional id of a write, or of one Spark partition. The marker of a micro-batch has a group of this name.

    No sinkId has a colon: so two sinks never share a name, even if one sink is called "s" and the other "s.1".
    """
    return f"{PREFIX}{sink_id}" + ("" if partition is None else f":{partition}")


def write_group_for(sink_id: str, write_id: str | None) -> str:
    """The group of the marker of a df.write."""
    return f"{transactional_id_for(sink_id)}:write" + ("" if write_id is None else f":{write_id}")


def partition_of(group: str) -> int | None:
    """The Spark partition that a marker of exactly_once is about; None for another group."""
    _, _, number = group.partition(":")
    return int(number) if number.isdecimal() else None


@dataclass(frozen=True)
class Marker:
    """The newest micro-batch that was written. `checksum` is defined in `TaskReport`.

    `before` is the least number of Spark partitions that the micro-batch before had (exactly_once). At least that many
    markers exist.
    """

    micro_batch: MicroBatch
    rows: int
    checksum: int
    before: int = 0

    def offset(self) -> OffsetAndMetadata:
        """The offset to commit."""
        batch = self.micro_batch
        known: dict[str, str | int] = {"query": batch.query_id, "run": batch.run_id, "before": self.before}
        return OffsetAndMetadata(batch.number + 1, _metadata(known, self.rows, self.checksum))

    @classmethod
    def parse(cls, group: str, committed: OffsetAndMetadata) -> Self:
        """Raises KafkaError where another program committed the offset."""
        known = _parsed(group, committed, "query", "run", "before")
        micro_batch = MicroBatch(committed.offset - 1, str(known["query"]), str(known["run"]))
        return cls(micro_batch, known["rows"], known["checksum"], int(known["before"]))

    def is_of(self, micro_batch: MicroBatch) -> bool:
        """Whether the marker is about this micro-batch, of this or of an earlier run."""
        return self.micro_batch.query_id == micro_batch.query_id and self.micro_batch.number == micro_batch.number


@dataclass(frozen=True)
class WriteMarker:
    """A df.write that was committed. `write` tells it from every other write: the writeId, or a random name."""

    write: str
    rows: int
    checksum: int

    def offset(self) -> OffsetAndMetadata:
        """The offset to commit."""
        return OffsetAndMetadata(1, _metadata({"write": self.write}, self.rows, self.checksum))

    @classmethod
    def parse(cls, group: str, committed: OffsetAndMetadata) -> Self:
        """Raises KafkaError where another program committed the offset."""
        known = _parsed(group, committed, "write")
        return cls(str(known["write"]), known["rows"], known["checksum"])


def _metadata(known: Mapping[str, str | int], rows: int, checksum: int) -> str:
    return json.dumps({**known, "rows": rows, "checksum": f"{checksum:016x}"}, separators=(",", ":"))


def _parsed(group: str, committed: OffsetAndMetadata, *names: str) -> dict[str, Any]:
    try:
        known = json.loads(committed.metadata)
        counts = {"rows": int(known["rows"]), "checksum": int(known["checksum"], 16)}
        return {**{name: known[name] for name in names}, **counts}
    except (ValueError, KeyError, TypeError) as error:
        raise KafkaError(
            f"group {group!r} has a committed offset that is no marker of this sink ({committed}): choose another "
            "sinkId"
        ) from error


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_marker(admin: Admin, group: str, topic: str, *, wait: bool = True) -> Marker | None:
    """The group's marker, None before the first. While a transaction may change it: see `Admin.committed`."""
    committed = admin.committed(group, [(topic, 0)], wait=wait)[topic, 0]
    return None if committed is None else Marker.parse(group, committed)


def read_write_marker(admin: Admin, group: str, topic: str) -> WriteMarker | None:
    """The marker of a df.write, None if no such write has been committed."""
    committed = admin.committed(group, [(topic, 0)])[topic, 0]
    return None if committed is None else WriteMarker.parse(group, committed)


# ---- the checkpoint beside the marker --------------------------------------------------------------------------------


def is_written(marker: Marker | None, micro_batch: MicroBatch, group: str) -> bool:
    """Whether an earlier attempt has written `micro_batch`. Raises what `refuse_unfit` raises."""
    if marker is None:
        return False
    refuse_unfit(marker.micro_batch, micro_batch, group)
    return marker.is_of(micro_batch)


def refuse_unfit(newest: MicroBatch, micro_batch: MicroBatch, group: str) -> None:
    """Raise IllegalStateError where the checkpoint does not fit the marker of the newest micro-batch.

    The checkpoint may be that of another query, or an older one.
    """
    if newest.query_id != micro_batch.query_id:
        raise IllegalStateError(
            f"the marker of this sinkId is that of another query ({newest.query_id}, this is {micro_batch.query_id}): "
            "another stream uses the sinkId, or this query has another checkpoint. Give a new sinkId to write "
            f"everything from the checkpoint on; or forget the markers with `kafkabuf spark forget` (group {group!r})"
        )
    if micro_batch.number < newest.number:
        raise IllegalStateError(
            f"Spark wants to write micro-batch {micro_batch.number}, but micro-batch {newest.number} has been written "
            "already: the checkpoint is older than the rows in the topic. Give a new sinkId to write all of it again"
        )


def refuse_lost(group: str, micro_batch: MicroBatch, options: SinkOptions, instead: str) -> None:
    """Raise IllegalStateError where the marker of the micro-batch before is lost, unless `onLostMarker` allows that.

    Without the marker nothing tells whether an earlier attempt has written a part of `micro_batch`. `instead` says what
    stands in its place.
    """
    if options.on_lost_marker is OnLostMarker.CONTINUE:
        return
    raise IllegalStateError(
        f"{instead}, though Spark is at micro-batch {micro_batch.number}: the marker in group {group!r} is lost, or "
        "this checkpoint was written with another deliveryGuarantee, sinkId or cluster. Kafka deletes a marker with "
        "its topic (markerTopic), and offsets.retention.minutes after the last micro-batch. Rows of this micro-batch "
        "may be in the topic already. See what `kafkabuf spark status` shows; then start the query once with option "
        "'onLostMarker' set to "
        "'continue', which writes this micro-batch"
    )


def refuse_other_guarantee(options: SinkOptions, other: Guarantee) -> None:
    """Raise IllegalStateError: the sinkId has markers of another guarantee, which this guarantee does not read."""
    raise IllegalStateError(
        f"sinkId '{options.sink_id}' has markers of deliveryGuarantee '{other}', so '{options.guarantee}' would not "
        f"know what has been written, and would write rows twice. To go over: let the query end without an error with "
        f"'{other}' (.trigger(availableNow=True)), run `kafkabuf spark forget {options.sink_id}`, and start the query "
        f"once with '{options.guarantee}' and option 'onLostMarker' set to 'continue'"
    )
