"""Commits that a kill cut off, made by hand, and the same scripts for each broker: what its coordinator says."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from kafkabuf.spool.commits import Commit, CommitOutcome, ask
from tests.broker.raw_client import RawClient
from tests.broker.transactions.script import Script
from tests.spool.stage import Stage, leaders
from tests.waiting import wait_until

COMMITTED, ABORTED, UNKNOWN = CommitOutcome.COMMITTED, CommitOutcome.ABORTED, CommitOutcome.UNKNOWN
V1, V2 = 4, 5  # versions of EndTxn
TIMED_OUT = 1_000  # milliseconds


class DeadCommit:
    """A process with an open transaction of one record, that was killed about when it sent EndTxn."""

    def __init__(self, stage: Stage, version: int, timeout: int = 900_000) -> None:
        self.address, self.version = stage.address, version
        self.name = f"id-{uuid.uuid4().hex[:8]}"
        self.client = RawClient(stage.address)
        self.script = Script(self.client, stage.new_topic(), self.name)
        self.script.wait_for_coordinators()
        # The second epoch: that of an aborted transaction is not the first of all.
        self.script.init("of an earlier process", self.name)
        producer_id, epoch = self.producer = self.script.init("init", self.name, timeout=timeout)
        self.script.add("add", self.name, self.producer, 0)
        assert self.script.produce("send", self.name, self.producer, 0) == 0
        at_ms = time.time_ns() // 1_000_000
        self.commit = Commit(self.name, producer_id, epoch, version == V2, at_ms, 1)

    def end(self, *, committed: bool) -> object:
        """Error code first, if there is more than that."""
        step = f"end {len(self.script.answers)}"
        self.script.end(step, self.name, self.producer, committed, version=self.version)
        return self.script.answers[step]

    def asked(self) -> tuple[CommitOutcome, str]:
        with leaders(self.address) as cluster:
            return ask(cluster, self.commit)

    def state(self) -> str:
        with leaders(self.address) as cluster:
            return cluster.transaction(self.name).state

    def close(self) -> None:
        self.client.socket.close()


def commit_that_arrived_is_committed(stage: Stage, version: int) -> None:
    dead = DeadCommit(stage, version)
    dead.end(committed=True)
    assert dead.asked() == (COMMITTED, "")
    wait_until(lambda: dead.state() == "CompleteCommit")
    assert dead.asked() == (COMMITTED, "")
    dead.close()


def abort_that_arrived_is_aborted(stage: Stage, version: int) -> None:
    dead = DeadCommit(stage, version)
    dead.end(committed=False)
    assert dead.asked() == (ABORTED, "")
    dead.close()


def open_transaction_is_aborted_and_a_late_commit_is_refused(stage: Stage, version: int) -> None:
    dead = DeadCommit(stage, version)
    assert dead.asked() == (ABORTED, "")
    code = dead.end(committed=True)
    assert (code if version == V1 else code[0]) != 0  # type: ignore[index]
    assert dead.asked() == (ABORTED, "")
    dead.close()


def transaction_that_timed_out_is_aborted(stage: Stage, version: int) -> None:
    dead = DeadCommit(stage, version, TIMED_OUT)
    wait_until(lambda: dead.state() != "Ongoing")
    assert dead.asked() == (ABORTED, "")
    dead.close()


def id_that_another_producer_has_taken_is_unknown(stage: Stage, version: int) -> None:
    dead = DeadCommit(stage, version)
    dead.end(committed=True)
    dead.script.init("of another process", dead.name)
    outcome, reason = dead.asked()
    assert (outcome, reason.partition(": ")[0]) == (UNKNOWN, "another producer has used the transactional id since")
    dead.close()


def id_that_the_coordinator_does_not_know_is_unknown(stage: Stage, version: int) -> None:
    with leaders(stage.address) as cluster:
        found = ask(cluster, Commit("nobody", 7, 0, version == V2, 0, 1))
    assert found == (UNKNOWN, "the coordinator has forgotten the transactional id")


SCRIPTS: list[Callable[[Stage, int], None]] = [
    commit_that_arrived_is_committed,
    abort_that_arrived_is_aborted,
    open_transaction_is_aborted_and_a_late_commit_is_refused,
    transaction_that_timed_out_is_aborted,
    id_that_another_producer_has_taken_is_unknown,
    id_that_the_coordinator_does_not_know_is_unknown,
]
