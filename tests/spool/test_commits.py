"""The commit that a kill cut off: the next producer says what became of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.admin.admin import TransactionDescription
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, KafkaError, TimeoutError
from kafkabuf.protocol import messages
from kafkabuf.spool.commits import Commit, CommitNote, CommitOutcome, fate
from tests.spool.commit_scripts import ABORTED, COMMITTED, SCRIPTS, UNKNOWN, V1, V2
from tests.spool.stage import Stage
from tests.spool.test_producer import TOPIC, in_child, opened
from tests.waiting import PATIENCE, wait_until

COORDINATOR_LOADING, NOT_AUTHORIZED = 14, 53
UNDER_WAY = CommitOutcome.UNDER_WAY
NOTED = Commit("id", 7, 3, is_v2=True, at_ms=1_000, records=12)


@pytest.fixture(params=[2, 0], ids=["V2", "V1"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, transaction_version=request.param) as cluster:
        cluster.create_topic(TOPIC, 2)
        yield cluster


# ---- the coordinator's answer ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V1, V2], ids=["V1", "V2"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_holds(script: Callable[[Stage, int], None], version: int) -> None:
    with EmbeddedCluster(brokers=1, transaction_version=2 if version == V2 else 0) as cluster:
        script(Stage(cluster.bootstrap_servers, lambda name, configs: cluster.create_topic(name)), version)


@pytest.mark.parametrize(
    ("state", "rise", "started_ms", "version_1", "version_2"),
    [
        ("Ongoing", 0, 900, None, None),
        ("Ongoing", 1, 900, UNKNOWN, UNKNOWN),
        ("PrepareCommit", 0, 900, COMMITTED, UNKNOWN),
        ("CompleteCommit", 1, 900, UNKNOWN, COMMITTED),
        ("CompleteCommit", 2, 900, UNKNOWN, UNKNOWN),
        ("PrepareAbort", 0, 900, ABORTED, UNKNOWN),
        ("CompleteAbort", 1, 900, ABORTED, ABORTED),
        ("CompleteAbort", 1, 1_001, UNKNOWN, ABORTED),
        ("CompleteAbort", 2, 900, ABORTED, ABORTED),
        ("CompleteAbort", 2, 1_001, UNKNOWN, UNKNOWN),
        ("CompleteAbort", 3, 900, UNKNOWN, UNKNOWN),
        ("Empty", 0, -1, UNKNOWN, UNKNOWN),
        ("Empty", 1, -1, UNKNOWN, UNKNOWN),
    ],
)
def test_epoch_and_time_tell_whose_transaction_the_coordinator_means(
    state: str, rise: int, started_ms: int, version_1: CommitOutcome | None, version_2: CommitOutcome | None
) -> None:
    for is_v2, wanted in ((False, version_1), (True, version_2)):
        commit = Commit("id", 7, 3, is_v2, 1_000, 12)
        found = fate(commit, TransactionDescription(state, 7, 3 + rise, frozenset(), started_ms))
        assert (found and found[0]) == wanted
        other = fate(commit, TransactionDescription(state, 8, 3 + rise, frozenset(), started_ms))
        assert other is not None
        assert other[0] is UNKNOWN


# ---- the note --------------------------------------------------------------------------------------------------------


class Recording(bytearray):
    """Keeps a copy of itself behind each store."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.copies: list[bytes] = []

    def __setitem__(self, *store: Any) -> None:
        super().__setitem__(*store)
        self.copies.append(bytes(self))


def read(data: bytes | bytearray) -> Commit | None:
    return CommitNote(memoryview(data)).read()


def test_kill_between_two_stores_leaves_one_note_or_none() -> None:
    place = Recording(512)
    note = CommitNote(place)  # type: ignore[arg-type]
    earlier = Commit("a longer id than the next one has", 1, 2, is_v2=False, at_ms=5, records=6)
    note.write(earlier)
    note.outcome = COMMITTED
    earlier.outcome = COMMITTED
    place.copies.clear()
    note.write(NOTED)
    assert [read(copy) for copy in place.copies] == [None, None, NOTED]
    place.copies.clear()
    note.outcome = ABORTED
    (copy,) = place.copies
    assert read(copy) == Commit("id", 7, 3, is_v2=True, at_ms=1_000, records=12, outcome=ABORTED)


