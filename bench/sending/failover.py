"""A node of a real cluster is killed or paused: the time until a producer's next acknowledgement or commit.

The process of the bench runs one cluster for all cases. A case is a process of its own. It sends commands through a
socket: the bench then kills or pauses a node, and heals it afterwards.
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

CONTROL = "KAFKABUF_BENCH_CONTROL"  # the port and the key of the bench's socket for its cases
COORDINATORS = "__transaction_state"
PARTITIONS = 3
WARM_UP = 20
PATIENCE_S = 60.0
REQUEST_TIMEOUT_MS = 5_000
TRANSACTION_TIMEOUT_MS = 60_000
OURS, CONFLUENT, JAVA = "kafkabuf", "confluent-kafka", "Java"
LEADER, ENTRY, COORDINATOR = "leader", "leader and only bootstrap server", "coordinator"
# The node in trouble: its role, whether it is the coordinator, and whether it is the only bootstrap server.
ROLES = ((LEADER, False, False), (ENTRY, False, True), (COORDINATOR, True, False))
TROUBLES = {"killed": "kill", "paused": "pause"}
RECOVERY = Metric("recovery_s", "s to recover", ".2f", more_is_better=False)

# Sends a record, in a transaction if the producer is transactional, and returns when that has succeeded.
Publish = Callable[[], None]
# Opens a producer for an address, a topic, a partition and a transactional id or None.
Open = Callable[[str, str, int, str | None], AbstractContextManager[Publish]]


# ---- the cluster -----------------------------------------------------------------------------------------------------


class Nodes:
    """The commands of cases: each public method is a command."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster
        self._down: tuple[str, int] | None = None

    def place(self, *, coordinator: bool) -> tuple[str, int, int]:
        """Create a topic; returns it, the partition to write to, and the node to kill or pause.

        The node is the leader of the partition, or the coordinator of all transactions, which then does not lead the
        partition. It is never the active controller, whose election would take a varying time of its own.
        """
        controller, topic = self._controller(), f"failover-{uuid.uuid4().hex[:8]}"
        self._cluster.create_topic(topic, PARTITIONS)
        while (victim := self._cluster.leader(COORDINATORS)) == controller:
            self._cluster.move_leader(COORDINATORS)
        leaders = {partition: self._cluster.leader(topic, partition) for partition in range(PARTITIONS)}
        if coordinator:
            return topic, next(partition for partition, leader in leaders.items() if leader != victim), victim
        partition = next(partition for partition, leader in leaders.items() if leader not in (controller, victim))
        return topic, partition, leaders[partition]

    def address(self, node: int) -> str:
        return self._cluster.nodes[node].bootstrap_servers

    def kill(self, node: int) -> None:
        self._down = ("kill", node)
        self._cluster.kill(node)

    def pause(self, node: int) -> None:
        self._down = ("pause", node)
        self._cluster.pause(node)

    def heal(self) -> None:
        """Restart or resume the node that is down, and wait until all replicas are in sync."""
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
    """The address of a cluster that takes the cases' commands for the time of the `with`."""
    with RealCluster() as running:
        with _confluent(running.bootstrap_servers, "", 0, "first"):
            running.await_in_sync(COORDINATORS)  # the first transactional id has created this topic
        with commanded(Nodes(running)):
            yield running.bootstrap_servers


@contextmanager
def commanded(nodes: Nodes) -> Iterator[None]:
    """Children of this process can send commands to `nodes` for the time of the `with`."""
    key = secrets.token_bytes()
    with Listener(("127.0.0.1", 0), authkey=key) as listener:
        server = threading.Thread(target=_serve, args=(listener, nodes), daemon=True)
        server.start()
        os.environ[CONTROL] = json.dumps([listener.address[1], key.hex()])
        try:
            yield
        finally:
            with closing(Commands()) as last:  # served after the last case has ended and its node is healed
                last.end()
            server.join()
            del os.environ[CONTROL]


def _serve(listener: Listener, nodes: Nodes) -> None:
    ended = False
    while not ended:
        with listener.accept() as connection:
            ended = _serve_case(connection, nodes)
            nodes.heal()  # a case that failed has not healed its node


def _serve_case(connection: Connection[Any, Any], nodes: Nodes) -> bool:
    """Carry out the commands of a case until its end. Returns whether it was the last case."""
    try:
        while (command := connection.recv()) is not None:
            name, arguments = command
            connection.send(getattr(nodes, name)(**arguments))
    except EOFError:
        return False
    return True


