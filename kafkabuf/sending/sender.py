"""The Sender: a turn (_sender.pyx) with its policies (recovery.py, upkeep.py), its life and its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.errors import ClosedError, shown
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network._metrics import ProducerStats
from kafkabuf.network.client import NetworkClient
from kafkabuf.process.producer_log import producer_log
from kafkabuf.process.threads import sleep
from kafkabuf.sending._sender import SenderCore
from kafkabuf.sending.explanation import Explanation
from kafkabuf.sending.recovery import Recovery
from kafkabuf.sending.upkeep import Upkeep

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig
    from kafkabuf.transactions.manager import TransactionManager

log = producer_log("kafkabuf.producer")

MOST_TRIES = 200  # of a step at the Sender's end that finds no memory
PAUSE_BETWEEN_TRIES = 0.01  # seconds


class Sender:
    """Moves batches from the accumulator to the brokers (Kafka's Sender).

    One thread calls `run`, or a test calls `run_once`. Any thread may call the other public methods.
    """

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        metadata: Metadata,
        client: NetworkClient,
        clock: Clock,
    ) -> None:
        self._accumulator = accumulator
        self._metadata = metadata
        self._client = client
        self._broken: str | None = None  # what ended the thread before its time
        self._warned = False
        self.stats = ProducerStats(config.metrics_num_samples, config.metrics_sample_window_ms / 1000)
        self.transactions = _transactions(config, accumulator, client, clock)
        self.recovery = Recovery(config, accumulator, metadata, clock, self.stats, self.transactions)
        self.upkeep = Upkeep(config, accumulator, metadata, client, clock, self.recovery, self.transactions)
        self.core = SenderCore(config, accumulator, metadata, client, clock, self.stats, self.recovery, self.upkeep)
        if config.buffer_full == "drop_oldest":
            accumulator.pool.on_exhausted = partial(self.soon, self.recovery.drop_oldest)
        accumulator.pool.on_why = Explanation(accumulator, metadata, client)

    # ---- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run turns until `close`, and then until every batch has an outcome or a forced close fails the rest."""
        try:
            while self.core.step():
                pass
        except BaseException as error:
            self._accumulator.closed_because = self._broken = _ended_by(error)
            log.critical("%s", self._accumulator.closed_because)
            raise
        finally:
            try:
                self._end()
            except BaseException:  # another thread threw it in between two steps
                self._end()
                raise

    def step(self) -> bool:
        """Run one turn. False, without a turn, once there is nothing left to do."""
        return self.core.step()

    def run_once(self, max_wait: float = float("inf")) -> None:
        """Run one turn, which waits in `poll` for at most `max_wait` seconds."""
        self.core.run_once(max_wait)

    def purge(self, *, in_flight: bool) -> None:
        """Any thread: fail the batches that were not sent, and with `in_flight` all batches, in the next turn.

        Records that are sent after this call go into other batches.
        """
        accumulator = self._accumulator
        accumulator.close_open_batches()
        batches = accumulator.incomplete_batches() if in_flight else accumulator.waiting_batches()
        self.soon(partial(self.recovery.purge, batches, in_flight))

    def soon(self, errand: Callable[[], object]) -> None:
        """Any thread: have the next turn call `errand`, and each turn behind it again until it does not raise."""
        self.recovery.errands.append(errand)
        self._client.wakeup()

    def close(self, *, force: bool = False, warned: bool = False) -> None:
        """Send the queued batches, or with `force` fail them. `run` returns after that.

        `warned`: the user has been warned of the records that have no outcome now.
        """
        if not self.core.closing:
            self.upkeep.begin_close()
        self._warned = self._warned or warned
        self.recovery.forced = self.recovery.forced or force
        self.core.closing = True
        self._client.wakeup()

    @property
    def record_errors(self) -> int:
        return int(self.stats.errors.total)

    @property
    def record_retries(self) -> int:
        return int(self.stats.retries.total)

    @property
    def batch_splits(self) -> int:
        return int(self.stats.splits.total)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._accumulator.pool.disowned:  # a forked child: the parent's Sender does the remaining work
            return
        if self._warned:
            self.recovery.tell()
        # Another thread may have thrown an exception into a step, which then has ended halfway: each record needs an
        # outcome all the same. So each step may be taken twice.
        if not self._take_last_steps():
            self._take_last_steps()
        if not self._warned:
            self.recovery.tell()

    def _take_last_steps(self) -> bool:
        """Whether no step failed."""
        failures = 0
        for step in _LAST_STEPS:
            if not self._take_last_step(step):
                failures += 1
        return not failures

    def _take_last_step(self, step: Callable[[Sender], object]) -> bool:
        """Whether the step succeeded. Without memory it is repeated for some time: no other thread takes it."""
        tries = 0
        while tries < MOST_TRIES:
            tries += 1
            try:
                step(self)
                return True
            except MemoryError:
                log.error("there is no memory for a step of the Sender's end; the Sender tries it again")
            except BaseException:
                log.exception("a step of the Sender's end failed; the Sender goes on with the next step")
                return False
            try:
                sleep(PAUSE_BETWEEN_TRIES)
            except MemoryError:
                pass
        return False

    def _close_accumulator(self) -> None:
        self._accumulator.close()

    def _close_metadata(self) -> None:
        self._metadata.close(self._accumulator.closed_because)

    def _end_transactions(self) -> None:
        if self.transactions is not None:
            if self.transactions.has_ongoing_transaction and not self.recovery.forced:
                self.transactions.warn_of_open_transaction()
            self.transactions.close(ClosedError(self._accumulator.closed_because or "the producer was closed"))

    def _fail_rest(self) -> None:
        failed = self._accumulator.abort(None if self._broken is None else ClosedError(self._broken))
        left = sum(batch.count for batch in failed if batch.left)
        tries = 0
        while tries < MOST_TRIES and any(batch.left and batch.claimed for batch in failed):
            tries += 1  # the next owner of the file must not meet a thread that still writes to it
            sleep(PAUSE_BETWEEN_TRIES)
        if left:
            log.warning(
                "%d records were not delivered and stay in the file of kafkabuf.buffer.path: the next producer that "
                "opens it delivers them, or `kafkabuf spool drain`", left,
            )  # fmt: skip

    def _end_requests(self) -> None:
        self.core.end_requests(self._client.close())

    def _release_scratch(self) -> None:
        self._accumulator.release_scratch()


# The steps of a Sender's end. Each may be repeated. They stand here since there may be no memory at the end.
_LAST_STEPS: tuple[Callable[[Sender], object], ...] = (
    Sender._close_accumulator,
    Sender._close_metadata,
    Sender._end_transactions,  # before the batches fail with ClosedErrors: the transaction must not count these
    Sender._fail_rest,
    Sender._end_requests,
    Sender._release_scratch,
)


def _transactions(
    config: ProducerConfig, accumulator: RecordAccumulator, client: NetworkClient, clock: Clock
) -> TransactionManager | None:
    if config.transactional_id is None:
        return None
    # Late: most producers have no transactions, and the Sender is made when a producer opens.
    from kafkabuf.transactions.manager import TransactionManager

    return TransactionManager(config, accumulator, client, clock)


def _ended_by(error: BaseException) -> str:
    """What the user's later calls say after the end of the Sender's thread."""
    return f"the producer's thread was ended by {shown(error)}: create a new producer"
