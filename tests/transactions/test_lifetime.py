"""Ctrl-C in a transactional call, and a transactional producer that is pickled or forked, on an embedded cluster."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ProducerFencedError
from kafkabuf.protocol.messages import END_TXN, INIT_PRODUCER_ID
from rigs.producer import PATIENCE, assert_whole

Call = Callable[[KafkaProducer], None]
INIT: Call = KafkaProducer.init_transactions
COMMIT: Call = KafkaProducer.commit_transaction
ABORT: Call = KafkaProducer.abort_transaction


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("t")
        yield running


def producer_for(cluster: EmbeddedCluster, transactional_id: str) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=transactional_id, linger_ms=0)


def interrupt_once_waiting(producer: KafkaProducer) -> threading.Thread:
    """Send Ctrl-C as soon as the main thread waits in its call."""

    def watch() -> None:
        limit = time.monotonic() + PATIENCE
        transactions = producer._sender.transactions
        assert transactions is not None
        while transactions._operations.waited_for is None or not transactions._operations.waited_for._waiters:
            assert time.monotonic() < limit, "no call waits"
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("call", "held"), [(INIT, INIT_PRODUCER_ID), (COMMIT, END_TXN), (ABORT, END_TXN)], ids=["init", "commit", "abort"]
)
def test_interrupt_ends_the_wait_and_leaves_the_producer_usable(
    cluster: EmbeddedCluster, call: Call, held: int
) -> None:
    before = cluster.end_offset("t", 0)
    with producer_for(cluster, f"interrupted-{call.__name__}") as producer:
        if call is not INIT:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"interrupted").result(PATIENCE)
        cluster.delay_next(held, 3)
        watch, start = interrupt_once_waiting(producer), time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            call(producer)
        assert time.monotonic() - start < 3, "the call waited for the response"
        watch.join()
        call(producer)
        producer.begin_transaction()
        producer.send("t", b"after").result(PATIENCE)
        producer.commit_transaction()
    # Each transaction appends a record and a control record.
    assert cluster.end_offset("t", 0) - before == (2 if call is INIT else 4)
    assert_whole(producer.pool)


def test_copy_of_a_pickled_producer_fences_the_original(cluster: EmbeddedCluster) -> None:
    with producer_for(cluster, "pickled") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"of the first").result(PATIENCE)
        with pickle.loads(pickle.dumps(producer)) as copy:
            assert copy.config.transactional_id == "pickled"
            copy.init_transactions()
            with pytest.raises(ProducerFencedError):
                producer.commit_transaction()
            copy.begin_transaction()
            copy.send("t", b"of the copy").result(PATIENCE)
            copy.commit_transaction()


FORKED = """
import os, signal, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: of a fork with threads, which is the point here
producer = KafkaProducer(bootstrap_servers=sys.argv[1], transactional_id="forked")
producer.init_transactions()
producer.begin_transaction()
producer.send("forked", b"before")
calls = [
    producer.init_transactions, producer.begin_transaction, producer.commit_transaction, producer.abort_transaction,
    lambda: producer.send_offsets_to_transaction({("forked", 0): 1}, "group"), lambda: producer.send("forked", b"no"),
]
child = os.fork()
if child == 0:
    signal.alarm(20)  # one that waits for ever must not outlive the test
    for call in calls:
        try:
            call()
        except ClosedError as error:
            if "belongs to the parent" in str(error):
                continue
        os._exit(1)
    producer.close()
    os._exit(0)
status = os.waitpid(child, 0)[1]
producer.send("forked", b"after")
producer.commit_transaction()
producer.close(10)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_forked_child_cannot_use_its_parents_transaction(cluster: EmbeddedCluster) -> None:
    command = [sys.executable, "-c", FORKED, cluster.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert cluster.end_offset("forked", 0) == 3  # two records and the control record: none of the child