def test_damaged_note_tells_nothing() -> None:
    place = bytearray(512)
    CommitNote(memoryview(place)).write(NOTED)
    for at in range(36 + len("id")):
        for bit in (0x01, 0x80):
            damaged = bytearray(place)
            damaged[at] ^= bit
            found = read(damaged)
            assert found is None or found.outcome is UNKNOWN or (at == 0 and found.outcome is not UNDER_WAY)


# ---- the whole producer ----------------------------------------------------------------------------------------------


def transactional(cluster: EmbeddedCluster, path: Path, **settings: Any) -> KafkaProducer[Any, Any]:
    return opened(cluster, path, **({"transactional_id": "id"} | settings))


def killed_in_commit(
    cluster: EmbeddedCluster, path: Path, trouble: Callable[[], object], until: Callable[[], object], **settings: Any
) -> None:
    """A process commits five records, and is killed in the commit of three more, which comes behind the trouble."""
    gate, opener = os.pipe()

    def run() -> None:
        producer = transactional(cluster, path, **settings)
        producer.init_transactions()
        for count in (5, 3):
            producer.begin_transaction()
            for number in range(count):
                producer.send(TOPIC, b"%d of %d" % (number, count), partition=number % 2)
            if count == 5:
                producer.commit_transaction()

        def commit() -> None:
            os.read(gate, 1)
            producer.commit_transaction()

        Thread(target=commit, daemon=True).start()

    begun: list[object] = []

    def committing() -> object:
        if not begun:
            begun.append(trouble())
            os.write(opener, b".")
        return until()

    in_child(run, committing)
    os.close(gate)
    os.close(opener)


def end_requests(cluster: EmbeddedCluster) -> int:
    return len(cluster.requests(api_key=messages.END_TXN))


def killed_behind_end(cluster: EmbeddedCluster, path: Path, **settings: Any) -> None:
    """The coordinator carries out the commit, and nobody learns of it."""
    trouble = partial(cluster.set_latency, 2 * PATIENCE, messages.END_TXN)
    killed_in_commit(cluster, path, trouble, lambda: end_requests(cluster) == 2, **settings)
    cluster.set_latency(0, messages.END_TXN)


def killed_before_end(cluster: EmbeddedCluster, path: Path, **settings: Any) -> None:
    """The coordinator takes no commit for as long as the process lives."""
    trouble = partial(cluster.fail_next, messages.END_TXN, COORDINATOR_LOADING, times=1_000_000)
    killed_in_commit(cluster, path, trouble, lambda: end_requests(cluster) > 2, **settings)
    cluster.clear_faults()


def commit_of(producer: KafkaProducer[Any, Any]) -> Commit:
    assert producer.recovered is not None
    assert producer.recovered.commit is not None
    return producer.recovered.commit


def seen(cluster: EmbeddedCluster, of: int) -> int:
    """How many records of the transaction of so many a reader of committed records sees."""
    return sum((message.value or b"").endswith(b" of %d" % of) for message in cluster.messages(TOPIC))


