"""A forked child and its parent's producer. Each script runs in its own process, because pytest has threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kafkabuf.broker import EmbeddedCluster

SCRIPT = """
import os, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: of a fork with threads, which is the point here
producer = KafkaProducer(bootstrap_servers=sys.argv[1])
producer.send("forked", b"before").result(10)

def refusal(call):
    try:
        call()
    except ClosedError as error:
        return "belongs to the parent" in str(error)

child = os.fork()
if child == 0:
    refused = refusal(lambda: producer.send("forked", b"child")) and refusal(lambda: producer.flush(10))
    producer.close()
    with KafkaProducer(producer.config) as own:
        own.send("forked", b"own").result(10)
    os._exit(0 if refused else 1)
status = os.waitpid(child, 0)[1]
producer.send("forked", b"after").result(10)
producer.close(10)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_forked_child_cannot_use_its_parents_producer() -> None:
    with EmbeddedCluster() as cluster:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, cluster.bootstrap_servers], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert cluster.end_offset("forked", 0) == 3


CLUSTER = """
import os, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)

def refusal(call):
    try:
        call()
    except ClosedError as error:
        return "the parent process" in str(error)

def work_in_child(cluster):
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as own:
        own.send("forked", b"child").result(10)
    return all(refusal(call) for call in (cluster.topics, cluster.start, lambda: cluster.create_topic("other")))

child = None
with EmbeddedCluster() as cluster:
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send("forked", b"parent").result(10)
        assert cluster.end_offsets("forked") == {0: 2}
    else:
        refused = work_in_child(cluster)
if not child:
    os._exit(0 if refused else 1)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_forked_child_leaves_the_cluster_to_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", CLUSTER], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


LOCKED = """
import os, signal, sys, threading, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1])
slab = producer.pool.allocate(100, 0)
over = threading.Event()

def hold_the_lock():
    while not over.is_set():
        producer.pool._bench_pairs(200_000)  # without the GIL: a fork finds the pool's lock held, more often than not

threading.Thread(target=hold_the_lock).start()
failed = 0
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # one that spins for ever must not outlive the test
        slab.release()
        try:
            producer.pool.allocate(100, 0)
        except ClosedError:
            os._exit(0)
        os._exit(1)
    failed += os.waitpid(child, 0)[1]
over.set()
sys.exit(failed != 0)
"""


def test_forked_child_does_not_spin_on_a_lock_that_a_thread_of_its_parent_held() -> None:
    with EmbeddedCluster() as cluster:
        done = subprocess.run([sys.executable, "-c", LOCKED, cluster.bootstrap_servers], timeout=30, check=False)
    assert done.returncode == 0


IN_A_THREAD = """
import os, pickle, sys, threading, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
producer.send("threads", b"parent's")
statuses = []

def fork():
    child = os.fork()
    if child == 0:
        try:
            producer.partitions_for("threads")
        except ClosedError:
            with pickle.loads(pickle.dumps(producer)) as own:
                own.send("threads", b"child's")
            os._exit(0)
        os._exit(1)
    statuses.append(os.waitpid(child, 0)[1])

thread = threading.Thread(target=fork)
thread.start()
thread.join()
producer.close()
sys.exit(statuses != [0])
"""


def test_fork_in_a_thread_doubles_no_record() -> None:
    with EmbeddedCluster() as cluster:
        done = subprocess.run(
            [sys.executable, "-c", IN_A_THREAD, cluster.bootstrap_servers], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert cluster.end_offset("threads", 0) == 2


IN_A_CALLBACK = """
import os, sys, warnings
from kafkabuf import KafkaProducer

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=0)
parent, children, called = os.getpid(), [], []

def callback(metadata, error):
    called.append(os.getpid())
    if os.getpid() != parent:
        os._exit(9)  # a callback of the parent's, in the child
    if not children:
        child = os.fork()
        if not child:
            if sys.argv[2] == "raise":
                raise SystemExit(3)
            return
        children.append(child)

futures = [producer.send("callbacks", b"%d" % n, partition=n % 2, callback=callback) for n in range(2_000)]
for future in futures:
    future.result(30)
status = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
for n in range(500):
    producer.send("callbacks", b"after", partition=n % 2).result(30)
producer.close(10)
assert len(called) == 2_000, len(called)
sys.exit(status)
"""


@pytest.mark.parametrize("how", ["return", "raise"])
def test_child_forked_in_a_callback_ends_with_the_callback_and_leaves_the_connections_alone(how: str) -> None:
    with EmbeddedCluster() as cluster:
        cluster.create_topic("callbacks", partitions=2)
        done = subprocess.run(
            [sys.executable, "-c", IN_A_CALLBACK, cluster.bootstrap_servers, how],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert sum(cluster.end_offsets("callbacks").values()) == 2_500
    assert "the Sender's turn failed" not in done.stderr


WAITING = """
import os, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)
forked = []

def fork(value):
    if value == b"fork" and not forked:
        forked.append(os.fork())
    return value

def refusal(call):
    try:
        call()
    except ClosedError:
        return True
    return False

producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=60_000, value_serializer=fork)
future = producer.send("waiting", b"pending")
report = producer.send_many("waiting", [b"pending"])
child = os.fork()
if child == 0:
    calls = (future.result, future.exception, lambda: future.result(5), report.wait, report.result)
    os._exit(0 if all(refusal(call) for call in calls) else 1)
statuses = [os.waitpid(child, 0)[1]]
refused = refusal(lambda: producer.send("waiting", b"fork"))
if forked == [0]:
    os._exit(0 if refused else 1)
statuses.append(os.waitpid(forked[0], 0)[1])
assert not refused
producer.close(10)
sys.exit(statuses != [0, 0])
"""


def test_forked_child_can_neither_wait_for_its_parents_records_nor_add_to_them() -> None:
    with EmbeddedCluster() as cluster:
        done = subprocess.run(
            [sys.executable, "-c", WAITING, cluster.bootstrap_servers], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert sum(cluster.end_offsets("waiting").values()) == 3
