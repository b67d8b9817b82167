"""start() and stop() of the embedded cluster: several threads, Ctrl-C, forks, calls from the cluster's own thread."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.errors import ClosedError, IllegalStateError

THREADS = 6
ROUNDS = 10


def _at_once(function: Callable[[], object]) -> list[BaseException | None]:
    """What several threads raise that call a function at the same time."""
    barrier = threading.Barrier(THREADS)
    errors: list[BaseException | None] = []

    def call() -> None:
        barrier.wait()
        try:
            function()
            errors.append(None)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return errors


def test_any_number_of_threads_may_stop_a_cluster() -> None:
    for _ in range(ROUNDS):
        cluster = EmbeddedCluster().start()
        assert _at_once(cluster.stop) == [None] * THREADS


def test_one_of_several_threads_starts_a_cluster() -> None:
    for _ in range(ROUNDS):
        cluster = EmbeddedCluster()
        errors = _at_once(cluster.start)
        cluster.stop()
        assert errors.count(None) == 1
        assert all(isinstance(error, ClosedError) for error in errors if error is not None)


def test_cluster_stops_though_ctrl_c_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, run = Cluster.stop, EmbeddedCluster._run
    interrupted, ended = threading.Event(), threading.Event()

    async def interrupt_and_stop(cluster: Cluster) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        interrupted.wait(30)
        await stop(cluster)

    def run_and_tell(loop: asyncio.AbstractEventLoop) -> None:
        run(loop)
        ended.set()

    monkeypatch.setattr(Cluster, "stop", interrupt_and_stop)
    monkeypatch.setattr(EmbeddedCluster, "_run", staticmethod(run_and_tell))
    cluster = EmbeddedCluster().start()
    with pytest.raises(KeyboardInterrupt):
        cluster.stop()
    interrupted.set()
    assert ended.wait(10), "the thread ends without a further call"
    monkeypatch.undo()
    cluster.stop()
    with cluster:
        assert cluster.topics() == {}


ITERATOR = """
import os, sys, warnings
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork in a process with threads
with EmbeddedCluster() as cluster:
    cluster.create_topic("t")
    records = cluster.consume("t")
    child = os.fork()
    if child == 0:
        try:
            next(records)
        except ClosedError as error:
            os._exit(0 if "fork" in str(error) else 1)
        except BaseException:
            os._exit(2)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_iterator_does_not_end_silently_in_a_forked_child() -> None:
    done = subprocess.run([sys.executable, "-c", ITERATOR], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_function_in_the_clusters_thread_cannot_call_the_cluster(kafkabuf_broker: EmbeddedCluster) -> None:
    with KafkaProducer(bootstrap_servers=kafkabuf_broker.bootstrap_servers) as producer:
        producer.send("t", b"v").result(10)
    calls: list[Callable[[], object]] = [kafkabuf_broker.topics, kafkabuf_broker.stop]
    for call in calls:
        with pytest.raises(IllegalStateError, match="another thread"):
            kafkabuf_broker.wait_for_request(where=_calling(call))


def _calling(call: Callable[[], object]) -> Callable[[object], bool]:
    return lambda request: bool(call())


def test_cluster_has_a_loop_of_asyncio_whatever_the_programs_policy_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's transports are not those of asyncio, and uvloop sets a policy for the whole program."""

    def new_event_loop() -> asyncio.AbstractEventLoop:
        raise AssertionError("the cluster asked the program's policy for a loop")

    monkeypatch.setattr(asyncio, "new_event_loop", new_event_loop)
    with EmbeddedCluster() as cluster, KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        assert producer.send("t", b"v").result(10).offset == 0
