"""How `kafkabuf spark abort` ends one transaction: the transaction that the user has seen, and no later transaction."""

from __future__ import annotations

from kafkabuf.admin.transactions import TransactionAdmin
from kafkabuf.cli.spark.sinks import open_transaction
from kafkabuf.cli.spark.state import OpenTransaction
from kafkabuf.errors import ConcurrentTransactionsError, KafkaError, TransactionalIdAuthorizationError
from kafkabuf.process import threads
from kafkabuf.process._time import monotonic

_POLL_SECONDS = 0.2


def end(admin: TransactionAdmin, shown: OpenTransaction) -> str:
    """Abort the transaction and fence its producer. Returns what was done.

    Raises KafkaError if the transaction has ended meanwhile, or if the coordinator cannot end it.
    """
    name = shown.transactional_id
    assert name is not None  # the transaction was described by its name
    now = open_transaction(admin, name)
    if now is not None and now.is_ending:
        return _await_end(admin, shown)
    if now is None or now.state != "Ongoing":
        raise KafkaError(f"this command did not end it: it has ended meanwhile ({now.state if now else 'expired'})")
    if not now.is_same(shown):
        raise KafkaError(
            f"this command did not end it: it has ended meanwhile, and another transaction has begun (producer "
            f"{now.producer_id}, epoch {now.producer_epoch}). Run the command again to end that one"
        )
    try:
        _, epoch = admin.fence(name)
    except ConcurrentTransactionsError as error:
        raise _still_ending(open_transaction(admin, name) or now) from error
    except TransactionalIdAuthorizationError as error:
        raise KafkaError("to end its transaction needs Write on the transactional id") from error
    return f"{name}: ended, producer {shown.producer_id} is fenced below epoch {epoch}"


def _await_end(admin: TransactionAdmin, shown: OpenTransaction) -> str:
    """The coordinator is ending the transaction: to fence its producer would not help, and would hit the next one."""
    assert shown.transactional_id is not None
    deadline = monotonic() + admin.config.max_block_ms / 1000
    while (now := open_transaction(admin, shown.transactional_id)) is not None and now.is_ending:
        if monotonic() >= deadline:
            raise _still_ending(now)
        threads.sleep(_POLL_SECONDS)
    return f"{shown.transactional_id}: the coordinator has ended it, and no producer is fenced"


def _still_ending(now: OpenTransaction) -> KafkaError:
    places = ", ".join(f"{place.topic}-{place.partition}" for place in now.partitions)
    return KafkaError(
        f"its state is {now.state}: the coordinator is ending it, and goes on by itself. Wait; if that takes more than "
        f"some seconds, see that the brokers run and that every partition of the transaction has a leader "
        f"({places or 'the coordinator names none'})"
    )
