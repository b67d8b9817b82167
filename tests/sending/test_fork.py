"""A forked child and its parent's producer. Each script runs in its own process, because pytest has threads."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from kafkabuf.broker import EmbeddedCluster
from rigs.fake_client import read_records

FIRST_CALLS = """
import os, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: of a fork with threads, which is the point here
producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
producer.send("forked", b"parent's", partition=0)
producer.flush(10)
mine = producer.send("forked", b"parent's", partition=0)  # lingers while the children come and go
CALLS = {
    "send": lambda: None,
    "send_many": lambda: producer.send_many("forked", [b"child's", b"child's"]),
    "partitions_for": lambda: producer.partitions_for("forked"),
    "flush": lambda: producer.flush(10),
    "metrics": producer.metrics,
    "purge": producer.purge,
}

def work(call):
    CALLS[call]()
    future = producer.send("forked", b"child's", partition=0)
    producer.flush(10)
    future.result(0)
    producer.close()
    try:
        producer.send("forked", b"late")
    except ClosedError as error:
        return "the producer is closed" in str(error)

before = producer.metrics()["producer-metrics"]["connection-creation-total"]
for call in CALLS:
    child = os.fork()
    if child == 0:
        os._exit(0 if work(call) else 1)
    assert os.waitpid(child, 0)[1] == 0, call
assert not mine.done()
producer.flush(10)
mine.result(0)
# The children have neither closed the parent's connections nor read from them.
assert producer.metrics()["producer-metrics"]["connection-creation-total"] == before
producer.close(10)
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)


CONTROL = 0x20  # in the attributes of a batch


def values(cluster: EmbeddedCluster, topic: str) -> Counter[bytes | None]:
    batches = [data for partition in cluster.end_offsets(topic) for data in cluster.records(topic, partition)]
    return Counter(record.value for data in batches if not data[22] & CONTROL for record in read_records(data))


def test_first_call_of_a_child_opens_a_producer_of_its_own() -> None:
    with EmbeddedCluster() as cluster:
        done = run(FIRST_CALLS, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert values(cluster, "forked") == {b"parent's": 2, b"child's": 6 + 2}


PRELOADED = """
import os, sys, threading, warnings
from kafkabuf import KafkaProducer

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=20)
if sys.argv[2] == "used":
    producer.send("preloaded", b"parent's").result(10)
workers = []
for number in range(3):
    worker = os.fork()
    if worker == 0:
        threads = [
            threading.Thread(target=lambda: [producer.send("preloaded", b"worker's") for _ in range(50)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        senders = [thread for thread in threading.enumerate() if thread.name == producer._thread.name]
        assert len(senders) == 1  # eight first calls have opened one producer
        sys.exit()  # the interpreter sends what is left
    workers.append(worker)
assert [os.waitpid(worker, 0)[1] for worker in workers] == [0, 0, 0]
producer.send("preloaded", b"parent's").result(10)
"""


@pytest.mark.parametrize("used", ["used", "unused"])
def test_workers_of_a_preloaded_application_share_its_producer(used: str) -> None:
    with EmbeddedCluster() as cluster:
        done = run(PRELOADED, cluster.bootstrap_servers, used)
        assert done.returncode == 0, done.stderr
        assert values(cluster, "preloaded") == {b"parent's": 2 if used == "used" else 1, b"worker's": 3 * 400}


COMPRESSING = """
import os, sys, threading, warnings
from kafkabuf import KafkaProducer

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(
    bootstrap_servers=sys.argv[1], batch_size=1024, linger_ms=60_000, compression_type="gzip",
    compression_thread_enable=True,
)

def send():
    for number in range(2000):
        producer.send("compressed", b"%d" % number + b"." * 200, partition=0)
    threads = [thread for thread in threading.enumerate() if thread.name.endswith("-compression")]
    assert len(threads) == 1

send()  # the fork may come while the thread compresses
child = os.fork()
send()
producer.close(10)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_child_of_a_compressing_producer_has_a_compression_thread_of_its_own() -> None:
    with EmbeddedCluster(verify_records=True) as cluster:
        done = run(COMPRESSING, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert cluster.end_offsets("compressed")[0] == 3 * 2000


POOL = """
import multiprocessing, sys, warnings
from kafkabuf import KafkaProducer

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=10)
producer.send("tasks", b"parent's")

