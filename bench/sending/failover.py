"""A node of a real cluster is killed, or stands still: how long until a producer's next acknowledgement or commit.

The cluster lives in the process of the bench, for all cases together. A case, which is a process of its own, has the
node that it measures with troubled through a socket, and healed afterwards.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from kafka import KafkaAdminClient

from bench import java
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.clients import VALUE
from rigs.real_cluster import RealCluster

CONTROL = "KAFKABUF_BENCH_CONTROL"  # where the bench listens, for its cases: port and key
COORDINATORS = "__transaction_state"
PARTITIONS = 3
WARM_UP = 20
PATIENCE_S = 60.0
REQUEST_TIMEOUT_MS = 5_000
TRANSACTION_TIMEOUT_MS = 60_000
OURS, CONFLUENT, JAVA = "kafkabuf", "confluent-kafka", "Java"
TROUBLES = {"killed": "kill", "paused": "pause"}
RECOVERY = Metric("recovery_s", "s to recover", ".2f", more_is_better=False)

# Sends one record, in a transaction of its own where there are such, and returns when that has succeeded.
Publish = Callable[[], None]
# From the address, topic, partition and transactional id, None for a producer without transactions.
Open = Callable[[str, str, int, str | None], AbstractContextManager[Publish]]


# ---- the cluster -----------------------------------------------------------------------------------------------------


class Nodes:
    """What cases may ask for."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster
        self._down: tuple[str, int] | None = None

    def place(self, *, coordinator: bool) -> tuple[str, int, int]:
        """A new topic, the partition to write to, and the node to trouble: its leader, or the coordinator of all
        transactions, which then does not lead it. The active controller is neither, for electing another takes its
        own, varying time."""
        controller, topic = self._controller(), f"failover-{uuid.uuid4().hex[:8]}"
        self._cluster.create_topic(topic, PARTITIONS)
        while (victim := self._cluster.leader(COORDINATORS)) == controller:
            self._cluster.move_leader(COORDINATORS)
        leaders = {partition: self._cluster.leader(topic, partition) for partition in range(PARTITIONS)}
        if coordinator:
            return topic, next(partition for partition, leader in leaders.items() if leader != victim), victim
        partition = next(partition for partition, leader in leaders.items() if leader not in (controller, victim))
        return topic, partition, leaders[partition]

    def kill(self, node: int) -> None:
        self._down = ("kill", node)
        self._cluster.kill(node)

    def pause(self, node: int) -> None:
        self._down = ("pause", node)
        self._cluster.pause(node)

    def heal(self) -> None:
        """All is as before."""
        if self._down is None:
            return
        (trouble, node), self._down = self._down, None
        (self._cluster.restart if trouble == "kill" else self._cluster.resume)(node)
        self._cluster.await_in_sync(COORDINATORS)

    def _controller(self) -> int:
        with closing(KafkaAdminClient(bootstrap_servers=self._cluster.bootstrap_servers)) as admin:
            return int(admin.describe_metadata_quorum()["topics"][0]["partitions"][0]["leader_id"])


@contextmanager
def cluster() -> Iterator[str]:
    """Its address, while cases may command it."""
    with RealCluster() as running:
        with _confluent(running.bootstrap_servers, "", 0, "first"):
            running.await_in_sync(COORDINATORS)  # the first transactional id has made it
        with commanded(Nodes(running)):
            yield running.bootstrap_servers


@contextmanager
def commanded(nodes: Nodes) -> Iterator[None]:
    """For the time of the `with` this process's children find `nodes`."""
    key = secrets.token_bytes()
    with Listener(("127.0.0.1", 0), authkey=key) as listener:
        server = threading.Thread(target=_serve, args=(listener, nodes), daemon=True)
        server.start()
        os.environ[CONTROL] = json.dumps([listener.address[1], key.hex()])
        try:
            yield
        finally:
            with closing(Commands()) as last:  # served when the cases before have been cleared up
                last.end()
            server.join()
            del os.environ[CONTROL]


def _serve(listener: Listener, nodes: Nodes) -> None:
    ended = False
    while not ended:
        with listener.accept() as connection:
            ended = _answer(connection, nodes)
            nodes.heal()  # of a case that failed, too


def _answer(connection: Connection[Any, Any], nodes: Nodes) -> bool:
    """Until the case has ended; whether all have."""
    try:
        while (asked := connection.recv()) is not None:
            name, arguments = asked
            connection.send(getattr(nodes, name)(**arguments))
    except EOFError:
        return False
    return True


class Commands:
    """The cluster's nodes, from the process of a case. A context manager."""

    def __init__(self) -> None:
        if CONTROL not in os.environ:
            raise RuntimeError("failover kills nodes: `python -m bench failover` starts a cluster for its cases")
        port, key = json.loads(os.environ[CONTROL])
        self._connection = Client(("127.0.0.1", port), authkey=bytes.fromhex(key))

    def close(self) -> None:
        self._connection.close()

    def end(self) -> None:
        """No other case comes."""
        self._connection.send(None)

    def __call__(self, name: str, **arguments: Any) -> Any:
        self._connection.send((name, arguments))
        return self._connection.recv()


# ---- the producers ---------------------------------------------------------------------------------------------------


