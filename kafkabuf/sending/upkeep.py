"""The steps of a turn that are about no single batch: leaders, the producer's id, transactions, and the Sender's end.

The turn (_sender.pyx) calls `Upkeep`, which never calls the turn. Only the Sender's thread runs this code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.errors import AuthenticationError
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.metadata.snapshot import Cluster, Node
from kafkabuf.network.client import NetworkClient
from kafkabuf.sending._produce import VERSIONS_BY_MAGIC, ProduceResponse
from kafkabuf.sending._sender import UpkeepPolicy
from kafkabuf.sending.recovery import Recovery
from kafkabuf.transactions.idempotence import ProducerIdSource, ProducerState
from kafkabuf.transactions.states import State

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig
    from kafkabuf.transactions.manager import TransactionManager


class Upkeep(UpkeepPolicy):
    """What one producer's Sender keeps up beside its batches."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        metadata: Metadata,
        client: NetworkClient,
        clock: Clock,
        recovery: Recovery,
        transactions: TransactionManager | None,
    ) -> None:
        state = accumulator.producer_state
        self._config = config
        self._accumulator = accumulator
        self._metadata = metadata
        self._client = client
        self._clock = clock
        self._recovery = recovery
        self._rack = config.client_rack if config.partitioner_rack_aware else ""
        self._abort_deadline = float("inf")  # while closing: the Sender then no longer waits for the transaction's end
        self.transactions = transactions
        self.produce_versions = VERSIONS_BY_MAGIC[accumulator.magic]
        if transactions is not None:
            self._seen_state = transactions.state  # after the last run_transactions
        elif isinstance(state, ProducerState):
            backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
            self._producer_ids = ProducerIdSource(state, client, clock, backoff, recovery.without_id)
        metadata.listeners.append(self._on_cluster)
        metadata.topics_in_use = self._topics_in_use

    # ---- leaders -----------------------------------------------------------------------------------------------------

    def ask_for_leaders(self, topics: set[str]) -> None:
        """Request metadata of topics whose batches have no leader, unless every broker refuses the client."""
        refusal = self._refusal()
        for name in topics:
            topic = self._accumulator.topics[name]
            self._recovery.fail_gone(topic)
            if refusal is not None:
                self._recovery.fail_unauthenticated([queue for queue in topic.queues if queue.leader < 0], refusal)
            self._metadata.add_topic(name)
        self._metadata.request_update()

    def _refusal(self) -> AuthenticationError | None:
        """The error of a client that every known broker refuses and none has accepted: no broker will name a leader."""
        try:
            self._client.connection_error()
        except AuthenticationError as error:
            return error
        return None

    def on_leaders(self, leaders: dict[tuple[str, int], tuple[int, int]], response: ProduceResponse) -> None:
        """The broker no longer leads these partitions and names the new leaders (KIP-951)."""
        self._metadata.update_leaders(leaders, [Node(node_id, *where) for node_id, where in response.nodes.items()])

    def _on_cluster(self, cluster: Cluster) -> None:
        """Add queues for new partitions, and give every queue its present leader.

        A topic that metadata has forgotten loses its leaders: the next record to it requests metadata at once. A topic
        that the cluster says does not exist keeps its leaders until it exists again or its records expire.
        """
        self._note_racks(cluster)
        for name in list(self._accumulator.topics):  # a copy: send() adds topics during this loop
            info = cluster.topics.get(name)
            if info is None:
                self._accumulator.forget_leaders(self._accumulator.topics[name])
            elif info.partitions:
                self._accumulator.topic_queues(name, info.leaders, info.leader_epochs, info.topic_id)

    def _note_racks(self, cluster: Cluster) -> None:
        if self._rack:
            near = {node.id for node in cluster.brokers.values() if node.rack == self._rack}
            self._accumulator.near_nodes.intersection_update(near)
            self._accumulator.near_nodes.update(near)

    def _topics_in_use(self) -> list[str]:
        """Topics with records that wait or are in flight, the oldest first: metadata keeps them up to date."""
        return list(dict.fromkeys(batch.topic for batch in self._accumulator.incomplete_batches()))

    # ---- numbers and transactions ------------------------------------------------------------------------------------

    def update_producer_state(self, now: float) -> float:
        """Get a producer id, resolve the sequences in doubt. Returns the seconds until the next call is due."""
        state = self._accumulator.producer_state
        assert isinstance(state, ProducerState)
        state.update()
        if state.fatal_error is not None and self._accumulator.incomplete:
            self._recovery.fail_everything(state.fatal_error)
        if state.has_producer_id or state.fatal_error is not None:
            return float("inf")
        return self._producer_ids.run(now, urgent=bool(self._accumulator.incomplete))

    def run_transactions(self, now: float) -> float:
        """Send the next request of a transaction, in every turn. Returns the seconds until the next call is due."""
        transactions = self.transactions
        assert transactions is not None
        if transactions.must_drop_unsent and self._accumulator.active:
            self._accumulator.drop_unsent(transactions.reason_to_drop())
        elif transactions.state is State.FATAL_ERROR and self._accumulator.incomplete:
            self._recovery.fail_everything(transactions.failure())
        lowest, highest = VERSIONS_BY_MAGIC[2]
        self.produce_versions = (lowest, min(highest, transactions.newest_produce_version))
        wait = transactions.run(now, has_incomplete=bool(self._accumulator.incomplete))
        self._seen_state = transactions.state
        return wait

    # ---- while the producer closes -----------------------------------------------------------------------------------

    def begin_close(self) -> None:
        """Any thread. A coordinator that cannot be reached must not hold up close() for ever."""
        self._abort_deadline = self._clock.monotonic() + self._config.delivery_timeout_ms / 1000

    def is_finished(self) -> bool:
        """While the producer closes: whether nothing is left to do."""
        return self._recovery.forced or not (self._has_unfinished_work() or self._pushes_metrics())

    def wait_while_closing(self, now: float) -> float:
        """Seconds that the poll may last while the producer closes. 0: this turn may be the last.

        Each poll of a Sender that closes asks: the event that ends the last batch need not come from the network, and
        nothing would wake that poll.
        """
        if self.is_finished():
            return 0.0
        if self.transactions is None:
            return float("inf")
        # The turn changed the transaction's state after run_transactions: the new state needs that step again at once.
        stale = self.transactions.state is not self._seen_state
        return 0.0 if stale else max(self._abort_deadline - now, 0.0)

    def _has_unfinished_work(self) -> bool:
        """Whether batches lack an outcome, or the transaction has yet to end."""
        if self._accumulator.incomplete:
            return True
        if self.transactions is None:
            return False
        self.transactions.abort_on_close()
        may_end = self._clock.monotonic() < self._abort_deadline and not self.transactions.abort_is_hopeless
        return may_end and self.transactions.has_ongoing_transaction

    def _pushes_metrics(self) -> bool:
        """With all other work done: whether the last push of metrics is under way."""
        telemetry = self._client.telemetry
        return telemetry is not None and telemetry.finish(self._clock.monotonic())
