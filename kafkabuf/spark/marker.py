"""Markers: a marker says that a micro-batch has been written, and how many rows it had.

A marker is an offset that a transaction commits together with the rows (KIP-447), for a group without consumers. So the
marker exists if and only if the rows do. The sink reads it with require_stable, after it has initialised the
transactional id: from then on no earlier attempt can write the marker.

    group, transactional id   kafkabuf-sink.SINKID            of a write that is one transaction (atomic)
                              kafkabuf-sink.SINKID:PARTITION  of one Spark partition (exactly_once)
    topic partition           0 of the marker topic
    offset                    the number of the next micro-batch
    metadata                  JSON: query, run, rows, checksum
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

from kafkabuf.errors import IllegalStateError, KafkaError
from kafkabuf.metadata.admin import Admin
from kafkabuf.metadata.groups import OffsetAndMetadata
from kafkabuf.spark.place import MicroBatch

PREFIX = "kafkabuf-sink."


def transactional_id_for(sink_id: str, partition: int | None = None) -> str:
    """The transactional id of a write, or of one Spark partition. The marker's group has the same name.

    No sinkId has a colon: so two sinks never share a name, even if one sink is called "s" and the other "s.1".
    """
    return f"{PREFIX}{sink_id}" + ("" if partition is None else f":{partition}")


@dataclass(frozen=True)
class Marker:
    """The newest micro-batch that was written. `checksum` is defined in `TaskReport`."""

    micro_batch: MicroBatch
    rows: int
    checksum: int

    def offset(self) -> OffsetAndMetadata:
        """The offset to commit."""
        known = {
            "query": self.micro_batch.query_id,
            "run": self.micro_batch.run_id,
            "rows": self.rows,
            "checksum": f"{self.checksum:016x}",
        }
        return OffsetAndMetadata(self.micro_batch.number + 1, json.dumps(known, separators=(",", ":")))

    @classmethod
    def parse(cls, group: str, found: OffsetAndMetadata) -> Self:
        """Raises KafkaError where another program committed the offset."""
        try:
            known = json.loads(found.metadata)
            micro_batch = MicroBatch(found.offset - 1, str(known["query"]), str(known["run"]))
            return cls(micro_batch, int(known["rows"]), int(known["checksum"], 16))
        except (ValueError, KeyError, TypeError) as error:
            raise KafkaError(
                f"group {group!r} has a committed offset that is no marker of this sink ({found}): choose another "
                "sinkId"
            ) from error

    def covers(self, micro_batch: MicroBatch, group: str) -> bool:
        """Whether `micro_batch` has been written. Raises IllegalStateError where checkpoint and marker do not match."""
        if self.micro_batch.query_id != micro_batch.query_id:
            raise IllegalStateError(
                f"the marker of this sinkId is that of another query ({self.micro_batch.query_id}, this is "
                f"{micro_batch.query_id}): another stream uses the sinkId, or this query has another checkpoint. Give "
                f"a new sinkId to write everything from the checkpoint on; or delete group {group!r} to forget what "
                "was written"
            )
        if micro_batch.number < self.micro_batch.number:
            raise IllegalStateError(
                f"Spark wants to write micro-batch {micro_batch.number}, but micro-batch {self.micro_batch.number} has "
                "been written already: the checkpoint is older than the rows in the topic. Give a new sinkId to write "
                "all of it again"
            )
        return micro_batch.number == self.micro_batch.number


def read_marker(admin: Admin, group: str, topic: str) -> Marker | None:
    """The group's marker, None before the first."""
    found = admin.committed(group, [(topic, 0)])[topic, 0]
    return None if found is None else Marker.parse(group, found)
