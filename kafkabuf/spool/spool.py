"""The buffer's file of one producer: opened with it, asked after in a thread of its own, and closed behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kafkabuf.batches._accumulator import PartitionQueue
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.errors import ClosedError, KafkaError
from kafkabuf.process.producer_log import log_as, producer_log
from kafkabuf.process.threads import Lock, new_thread, sleep
from kafkabuf.spool.commits import CommitNote, Commits
from kafkabuf.spool.counts import FileCounts
from kafkabuf.spool.evidence import Proof, SpooledPartition
from kafkabuf.spool.file import Layout, SpoolFile
from kafkabuf.spool.leaders import Leaders
from kafkabuf.spool.proof import Cluster, prove
from kafkabuf.spool.recovered import Recovered
from kafkabuf.spool.recovery import Doubt, doubt_of, recover
from kafkabuf.spool.settling import settle, settle_doubt
from kafkabuf.spool.sync import Syncer
from kafkabuf.transactions.groups import TopicPartition
from kafkabuf.transactions.idempotence import ProducerState

if TYPE_CHECKING:
    import ssl

    from kafkabuf.config import ProducerConfig
    from kafkabuf.metadata.metadata import Metadata
    from kafkabuf.sending.sender import Sender

log = producer_log("kafkabuf.producer")

PAUSE_AFTER_AN_ERROR = 1.0  # seconds until the proof begins again after an error of ours


class Spool:
    """The file of one producer, and what it held.

    Raises ConfigError (spool/file.py, spool/recovery.py).
    """

    def __init__(self, config: ProducerConfig, clock: Clock, ssl_context: ssl.SSLContext | None = None) -> None:
        assert config.buffer_path is not None
        self.file = SpoolFile(config.buffer_path, Layout(config.buffer_memory, config.slab_size))
        self.recovered = Recovered(str(self.file.path))
        self.commits = Commits(CommitNote(self.file.commit), clock)
        self.syncer = Syncer(self.file, config.buffer_sync, clock, self._in_use)
        self.counts: FileCounts | None = None  # of the opened file
        self._accumulator: RecordAccumulator | None = None
        self._known_cluster = self.file.cluster_id  # of the process before
        self._keep = config.buffer_unproven == "keep"
        self._config = config
        self._ssl_context = ssl_context
        self._leaders: Leaders | None = None
        self._closed = False
        self._must_ask = False  # what became of the commit of the process before
        self._proven: set[TopicPartition] = set()  # of the opening
        self._settled: set[TopicPartition] = set()  # of the opening, too. Thread: Sender
        self._lock = Lock()
        self._asking = False  # a thread asks the cluster, or is about to
        self._doubts: dict[TopicPartition, Doubt] = {}  # not answered yet
        self._joined: list[SpooledPartition] = []  # doubts of which the thread has not heard

    def recover(self, accumulator: RecordAccumulator, metadata: Metadata) -> None:
        """Queue what the file holds, in an accumulator whose pool lies in the file."""
        self._accumulator = accumulator
        self._metadata = metadata
        self.commits.require_room(self._config.transactional_id)
        self.recovered = recover(self.file, accumulator)
        self.commits.recover(accumulator)
        self.recovered.commit = self.commits.recovered
        self.counts = FileCounts(self.recovered, accumulator)
        if isinstance(accumulator.producer_state, ProducerState) and not accumulator.transactional:
            accumulator.producer_state.on_new_id = self._note_identity
        metadata.listeners.append(self._note_identity)

    def _note_identity(self, _: object = None) -> None:
        """A new producer id, or news of the cluster. Thread: Sender.

        The next process trusts the numbers of the file if it meets the cluster that is noted. So a file with records of
        another cluster keeps that cluster's name, or gets both names, for as long as it holds them.
        """
        assert self._accumulator is not None
        state = self._accumulator.producer_state
        numbers = isinstance(state, ProducerState) and not state.transactional  # others leave nothing without numbers
        producer_id = state.producer_id if state is not None and numbers else -1
        cluster_id, known = self._metadata.snapshot.cluster_id, self._known_cluster
        if numbers and producer_id < 0:
            return
        if not cluster_id:  # brokers are too old to name it, or none has answered yet
            cluster_id = known
        elif self.recovered.partitions and known not in ("", cluster_id):
            if self._keep:
                cluster_id = ", ".join(dict.fromkeys([*known.split(", "), cluster_id]))
            elif self.recovered.unsettled:
                return
        if (producer_id, cluster_id) != (self.file.producer_id, self.file.cluster_id):
            self.file.note_identity(producer_id, cluster_id)

    def start(self, sender: Sender) -> None:
        """Begin to ask the cluster which of the records it has, if there are any. The caller's Sender runs."""
        self.syncer.start(f"kafkabuf-{self._config.client_id}-sync")
        self.attend(sender)

    def attend(self, sender: Sender) -> None:
        """What the cluster says is the Sender's errand, and so is what the Sender wants to know, this one's."""
        self.soon = sender.soon
        sender.recovery.ask_cluster = self.ask_again
        self._must_ask = self.commits.must_ask
        if self.recovered.partitions or self._must_ask:
            self._begin()

    # ---- the proof: a thread, for as long as there is something to prove ---------------------------------------------

    def ask_again(self, queue: PartitionQueue, refused: bool) -> None:
        """Nothing of the queue is in flight, and nothing goes before the answer. Thread: Sender."""
        assert self._accumulator is not None
        topic_id = self._accumulator.topics[queue.topic].topic_id
        doubt = doubt_of(queue, topic_id, refused=refused)
        with self._lock:
            self._doubts[doubt.evidence.place] = doubt
            self._joined.append(doubt.evidence)
            begins = not self._asking
        if begins:
            try:
                self._begin()
            except (RuntimeError, MemoryError) as error:
                del self._doubts[doubt.evidence.place]
                log.warning("%s goes on unasked, as there is no thread: %s", doubt.evidence, error)
                queue.doubted = queue.muted = False

    def _begin(self) -> None:
        self._asking = True
        try:
            self.begin()
        except BaseException:
            self._asking = False
            raise

    def begin(self) -> None:
        new_thread(self._prove, f"kafkabuf-{self._config.client_id}-proof").start()

    def _prove(self) -> None:
        with log_as(self._config.client_id):
            while (missing := self.unproven()) or (self._must_ask and not self._closed):
                try:
                    self._prove_all(missing)
                except ClosedError:
                    return
                except Exception:
                    log.exception("asking the cluster for the records of %s failed; it begins again", self.file.path)
                    sleep(PAUSE_AFTER_AN_ERROR)

    def unproven(self) -> list[SpooledPartition]:
        """What the cluster has to be asked for. If it is nothing, a commit included, the caller is no longer asking."""
        held = self.recovered.partitions
        with self._lock:
            self._joined.clear()
            missing = [partition.evidence for place, partition in held.items() if place not in self._proven]
            missing += [doubt.evidence for doubt in self._doubts.values()]
            self._asking = (bool(missing) or self._must_ask) and not self._closed
            return missing if self._asking else []

    def _more(self) -> list[SpooledPartition]:
        with self._lock:
            joined, self._joined = self._joined, []
            return joined

    def _prove_all(self, missing: Sequence[SpooledPartition]) -> None:
        with Leaders(self._config, ssl_context=self._ssl_context) as cluster:
            self._leaders = cluster
            if self._closed:
                return
            for errand in self.errands(cluster, missing):
                self.soon(errand)
            if self._must_ask:
                self.soon(self.commits.errand(cluster))
                self._must_ask = False

    def errands(self, cluster: Cluster, missing: Sequence[SpooledPartition]) -> Iterator[Callable[[], None]]:
        """For each partition, as soon as it is proven, what the Sender has to do."""
        for proof in prove(cluster, missing, self._more):
            place = proof.partition.place
            doubt = self._doubts.get(place)
            if doubt is None:
                self._proven.add(place)
                yield partial(self._settle, proof)
                continue
            yield partial(self._settle_doubt, doubt, proof)
            with self._lock:
                if self._doubts.get(place) is doubt:  # else the errand is done, and the partition is in doubt again
                    del self._doubts[place]

    def _in_use(self) -> bool:
        return self._accumulator is not None and bool(self._accumulator.incomplete)

    def _settle(self, proof: Proof) -> None:
        assert self._accumulator is not None
        settle(self._accumulator, self.recovered, proof, keep=self._keep)
        self._settled.add(proof.partition.place)
        if len(self._settled) == len(self.recovered.partitions):
            self._note_identity()
            log.log(logging.WARNING if self.recovered.restored else logging.INFO, "%s", self.recovered)

    def _settle_doubt(self, doubt: Doubt, proof: Proof) -> None:
        assert self._accumulator is not None
        settle_doubt(self._accumulator, self.recovered, doubt, proof, keep=self._keep)

    def stop(self) -> None:
        """Ask the cluster nothing more. Any thread."""
        self._closed = True
        self.commits.stop()
        if self._leaders is not None:
            self._leaders.stop()

    def close(self) -> None:
        """Let go of the file, once the Sender has ended."""
        self.stop()
        self.commits.close()
        try:
            self.syncer.close()
        except KafkaError as error:
            log.error("%s", error)
        finally:
            self.file.close()
