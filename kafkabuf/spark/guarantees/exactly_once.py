"""`exactly_once`: each task of a micro-batch writes one transaction, which holds the rows and a marker (marker.py).

1. The driver checks that it reaches the brokers and that the topics exist (preflight.py). If the last micro-batch that
   it began was not committed, or if it began none, the driver reads the markers of all Spark partitions: an earlier run
   may have left an unfinished micro-batch. The tasks get what the driver knows.
2. The task initialises its transactional id. That fences every earlier attempt and ends the transaction that an earlier
   attempt left open. No earlier attempt can write a marker from then on. Then the task reads its marker. So the marker
   says for good whether an earlier attempt has written these rows. Where the note of the last task is at hand
   (handover.py), the task goes on from there without asking.
3. If they are written, the task sends nothing: it counts its rows and compares them with the marker.
4. Else the task sends its rows and the marker, and commits the transaction.
5. But if another Spark partition of this micro-batch was written by an earlier run, the task leaves its transaction to
   the driver. Spark may have cut the micro-batch into other partitions this time. Then the partition that was written
   has other rows now, and its task fails. So the driver ends the transactions after all tasks have succeeded, and after
   it has found no marker of a Spark partition that the replay does not have: no row becomes visible twice. The task
   also leaves its transaction to the driver where it cannot tell whether it has got all its rows (whole_rows.py).

The marker decides every crash. Attempts that run side by side (speculation) fence each other; the last attempt finds
the other's marker, or finds no marker and writes.

The guarantee holds for micro-batches whose tasks have the same rows in every replay. Spark promises that for sources
that it can replay, under plans whose partitions do not depend on the order of rows, with the same number of partitions.
Other rows in a replay are an error, not a duplicate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from kafkabuf.admin.transactions import TransactionAdmin
from kafkabuf.errors import IllegalStateError
from kafkabuf.producer import KafkaProducer
from kafkabuf.sharing import assign, join, knows_version_2, leave, pause, resume
from kafkabuf.spark.guarantees import handover, preflight
from kafkabuf.spark.guarantees.delivery import Delivery
from kafkabuf.spark.guarantees.handover import Handover
from kafkabuf.spark.options.options import Guarantee, OnLostMarker, SinkOptions
from kafkabuf.spark.reports.marker import (
    Marker,
    is_written,
    partition_of,
    read_marker,
    refuse_lost,
    refuse_other_guarantee,
    refuse_unfit,
    transactional_id_for,
)
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.rows.task import Task, count_rows
from kafkabuf.spark.worker import notes, whole_rows, workers
from kafkabuf.spark.worker.limits import TopicLimits
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt


@dataclass(frozen=True)
class Committed:
    """The driver has committed this micro-batch of `before` Spark partitions, and has begun no other since."""

    micro_batch: MicroBatch
    before: int

    def is_begun(self, micro_batch: MicroBatch) -> bool:
        """Whether an earlier run may have written a part of the micro-batch, or all of it.

        A run in another JVM may have come since. So only a micro-batch of the same run has certainly not been begun.
        """
        last = self.micro_batch
        return micro_batch != MicroBatch(last.number + 1, last.query_id, last.run_id)

    def refuse_unfit(self, partition: int, micro_batch: MicroBatch, options: SinkOptions) -> None:
        """Nothing: the driver checks a micro-batch that may have been begun, before it ends the transactions."""


@dataclass(frozen=True)
class Found:
    """The markers that the driver has found: the newest micro-batch, and its number for each Spark partition.

    `before` is how many Spark partitions the micro-batch had, at least, that came before the newest.
    """

    newest: MicroBatch | None
    numbers: Mapping[int, int]
    before_newest: int

    @classmethod
    def of(cls, markers: Mapping[int, Marker]) -> Self:
        """What these markers say, by Spark partition."""
        newest = max((marker.micro_batch for marker in markers.values()), key=lambda batch: batch.number, default=None)
        widths = (marker.before for marker in markers.values() if newest and marker.is_of(newest))
        numbers = {partition: marker.micro_batch.number for partition, marker in markers.items()}
        return cls(newest, numbers, max(widths, default=0))

    @property
    def before(self) -> int:
        """How many Spark partitions the newest micro-batch had, at least."""
        return 1 + max((partition for partition, number in self.numbers.items() if number == self._number), default=-1)

    @property
    def _number(self) -> int:
        return -1 if self.newest is None else self.newest.number

    def is_begun(self, micro_batch: MicroBatch) -> bool:
        """Whether an earlier run has written a part of the micro-batch, or all of it."""
        newest = self.newest
        return newest is not None and (newest.query_id, newest.number) == (micro_batch.query_id, micro_batch.number)

    def refuse_unfit(self, partition: int, micro_batch: MicroBatch, options: SinkOptions) -> None:
        """Raise IllegalStateError where the markers do not fit the checkpoint, or where the partition's is lost.

        Every task looks at the markers of all partitions: a task whose partition is new has no marker of its own, and
        would write rows of a micro-batch that the other tasks refuse.
        """
        name = transactional_id_for(options.sink_id_and_marker_topic()[0], partition)
        if self.newest is not None and options.on_lost_marker is OnLostMarker.FAIL:
            refuse_unfit(self.newest, micro_batch, name)
        if (loss := self._loss(partition, micro_batch)) is not None:
            refuse_lost(name, micro_batch, options, loss)

    def _loss(self, partition: int, micro_batch: MicroBatch) -> str | None:
        """What shows that the partition's marker is lost; None where no marker is missing."""
        before = micro_batch.number - 1
        if self._number < before:
            return "there is no marker" if self.newest is None else f"the marker is that of micro-batch {self._number}"
        width = self.before if self._number == before else self.before_newest
        if self.numbers.get(partition, -1) < before and partition < width:
            return f"micro-batch {before} had {width} Spark partitions, and partition {partition} has no marker of it"
        return None