class Commands:
    """Sends commands to the cluster's nodes from the process of a case."""

    def __init__(self) -> None:
        if CONTROL not in os.environ:
            raise RuntimeError("failover kills nodes: `python -m bench failover` starts a cluster for its cases")
        port, key = json.loads(os.environ[CONTROL])
        self._connection = Client(("127.0.0.1", port), authkey=bytes.fromhex(key))

    def close(self) -> None:
        self._connection.close()

    def end(self) -> None:
        """Tell the bench that no further case follows."""
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
    identity = {"transactional_id": transactional_id} if transactional_id else {}
    with closing(KafkaProducer(settings | identity, bootstrap_servers=bootstrap)) as producer:
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
        "socket.timeout.ms": REQUEST_TIMEOUT_MS,  # librdkafka only sends request.timeout.ms to the broker
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
    """Failover.java publishes for each line that it reads, and prints an empty line when it has succeeded."""
    properties: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "request.timeout.ms": REQUEST_TIMEOUT_MS,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    }
    properties |= {"transactional.id": transactional_id} if transactional_id else {}
    settings = [f"{name}={value}" for name, value in properties.items()]
    command = java.command("Failover.java", topic, partition, len(VALUE), *settings, log="error")
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        commands, output = process.stdin, process.stdout

        def publish() -> None:
            commands.write("\n")
            commands.flush()
            if not output.readline():
                raise RuntimeError("Failover.java has ended")

        try:
            yield publish
        finally:
            process.kill()


PEERS: dict[str, Open] = {OURS: _kafkabuf, CONFLUENT: _confluent, JAVA: _java}


# ---- the claim -------------------------------------------------------------------------------------------------------


def recovery(open_: Open, trouble: str, coordinator: bool, alone: bool, job: Job) -> Measurement:
    """The seconds from the trouble to the success of a record or transaction that begins right after it.

    `alone`: the node is the producer's only bootstrap server. Otherwise all nodes are.
    """
    with closing(Commands()) as nodes:
        topic, partition, victim = nodes("place", coordinator=coordinator)
        transactional_id = f"{topic}-writer" if coordinator else None
        bootstrap = nodes("address", node=victim) if alone else job.bootstrap
        with open_(bootstrap, topic, partition, transactional_id) as publish:
            for _ in range(WARM_UP):
                publish()
            nodes(trouble, node=victim)
            started = time.perf_counter()
            publish()
            seconds = time.perf_counter() - started
            for _ in range(job.amount):  # the producer goes on
                publish()
            nodes("heal")
    return {RECOVERY.name: seconds}


def name_of(peer: str, whom: str, trouble: str) -> str:
    return f"{whom} {trouble}: {peer}"


def _cases() -> Iterator[Case]:
    for whom, coordinator, alone in ROLES:
        for trouble, command in TROUBLES.items():
            for peer, open_ in PEERS.items():
                yield Case(
                    name_of(peer, whom, trouble),
                    partial(recovery, open_, command, coordinator, alone),
                    baseline=name_of(CONFLUENT, whom, trouble),
                    apart=not (_has_goal(whom, trouble) and (peer != JAVA or not coordinator)),
                    check=java.require_compiler if peer == JAVA else lambda: None,
                )


def _has_goal(whom: str, trouble: str) -> bool:
    return whom == COORDINATOR or trouble == "paused"


def _goal_for_leaders(whom: str) -> Goal:
    ours, theirs = (name_of(peer, whom, "paused") for peer in (OURS, JAVA))
    return Goal(f"seconds until a record is acknowledged, {whom} paused", ours, RECOVERY.name, 1.1, theirs,
                at_most=True)  # fmt: skip


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
    seconds=45,
    unit="more",
    goals=[*map(_goal, TROUBLES), *map(_goal_for_leaders, (LEADER, ENTRY))],
    rounds=3,
    cluster=cluster,
    notes=[
        "Three nodes of Apache Kafka, three replicas, broker.session.timeout.ms 3000. The node that is killed (kill"
        " -9; it stays dead) or paused (SIGSTOP) is not the active controller. The producer then sends a record, or"
        " begins, fills and commits a transaction: the figure is the time until that is acknowledged.",
        f"All settings are defaults, except request.timeout.ms {REQUEST_TIMEOUT_MS} (in librdkafka socket.timeout.ms,"
        f" too) and transaction.timeout.ms {TRANSACTION_TIMEOUT_MS}. All producers are idempotent, and warmed up with"
        f" {WARM_UP} records or transactions. Kafka 4 gives kafkabuf and Java transactions of version 2, and"
        " confluent-kafka transactions of version 1.",
        "The cluster takes most of the time: it waits 2.5 to 3 s for a node before other nodes take its place.",
    ],
)
