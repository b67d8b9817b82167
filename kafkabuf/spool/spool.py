"""The buffer's file of one producer: opened with it, asked after in a thread of its own, and closed behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.errors import ClosedError, KafkaError
from kafkabuf.process.producer_log import log_as, producer_log
from kafkabuf.process.threads import new_thread, sleep
from kafkabuf.spool.commits import CommitNote, Commits
from kafkabuf.spool.counts import FileCounts
from kafkabuf.spool.evidence import Proof, SpooledPartition
from kafkabuf.spool.file import Layout, SpoolFile
from kafkabuf.spool.leaders import Leaders
from kafkabuf.spool.proof import Cluster, prove
from kafkabuf.spool.recovered import Recovered
from kafkabuf.spool.recovery import recover
from kafkabuf.spool.settling import settle
from kafkabuf.spool.sync import Syncer
from kafkabuf.transactions.groups import TopicPartition

if TYPE_CHECKING:
    import ssl

    from kafkabuf.config import ProducerConfig

log = producer_log("kafkabuf.producer")

PAUSE_AFTER_AN_ERROR = 1.0  # seconds until the proof begins again after an error of ours


class Spool:
    """The file of one producer, and what it held.

    `soon` has the Sender's next turn call a function. Raises ConfigError (spool/file.py, spool/recovery.py).
    """

    def __init__(self, config: ProducerConfig, clock: Clock, ssl_context: ssl.SSLContext | None = None) -> None:
        assert config.buffer_path is not None
        self.file = SpoolFile(config.buffer_path, Layout(config.buffer_memory, config.slab_size))
        self.recovered = Recovered(str(self.file.path))
        self.commits = Commits(CommitNote(self.file.commit), clock)
        self.syncer = Syncer(self.file, config.buffer_sync, clock, self._in_use)
        self.counts: FileCounts | None = None  # of the opened file
        self._accumulator: RecordAccumulator | None = None
        self._config = config
        self._ssl_context = ssl_context
        self._leaders: Leaders | None = None
        self._closed = False
        self._must_ask = False  # what became of the commit of the process before
        self._proven: set[TopicPartition] = set()

    def recover(self, accumulator: RecordAccumulator) -> None:
        """Queue what the file holds, in an accumulator whose pool lies in the file."""
        self._accumulator = accumulator
        self.commits.require_room(self._config.transactional_id)
        self.recovered = recover(self.file, accumulator)
        self.commits.recover(accumulator)
        self.recovered.commit = self.commits.recovered
        self.counts = FileCounts(self.recovered, accumulator)

    def start(self, soon: Callable[[Callable[[], object]], None]) -> None:
        """Begin to ask the cluster which of the records it has, if there are any. The caller's Sender runs."""
        self.syncer.start(f"kafkabuf-{self._config.client_id}-sync")
        if self.recovered.partitions or self.commits.must_ask:
            self._soon = soon
            self._must_ask = self.commits.must_ask
            new_thread(self._prove, f"kafkabuf-{self._config.client_id}-proof").start()

    def _prove(self) -> None:
        with log_as(self._config.client_id):
            while not self._closed and (self._must_ask or self.unproven()):
                try:
                    self._prove_all()
                except ClosedError:
                    return
                except Exception:
                    log.exception("asking the cluster for the records of %s failed; it begins again", self.file.path)
                    sleep(PAUSE_AFTER_AN_ERROR)

    def unproven(self) -> list[SpooledPartition]:
        """What the cluster has to be asked for."""
        held = self.recovered.partitions
        return [partition.evidence for place, partition in held.items() if place not in self._proven]

    def _prove_all(self) -> None:
        with Leaders(self._config, ssl_context=self._ssl_context) as cluster:
            self._leaders = cluster
            if self._closed:
                return
            for errand in self.errands(cluster, self.unproven()):
                self._soon(errand)
            if self._must_ask:
                self._soon(self.commits.errand(cluster))
                self._must_ask = False

    def errands(self, cluster: Cluster, missing: Sequence[SpooledPartition]) -> Iterator[Callable[[], None]]:
        """For each partition, as soon as it is proven, what the Sender has to do."""
        for proof in prove(cluster, missing):
            self._proven.add(proof.partition.place)
            yield partial(self._settle, proof)

    def _in_use(self) -> bool:
        return self._accumulator is not None and bool(self._accumulator.incomplete)

    def _settle(self, proof: Proof) -> None:
        assert self._accumulator is not None
        settle(self._accumulator, self.recovered, proof, keep=self._config.buffer_unproven == "keep")
        if not self.recovered.unsettled:
            log.info("%s", self.recovered)

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