def task(number):
    producer.send("tasks", b"task's %d" % number)

with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(task, range(100))
    pool.close()
    pool.join()
"""


def test_tasks_of_a_multiprocessing_pool_send_over_the_producer_of_their_module() -> None:
    with EmbeddedCluster() as cluster:
        done = run(POOL, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert values(cluster, "tasks") == {b"parent's": 1} | {b"task's %d" % number: 1 for number in range(100)}


GRANDCHILD = """
import os, sys, warnings
from kafkabuf import KafkaProducer

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1])
producer.send("generations", b"0").result(10)
generation = 0
while generation < 3:
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        break
    generation, status = generation + 1, 0
    if generation != 2:  # one of them forks before it has used the producer
        producer.send("generations", b"%d" % generation).result(10)
sys.exit(status != 0)
"""


def test_child_of_a_child_opens_a_producer_of_its_own() -> None:
    with EmbeddedCluster() as cluster:
        done = run(GRANDCHILD, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert values(cluster, "generations") == {b"0": 1, b"1": 1, b"3": 1}


BUSY = """
import logging, os, signal, sys, threading, warnings
from kafkabuf import KafkaProducer

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=1)
producer.partitions_for("busy")
over = threading.Event()

def work():
    while not over.is_set():
        producer.send("busy", b"x" * 100, partition=0)

def ask():
    while not over.is_set():
        producer.metrics()
        producer._metadata.request_update()
        producer.partitions_for("busy")

threads = [threading.Thread(target=call) for call in (work, ask)]
for thread in threads:
    thread.start()
failed = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        producer.partitions_for("others")
        producer.send("others", b"child's").result(10)
        producer.metrics()
        producer.close(10)
        os._exit(0)
    failed.append(os.waitpid(child, 0)[1])
over.set()
for thread in threads:
    thread.join()
print(producer.records_sent)
producer.close(30)
sys.exit(any(failed))
"""


def test_child_of_a_busy_parent_hangs_on_no_lock_and_sends_no_record_of_its_parent() -> None:
    with EmbeddedCluster() as cluster:
        done = run(BUSY, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert cluster.end_offset("busy", 0) == int(done.stdout)
        assert values(cluster, "others") == {b"child's": 20}


TRANSACTIONAL = """
import os, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1], transactional_id="one")
producer.init_transactions()
producer.begin_transaction()
producer.send("transactions", b"parent's")

def refusal(call):
    try:
        call()
    except ClosedError as error:
        return "transactional.id belongs to the parent process" in str(error)

child = os.fork()
if child == 0:
    calls = (lambda: producer.send("transactions", b"child's"), producer.commit_transaction, producer.abort_transaction,
             producer.init_transactions, producer.flush, producer.metrics)
    refused = all([refusal(call) for call in calls])
    producer.close()
    os._exit(0 if refused else 1)
status = os.waitpid(child, 0)[1]
producer.commit_transaction()
producer.close(10)
sys.exit(status != 0)
"""


def test_transactional_producer_is_refused_in_a_child_with_the_reason() -> None:
    with EmbeddedCluster() as cluster:
        done = run(TRANSACTIONAL, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert values(cluster, "transactions") == {b"parent's": 1}


CLOSED = """
import os, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1])
producer.close()
child = os.fork()
if child == 0:
    try:
        producer.send("closed", b"")
    except ClosedError:
        os._exit(0)
    os._exit(1)
