"""Markers: what says that a micro-batch has been written, and of what it consisted.

A marker is an offset that a transaction commits together with the rows (KIP-447), for a group that no consumer has. So
it is there if and only if the rows are. It is read with require_stable, after the transactional id was initialised: no
earlier attempt can write it any more from then on.

    group, transactional id   kafkabuf-sink.SINK            of a batch that is one transaction (atomic)
                              kafkabuf-sink.SINK.PARTITION  of one Spark partition (exactly_once)
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
from kafkabuf.spark.place import Batch


def identity(sink_id: str, partition: int | None = None) -> str:
    """The name of the group, and the transactional id."""
    return f"kafkabuf-sink.{sink_id}" + ("" if partition is None else f".{partition}")


@dataclass(frozen=True)
class Marker:
    """The newest micro-batch that was written. `checksum` as in `TaskReport`."""

    batch: Batch
    rows: int
    checksum: int

    def offset(self) -> OffsetAndMetadata:
        """What to commit."""
        known = {
            "query": self.batch.query_id,
            "run": self.batch.run_id,
            "rows": self.rows,
            "checksum": f"{self.checksum:016x}",
        }
        return OffsetAndMetadata(self.batch.number + 1, json.dumps(known, separators=(",", ":")))

    @classmethod
    def parse(cls, group: str, found: OffsetAndMetadata) -> Self:
        """Raises KafkaError where the offset is somebody else's."""
        try:
            known = json.loads(found.metadata)
            batch = Batch(found.offset - 1, str(known["query"]), str(known["run"]))
            return cls(batch, int(known["rows"]), int(known["checksum"], 16))
        except (ValueError, KeyError, TypeError) as error:
            raise KafkaError(
                f"group {group!r} has an offset committed that is no marker of this sink ({found}): give another sinkId"
            ) from error

    def covers(self, batch: Batch, group: str) -> bool:
        """Whether `batch` has been written. IllegalStateError where marker and batch are not of one history."""
        if self.batch.query_id != batch.query_id:
            raise IllegalStateError(
                f"sinkId's marker is that of another query ({self.batch.query_id}, this is {batch.query_id}): another "
                "stream has the sinkId, or the checkpoint is another one. Give a new sinkId to write everything from "
                f"the checkpoint on; or delete group {group!r} to forget what was written"
            )
        if batch.number < self.batch.number:
            raise IllegalStateError(
                f"micro-batch {batch.number} is to be written, but {self.batch.number} has been already: the "
                "checkpoint is older than what the topic holds. Give a new sinkId to write it all again"
            )
        return batch.number == self.batch.number


def read(admin: Admin, group: str, topic: str) -> Marker | None:
    """The group's marker, None before the first."""
    found = admin.committed(group, [(topic, 0)])[topic, 0]
    return None if found is None else Marker.parse(group, found)
