"""The states of a transactional producer, and every move from one to another."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "between transactions"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that must be aborted"
    FATAL_ERROR = "unusable"


class Move(Enum):
    """A step that changes the state: the states it may start from, and the state it leads to.

    TransactionManager changes its state by these moves only.
    """

    INIT = ((State.UNINITIALIZED,), State.INITIALIZING)  # init_transactions()
    INITIALIZED = ((State.INITIALIZING,), State.READY)  # the coordinator gave a producer id, or the next epoch
    BEGIN = ((State.READY,), State.IN_TRANSACTION)  # begin_transaction()
    COMMIT = ((State.IN_TRANSACTION,), State.COMMITTING)  # commit_transaction()
    ABORT = ((State.IN_TRANSACTION, State.ABORTABLE_ERROR), State.ABORTING)  # abort_transaction(), or close()
    END = ((State.COMMITTING, State.ABORTING), State.READY)  # the coordinator has ended the transaction
    # The coordinator has ended the transaction, and the next transaction needs a new epoch.
    END_AND_BUMP_EPOCH = ((State.COMMITTING, State.ABORTING), State.INITIALIZING)
    # The producer joins and leaves a transaction that another producer has begun (sharing.py). After LEAVE a batch
    # that another thread sent before may still fail.
    JOIN = ((State.UNINITIALIZED,), State.IN_TRANSACTION)
    LEAVE = ((State.IN_TRANSACTION,), State.UNINITIALIZED)
    # The producer serves another transactional id from now on, or goes on where another producer of the id has stopped
    # between two transactions (sharing.py).
    ASSIGN = ((State.UNINITIALIZED, State.READY), State.UNINITIALIZED)
    RESUME = ((State.UNINITIALIZED,), State.READY)
    # Ctrl-C or another exception interrupted the operation before it had a request.
    UNDO_INIT = ((State.INITIALIZING,), State.UNINITIALIZED)
    UNDO_COMMIT = ((State.COMMITTING,), State.IN_TRANSACTION)
    # A batch or a request failed: the transaction can only be aborted.
    FAIL_TRANSACTION = (
        (State.UNINITIALIZED, State.INITIALIZING, State.IN_TRANSACTION, State.COMMITTING),
        State.ABORTABLE_ERROR,
    )
    FAIL_ABORT = ((State.ABORTING,), State.ABORTABLE_ERROR)  # abort_transaction() failed; the user may call it again
    FAIL_PRODUCER = (tuple(State), State.FATAL_ERROR)  # nothing but close() is possible; or close() has ended

    def __init__(self, sources: tuple[State, ...], target: State) -> None:
        self.sources = sources
        self.target = target