@contextmanager
def _kafkabuf(bootstrap: str, topic: str, partition: int, transactional_id: str | None) -> Iterator[Publish]:
    from kafkabuf import KafkaProducer

    def publish() -> None:
        producer.send(topic, VALUE, partition=partition).result(PATIENCE_S)

    def publish_transaction() -> None:
        producer.begin_transaction()
        producer.send(topic, VALUE, partition=partition)
        producer.commit_transaction()

    settings = {"request_timeout_ms": REQUEST_TIMEOUT_MS, "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}
    given = {"transactional_id": transactional_id} if transactional_id else {}
    with closing(KafkaProducer(settings | given, bootstrap_servers=bootstrap)) as producer:
        if transactional_id:
            producer.init_transactions()
        yield publish_transaction if transactional_id else publish


@contextmanager
def _confluent(bootstrap: str, topic: str, partition: int, transactional_id: str | None) -> Iterator[Publish]:
    from confluent_kafka import Producer

    failed: list[object] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failed.append(error)

    def publish() -> None:
        producer.produce(topic, VALUE, partition=partition, on_delivery=delivered)
        left = producer.flush(PATIENCE_S)
        if left or failed:
            raise RuntimeError(f"not delivered: {failed or left}")

    def publish_transaction() -> None:
        producer.begin_transaction()
        producer.produce(topic, VALUE, partition=partition)
        producer.commit_transaction(PATIENCE_S)

    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "request.timeout.ms": REQUEST_TIMEOUT_MS,
        "socket.timeout.ms": REQUEST_TIMEOUT_MS,  # request.timeout.ms is only told to the broker
        "log_level": 0,
    }
    if transactional_id:
        settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
    producer = Producer(settings)
    if transactional_id:
        producer.init_transactions(PATIENCE_S)
    yield publish_transaction if transactional_id else publish


@contextmanager
def _java(bootstrap: str, topic: str, partition: int, transactional_id: str | None) -> Iterator[Publish]:
    """Each line it reads it answers with an empty one, once it has published."""
    given: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "request.timeout.ms": REQUEST_TIMEOUT_MS,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    }
    given |= {"transactional.id": transactional_id} if transactional_id else {}
    settings = [f"{name}={value}" for name, value in given.items()]
    command = java.command("Failover.java", topic, partition, len(VALUE), *settings, log="error")
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, answers = process.stdin, process.stdout

        def publish() -> None:
            to.write("\n")
            to.flush()
            if not answers.readline():
                raise RuntimeError("Failover.java has ended")

        try:
            yield publish
        finally:
            process.kill()


PEERS: dict[str, Open] = {OURS: _kafkabuf, CONFLUENT: _confluent, JAVA: _java}


# ---- the claim -------------------------------------------------------------------------------------------------------


def recovery(open_: Open, trouble: str, coordinator: bool, job: Job) -> Measurement:
    """Seconds from the trouble to the end of the next record, or transaction, which is begun right after it."""
    with closing(Commands()) as nodes:
        topic, partition, victim = nodes("place", coordinator=coordinator)
        transactional_id = f"{topic}-writer" if coordinator else None
        with open_(job.bootstrap, topic, partition, transactional_id) as publish:
            for _ in range(WARM_UP):
                publish()
            nodes(trouble, node=victim)
            started = time.perf_counter()
            publish()
            seconds = time.perf_counter() - started
            for _ in range(job.amount):  # it goes on
                publish()
            nodes("heal")
    return {RECOVERY.name: seconds}


def name_of(peer: str, whom: str, trouble: str) -> str:
    return f"{whom} {trouble}: {peer}"


def _cases() -> Iterator[Case]:
    for whom, coordinator in (("leader", False), ("coordinator", True)):
        for trouble, command in TROUBLES.items():
            for peer, open_ in PEERS.items():
                yield Case(
                    name_of(peer, whom, trouble),
                    partial(recovery, open_, command, coordinator),
                    baseline=name_of(CONFLUENT, whom, trouble),
                    check=java.require_compiler if peer == JAVA else lambda: None,
                )


def _goal(trouble: str) -> Goal:
    ours, theirs = (name_of(peer, "coordinator", trouble) for peer in (OURS, CONFLUENT))
    return Goal(f"seconds until a transaction is committed, coordinator {trouble}", ours, RECOVERY.name, 1.0, theirs,
                at_most=True)  # fmt: skip


CLAIM = Claim(
    name="failover",
    title="Producers go on after a node has died or stands still",
    cases=list(_cases()),
    metrics=[RECOVERY],
    baseline=name_of(CONFLUENT, "coordinator", "killed"),
    amount=3,
    unit="more",
    goals=[_goal(trouble) for trouble in TROUBLES],
    rounds=3,
    cluster=cluster,
    notes=[
        "Three nodes of Apache Kafka, three copies, broker.session.timeout.ms 3000; the one troubled is not the active"
        " controller. killed: kill -9, and it stays dead; paused: SIGSTOP. Then one record is sent, or one transaction"
        " begun, filled and committed: the time until that is acknowledged.",
        f"All have their defaults but for request.timeout.ms {REQUEST_TIMEOUT_MS} (in librdkafka socket.timeout.ms too)"
        f" and transaction.timeout.ms {TRANSACTION_TIMEOUT_MS}; acks=all, idempotent, each warmed up with {WARM_UP}"
        " records or transactions. Kafka 4 gives kafkabuf and Java transactions of version 2, confluent-kafka those of"
        " version 1.",
        "Most of it is the cluster's: it misses a node for 2.5 to 3 s before others take its place.",
    ],
)
