"""Whether brokers answer a producer that opens: KafkaProducer(check=True)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaError, TimeoutError
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network.client import NetworkClient
from kafkabuf.transactions.idempotence import ProducerIdSource, ProducerState

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig

LONGEST = 10.0  # seconds: what an application that starts should wait for a network that drops its packets
STEP = 0.05  # seconds of one poll: Ctrl-C interrupts the wait between two


def require_brokers(
    config: ProducerConfig, clock: Clock, metadata: Metadata, client: NetworkClient, state: ProducerState | None
) -> None:
    """Wait until a broker has sent metadata and, if `state` takes one, a producer id. The Sender does not run yet.

    Raises the error of the bootstrap servers once each of them has failed, an error that a retry will hardly change at
    once, and TimeoutError after `max.block.ms` or LONGEST. After an error no connection is left.
    """
    try:
        _await_brokers(config, clock, metadata, client, state)
    except BaseException:
        metadata.close()
        client.close()
        client.discard()
        raise


def _await_brokers(
    config: ProducerConfig, clock: Clock, metadata: Metadata, client: NetworkClient, state: ProducerState | None
) -> None:
    refusals: list[KafkaError] = []
    backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
    # init_transactions() gets the id of a transactional producer.
    ids = None
    if state is not None and not state.transactional:
        ids = ProducerIdSource(state, client, clock, backoff, refusals.append)
    timeout = min(config.max_block_ms / 1000, LONGEST)
    deadline = clock.monotonic() + timeout
    while True:
        now = clock.monotonic()
        if metadata.snapshot.brokers:
            if ids is None or ids.answered:
                return
            ids.run(now, urgent=True)
        elif client.bootstrap_failed():
            raise client.bootstrap_error()  # in no variable: the error's traceback would keep the client alive
        if now >= deadline:
            raise TimeoutError(f"no broker answered within {timeout:g} s{metadata.circumstances()}")
        for completion in client.poll(min(deadline - now, STEP)):
            completion.request.context(completion)
        if refusals:
            raise refusals.pop()
        metadata.check()
