"""What a task leaves for the next task of its Spark partition, which often runs in another Python worker of the host.

With it the next task needs no producer id, no marker and no lookup of a coordinator (exactly_once.py): it goes on where
the last task has stopped. A note is taken by one worker only. A worker without the note initialises the transactional
id, and so fences the worker that has taken the note.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from kafkabuf.sharing import Pause
from kafkabuf.spark.reports.marker import Marker
from kafkabuf.spark.worker import notes
from kafkabuf.spark.worker.place import MicroBatch


@dataclass(frozen=True)
class Handover:
    """Where the producer of a Spark partition has stopped, and the newest micro-batch that it has written."""

    pause: Pause
    marker: Marker

    def is_for(self, micro_batch: MicroBatch) -> bool:
        """Whether the micro-batch, or this very micro-batch in an earlier attempt, came before in the same run."""
        last = self.marker.micro_batch
        is_same_run = (last.query_id, last.run_id) == (micro_batch.query_id, micro_batch.run_id)
        return is_same_run and micro_batch.number - last.number in (0, 1)


def put(handover: Handover, cluster: str) -> None:
    """Leave the note for the next task of the Spark partition. `cluster` tells the cluster from any other."""
    notes.put(f"{handover.pause.transactional_id}:{cluster}", asdict(handover))


def take(transactional_id: str, cluster: str) -> Handover | None:
    """The note of the Spark partition's last task on this host; None: no note is there."""
    note = notes.take(f"{transactional_id}:{cluster}")
    if note is None:
        return None
    try:
        known = note["marker"]
        marker = Marker(MicroBatch(**known["micro_batch"]), known["rows"], known["checksum"])
        return Handover(Pause(**note["pause"]), marker)
    except (KeyError, TypeError):  # another version of kafkabuf wrote the note
        return None