sys.exit(os.waitpid(child, 0)[1] != 0)
"""


def test_producer_that_was_closed_before_a_fork_stays_closed_in_the_child() -> None:
    with EmbeddedCluster() as cluster:
        assert run(CLOSED, cluster.bootstrap_servers).returncode == 0


IN_USER_CODE = """
import os, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)
child = None

def fork():
    global child
    if child is None:
        child = os.fork()
        if child == 0:
            producer.send("user-code", b"child's", partition=0).result(10)

class Key:
    def __index__(self):
        fork()
        return 0

class Interceptor:
    def on_send(self, record):
        fork()
        return record

def serialize(value):
    fork()
    return value

settings = {"serializer": {"value_serializer": serialize}, "interceptor": {"interceptor_classes": [Interceptor()]}}
producer = KafkaProducer(bootstrap_servers=sys.argv[1], **settings.get(sys.argv[2], {}))
partition = Key() if sys.argv[2] == "partition" else 0
call = {
    "send": lambda: producer.send("user-code", b"parent's", partition=partition).result(10),
    "send_many": lambda: producer.send_many("user-code", [b"parent's"], partitions=[partition]).wait(10),
}[sys.argv[3]]
try:
    call()
except ClosedError:
    refused = True
else:
    refused = False
if child == 0:
    producer.close(10)
    os._exit(0 if refused else 1)
producer.close(10)
sys.exit(refused or os.waitpid(child, 0)[1] != 0)
"""


@pytest.mark.parametrize("call", ["send", "send_many"])
@pytest.mark.parametrize("where", ["serializer", "interceptor", "partition"])
def test_call_that_forks_in_the_users_code_is_carried_out_by_the_parent_alone(where: str, call: str) -> None:
    with EmbeddedCluster() as cluster:
        done = run(IN_USER_CODE, cluster.bootstrap_servers, where, call)
        assert done.returncode == 0, done.stderr
        assert values(cluster, "user-code") == {b"parent's": 1, b"child's": 1}


FORKED_BY_A_NUMBER = """
import os, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1])
producer.partitions_for("numbers")

class Zero:
    def __index__(self):
        global child
        child = os.fork()
        return 0

try:
    producer.send("numbers", b"parent's", partition=Zero()).result(10)
except ClosedError as error:
    os._exit(0 if child == 0 and "this call began before a fork" in str(error) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 1)
"""


def test_child_that_goes_on_with_a_call_of_its_parent_is_told_so() -> None:
    with EmbeddedCluster() as cluster:
        done = run(FORKED_BY_A_NUMBER, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert values(cluster, "numbers") == {b"parent's": 1}


CLUSTER = """
import os, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from rigs.fake_client import read_records
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
from tests.memory.pool_support import allocate_pairs

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1])
slab = producer.pool.allocate(100, 0)
over = threading.Event()

def hold_the_lock():
    while not over.is_set():
        allocate_pairs(producer.pool, 200_000)  # without the GIL: most forks find the pool's lock held

allocate_pairs(producer.pool, 1)  # compiled, before there are children
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
        with producer:
            producer.send("threads", b"child's")
        with pickle.loads(pickle.dumps(producer)) as copy:
            copy.send("threads", b"copy's")
        os._exit(0)
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
        assert values(cluster, "threads") == {b"parent's": 1, b"child's": 1, b"copy's": 1}


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


SENDS_IN_A_CALLBACK = """
import os, sys, warnings
from kafkabuf import KafkaProducer

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1])
children = []

def callback(metadata, error):
    child = os.fork()
    if not child:
        producer.send("callbacks", b"child's")
        return
    children.append(child)

producer.send("callbacks", b"parent's", callback=callback).result(10)
producer.close(10)
sys.exit(os.waitpid(children[0], 0)[1] != 0)
"""


def test_child_forked_in_a_callback_sends_its_own_records_before_it_ends() -> None:
    with EmbeddedCluster() as cluster:
        done = run(SENDS_IN_A_CALLBACK, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert values(cluster, "callbacks") == {b"parent's": 1, b"child's": 1}


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