@dataclass(frozen=True)
class Begun:
    """What the driver gives its tasks: what it knows of earlier micro-batches, and the limits of the topic."""

    before: Committed | Found
    limits: TopicLimits | None


class ExactlyOnce(Delivery[Begun]):
    """See the protocol above. Only streams can have it: `df.write` has no number that tells a repetition."""

    after_abort = "readers with read_committed see no row twice"

    # ---- the driver, before the tasks --------------------------------------------------------------------------------

    def begin(self, *, is_stream: bool) -> Begun:
        preflight.check(self.options, repeat=not is_stream)
        return Begun(self._before(), preflight.read_limits(self.options))

    def _before(self) -> Committed | Found:
        note = notes.take(self._committed_note)
        if note is not None:
            micro_batch = MicroBatch(int(note["number"]), str(note["query"]), str(note["run"]))
            return Committed(micro_batch, int(note["partitions"]))
        with workers.lent_admin(self.options.producer) as admin:
            self._refuse_atomic(admin)
            return Found.of(self._markers(admin))

    @property
    def _committed_note(self) -> str:
        """The name of the note that the driver has committed the newest micro-batch that it began, in this cluster."""
        return f"{transactional_id_for(self.options.sink_id_and_marker_topic()[0])}:committed:{self._cluster}"

    @property
    def _cluster(self) -> str:
        """The cluster and marker topic, for the names of notes."""
        known = (self.options.producer, self.options.marker_topic)
        return hashlib.sha256(repr(known).encode()).hexdigest()[:16]

    def _refuse_atomic(self, admin: TransactionAdmin) -> None:
        sink_id, marker_topic = self.options.sink_id_and_marker_topic()
        if read_marker(admin, transactional_id_for(sink_id), marker_topic) is not None:
            refuse_other_guarantee(self.options, Guarantee.ATOMIC)

    def _markers(self, admin: TransactionAdmin, first: int = 0) -> dict[int, Marker]:
        """The markers of the Spark partitions from `first` on.

        The driver fences their transactional ids first. No task of this run uses them yet, but a task of an earlier run
        may live on and have a transaction open, or may be about to commit its transaction.
        """
        self._fence(admin, first)
        _, marker_topic = self.options.sink_id_and_marker_topic()
        partitions = {
            number for number in map(partition_of, admin.groups(self._prefix)) if number is not None and number >= first
        }
        markers = {}
        for partition in sorted(partitions | {first}):
            marker = read_marker(admin, self._name(partition), marker_topic)
            if marker is not None:
                markers[partition] = marker
        return markers

    def _fence(self, admin: TransactionAdmin, first: int = 0) -> None:
        """End the transactions of the Spark partitions from `first` on, and fence who began them."""
        for transaction in admin.transactions(self._prefix):
            partition = partition_of(transaction.transactional_id)
            if partition is not None and partition >= first:
                admin.fence(transaction.transactional_id)

    @property
    def _prefix(self) -> str:
        return f"{transactional_id_for(self.options.sink_id_and_marker_topic()[0])}:"

    # ---- a task ------------------------------------------------------------------------------------------------------

    def send(self, batches: Iterator[pa.RecordBatch], begun: Begun) -> TaskReport:
        attempt = TaskAttempt.current()
        micro_batch = attempt.require_micro_batch()
        with workers.lent_transactional(workers.task_settings(self.options, begun.limits)) as producer:
            marker = self._take_over(producer, attempt, micro_batch)
            known: dict[str, Any] = {"is_replay": begun.before.is_begun(micro_batch), "marker": marker}
            if is_written(marker, micro_batch, self._name(attempt.partition)):
                assert marker is not None
                _compare(marker, *count_rows(batches, self.columns), attempt)
                self._hand_over(producer, marker)
                return self._new_task(producer, begun).report(attempt, already_written=True, **known)
            begun.before.refuse_unfit(attempt.partition, micro_batch, self.options)
            return self._write(producer, batches, attempt, begun, known)

    def _name(self, partition: int) -> str:
        return transactional_id_for(self.options.sink_id_and_marker_topic()[0], partition)

    def _take_over(self, producer: KafkaProducer, attempt: TaskAttempt, micro_batch: MicroBatch) -> Marker | None:
        """Make sure that no earlier attempt can write, and find out what the earlier attempts have written."""
        name = self._name(attempt.partition)
        note = handover.take(name, self._cluster)
        if note is not None and note.is_for(micro_batch) and knows_version_2(producer):
            resume(producer, note.pause)
            return note.marker
        assign(producer, name)
        producer.init_transactions()
        with workers.lent_admin(self.options.producer) as admin:
            return read_marker(admin, name, self.options.sink_id_and_marker_topic()[1])

    def _hand_over(self, producer: KafkaProducer, marker: Marker) -> None:
        paused = pause(producer)
        if paused is not None:
            handover.put(Handover(paused, marker), self._cluster)

    def _new_task(self, producer: KafkaProducer, begun: Begun) -> Task:
        return Task(lambda: producer, self.options, self.columns, begun.limits)

    def _write(
        self,
        producer: KafkaProducer,
        batches: Iterator[pa.RecordBatch],
        attempt: TaskAttempt,
        begun: Begun,
        known: dict[str, Any],
    ) -> TaskReport:
        micro_batch = attempt.require_micro_batch()
        task = self._new_task(producer, begun)
        producer.begin_transaction()
        task.send_all(batches)
        # A task without rows writes a marker too: it shows that Spark has run the task.
        marker = Marker(micro_batch, *task.rows_and_checksum_given(), _width_before(begun.before, micro_batch))
        _, marker_topic = self.options.sink_id_and_marker_topic()
        producer.send_offsets_to_transaction({(marker_topic, 0): marker.offset()}, self._name(attempt.partition))
        # Spark gives the driver the report of a task only if the task's JVM has not failed.
        if begun.before.is_begun(micro_batch) or whole_rows.has_ended() is None:
            return task.report(attempt, transaction=leave(producer), **known)
        producer.commit_transaction()
        self._hand_over(producer, marker)
        return task.report(attempt, **known)

    # ---- the driver, after the tasks ---------------------------------------------------------------------------------

    def commit(self, reports: Sequence[TaskReport], batch_id: int | None, begun: Begun | None) -> None:
        """End the transactions that the tasks have left.

        Raises IllegalStateError where an earlier attempt of the micro-batch had more Spark partitions.
        """
        micro_batch = reports[0].batch
        assert micro_batch is not None
        if any(report.is_replay for report in reports):
            self._check_replay(micro_batch, reports)
        for transaction in [report.transaction for report in reports if report.transaction is not None]:
            with workers.lent_transactional(self.options.producer, close_seconds=0.0) as producer:
                join(producer, transaction)
                producer.commit_transaction()
        notes.put(
            self._committed_note,
            {
                "query": micro_batch.query_id,
                "run": micro_batch.run_id,
                "number": micro_batch.number,
                "partitions": len(reports),
            },
        )

    def _check_replay(self, micro_batch: MicroBatch, reports: Sequence[TaskReport]) -> None:
        """What only the driver sees: the Spark partitions that this replay does not have, and all markers together."""
        with workers.lent_admin(self.options.producer) as admin:
            self._refuse_atomic(admin)
            surplus = self._markers(admin, first=len(reports))
        for partition, marker in surplus.items():
            if marker.is_of(micro_batch):
                raise IllegalStateError(
                    f"micro-batch {micro_batch.number} was begun with a partition {partition}, and is replayed with "
                    f"{len(reports)} partitions: the replay is not visible. {_SAME_PARTITIONS}"
                )
        markers = {report.partition: report.marker for report in reports if report.marker is not None}
        all_markers = Found.of({**surplus, **markers})
        for report in reports:
            if not report.already_written:
                all_markers.refuse_unfit(report.partition, micro_batch, self.options)

    def abort(self, reports: Sequence[TaskReport | None], begun: Begun | None) -> None:
        """End the transactions of tasks that were killed, and those that tasks have left to the driver.

        Without reports the driver does not know its tasks, and ends the transactions of every Spark partition.
        """
        with workers.lent_admin(self.options.producer) as admin:
            if not reports:
                self._fence(admin)
            for partition, report in enumerate(reports):
                if report is None or report.transaction is not None:
                    admin.fence(self._name(partition))


def _width_before(before: Committed | Found, micro_batch: MicroBatch) -> int:
    """How many Spark partitions the micro-batch before had, at least."""
    if isinstance(before, Found) and before.is_begun(micro_batch):
        return before.before_newest
    return before.before


_SAME_PARTITIONS = (
    "exactly_once needs the same number of Spark partitions in every replay of a micro-batch, and files are cut by the "
    "number of cores: start the query with the cores (and spark.sql.files.*, spark.sql.shuffle.partitions) that it "
    "had, until it has written this micro-batch"
)


def _compare(marker: Marker, rows: int, checksum: int, attempt: TaskAttempt) -> None:
    """Raises IllegalStateError where the replayed rows differ from the written rows."""
    if (rows, checksum) != (marker.rows, marker.checksum):
        raise IllegalStateError(
            f"partition {attempt.partition} of micro-batch {marker.micro_batch.number} was written with {marker.rows} "
            f"rows (checksum {marker.checksum:016x}), and is replayed with {rows} ({checksum:016x}): it was not "
            f"written again, and the replay is not visible. {_SAME_PARTITIONS}. A plan whose partitions depend on the "
            "order of rows needs deliveryGuarantee 'atomic' and a new sinkId"
        )