def test_commit_that_arrived_is_told_with_its_records(
    cluster: EmbeddedCluster, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafkabuf.producer")
    killed_behind_end(cluster, path)
    with transactional(cluster, path) as producer:
        producer.init_transactions()
        commit = commit_of(producer)
        assert (commit.transactional_id, commit.outcome, commit.records) == ("id", COMMITTED, 3)
        assert producer.recovered is not None
        assert not producer.recovered.uncommitted
    assert "the commit of 3 records of 'id' that the process before had begun: committed" in caplog.text
    assert seen(cluster, 3) == 3


def test_commit_that_did_not_arrive_is_aborted_and_told(
    cluster: EmbeddedCluster, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kafkabuf.producer")
    killed_before_end(cluster, path)
    with transactional(cluster, path) as producer:
        producer.init_transactions()
        assert (commit_of(producer).outcome, commit_of(producer).records) == (ABORTED, 3)
    assert "3 records of 'id' that the process before had begun: aborted" in caplog.text
    assert (seen(cluster, 5), seen(cluster, 3)) == (5, 0)


def test_coordinator_is_asked_before_the_next_producer_initialises(cluster: EmbeddedCluster, path: Path) -> None:
    killed_before_end(cluster, path)
    cluster.fail_next(messages.DESCRIBE_TRANSACTIONS, COORDINATOR_LOADING, times=1_000_000)
    inits = len(cluster.requests(api_key=messages.INIT_PRODUCER_ID))
    with transactional(cluster, path, max_block_ms=100) as producer:
        with pytest.raises(TimeoutError, match=r"waits for the coordinator's answer about the commit of 3 records"):
            producer.init_transactions()
        assert len(cluster.requests(api_key=messages.INIT_PRODUCER_ID)) == inits
        assert commit_of(producer).outcome is UNDER_WAY
        cluster.clear_faults()
        wait_until(lambda: commit_of(producer).outcome is ABORTED)
    with transactional(cluster, path) as producer:  # a closed producer's user has seen the outcome
        producer.init_transactions()
        assert producer.recovered is not None
        assert producer.recovered.commit is None


def test_producer_without_transactions_asks_too(cluster: EmbeddedCluster, path: Path) -> None:
    killed_behind_end(cluster, path)
    with opened(cluster, path) as producer:
        wait_until(lambda: commit_of(producer).outcome is COMMITTED)


def test_answer_outlives_a_second_kill_until_the_next_transaction(cluster: EmbeddedCluster, path: Path) -> None:
    killed_before_end(cluster, path)

    def initialise() -> None:
        transactional(cluster, path).init_transactions()  # from here on the coordinator could not tell any more

    in_child(initialise)
    asked = len(cluster.requests(api_key=messages.DESCRIBE_TRANSACTIONS))
    with transactional(cluster, path) as producer:
        assert (commit_of(producer).outcome, commit_of(producer).records) == (ABORTED, 3)
        producer.init_transactions()
        assert len(cluster.requests(api_key=messages.DESCRIBE_TRANSACTIONS)) == asked

    def begin() -> None:
        producer = transactional(cluster, path)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"x")

    killed_before_end(cluster, path, linger_ms=0)
    in_child(begin)
    with transactional(cluster, path) as producer:
        assert producer.recovered is not None
        assert producer.recovered.commit is None


def test_commit_that_returned_is_told_without_a_question(cluster: EmbeddedCluster, path: Path) -> None:
    def commit() -> None:
        producer = transactional(cluster, path)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"x")
        producer.commit_transaction()

    in_child(commit)
    with transactional(cluster, path) as producer:
        assert commit_of(producer).outcome is COMMITTED
        assert commit_of(producer).records == 1
    assert not cluster.requests(api_key=messages.DESCRIBE_TRANSACTIONS)


def test_commit_stays_unknown_without_the_right_to_ask(
    cluster: EmbeddedCluster, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kafkabuf.producer")
    killed_behind_end(cluster, path)
    cluster.fail_next(messages.DESCRIBE_TRANSACTIONS, NOT_AUTHORIZED)
    with transactional(cluster, path) as producer:
        producer.init_transactions()
        assert commit_of(producer).outcome is UNKNOWN
        assert "TransactionalIdAuthorization" in commit_of(producer).reason
        producer.begin_transaction()
        producer.send(TOPIC, b"x")
        producer.commit_transaction()
    assert "of 'id' that the process before had begun: unknown (" in caplog.text


def test_file_that_tells_of_a_commit_is_not_made_anew_with_other_sizes(cluster: EmbeddedCluster, path: Path) -> None:
    killed_behind_end(cluster, path)
    with pytest.raises(ConfigError, match="holds the note of a commit, and was made with"):
        transactional(cluster, path, batch_size=1 << 10)


def test_close_ends_the_question(cluster: EmbeddedCluster, path: Path) -> None:
    killed_behind_end(cluster, path)
    cluster.set_latency(2 * PATIENCE, messages.DESCRIBE_TRANSACTIONS)
    producer = transactional(cluster, path)

    def initialise() -> None:
        with pytest.raises(KafkaError):
            producer.init_transactions()

    waiting = Thread(target=initialise)
    waiting.start()
    wait_until(lambda: cluster.requests(api_key=messages.DESCRIBE_TRANSACTIONS))
    producer.close()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    cluster.set_latency(0, messages.DESCRIBE_TRANSACTIONS)
    with transactional(cluster, path) as producer:
        wait_until(lambda: commit_of(producer).outcome is COMMITTED)


def test_transactional_id_that_the_note_cannot_hold_is_refused(cluster: EmbeddedCluster, path: Path) -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id has 4000 bytes, .* takes 3548: choose a shorter one"):
        transactional(cluster, path, transactional_id="i" * 4_000)
    transactional(cluster, path, transactional_id="i" * 3_548).close()
