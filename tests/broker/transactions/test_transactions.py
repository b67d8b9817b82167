"""Idempotence and transactions of the embedded broker: a script of raw requests that also runs against real Kafka, and
the promises that a script cannot show, on a manual clock."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.groups.groups import offsets_partition
from kafkabuf.broker.groups.offsets import MAX_METADATA
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records._batch import BatchInfo
from kafkabuf.broker.records.config import PRODUCER_EXPIRATION_MS
from kafkabuf.broker.records.control import Marker, control_batch
from kafkabuf.broker.records.producer_state import AbortedTransaction, ProducerStates
from kafkabuf.broker.transactions.coordinator import State, Transactions
from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import ManualClock
from kafkabuf.errors import OffsetMetadataTooLargeError
from kafkabuf.protocol import messages
from rigs.real_kafka import RealKafka, admin_client, create_topic
from tests.broker.raw_client import RawClient, batch
from tests.broker.transactions import steps
from tests.broker.transactions.script import TRANSACTIONAL, Script
from tests.broker.transactions.support import World

V1_PARTS = steps.PARTS[:4]


# ---- beside real Kafka


def answers(bootstrap: str, parts: tuple[Any, ...]) -> dict[str, Any]:
    topic = f"script-{uuid.uuid4().hex[:8]}"
    # Kafka may lose a marker for a partition whose leader it does not know yet: wait for the leaders.
    create_topic(admin_client(bootstrap), topic, steps.PARTITIONS)
    with RawClient(bootstrap) as client:
        script = Script(client, topic, topic)
        script.wait_for_coordinators()
        for part in parts:
            part(script)
    return script.answers


def test_transactions_answer_as_kafka_4_does(kafka_4: RealKafka) -> None:
    with EmbeddedCluster() as cluster:
        ours = answers(cluster.bootstrap_servers, steps.PARTS)
    assert ours == answers(kafka_4.bootstrap_servers, steps.PARTS)


def test_transactions_answer_as_kafka_3_9_does(kafka_3_9: RealKafka) -> None:
    with EmbeddedCluster(transaction_version=0) as cluster:
        ours = answers(cluster.bootstrap_servers, V1_PARTS)
    theirs = answers(kafka_3_9.bootstrap_servers, V1_PARTS)
    # ILLEGAL_GENERATION since 4.0, UNKNOWN_MEMBER_ID before.
    assert (ours.pop("offsets: generation of no group"), theirs.pop("offsets: generation of no group")) == (22, 25)
    assert ours == theirs


@pytest.mark.parametrize("committed", [True, False])
def test_control_record_equals_that_of_kafka(kafka_4: RealKafka, committed: bool) -> None:
    topic = f"marker-{committed}"
    kafka_4.create_topic(topic)
    with RawClient(kafka_4.bootstrap_servers) as client:
        script = Script(client, topic, topic)
        script.wait_for_coordinators()
        producer_id, epoch = script.init("init", topic, version=5)
        script.produce("send", topic, (producer_id, epoch), 0, version=12)
        script.end("end", topic, (producer_id, epoch), committed, version=5)
        script.stable_offset(2)
        theirs = bytes(client.fetch(topic, 1).records)
    written = int.from_bytes(theirs[27:35], "big")
    ours = bytes(control_batch(Marker(producer_id, epoch + 1, 0, committed), written))
    # The log writes base offset and leader epoch.
    assert (theirs[8:12], theirs[16:]) == (ours[8:12], ours[16:])


# ---- by itself


@pytest.fixture
def world() -> Iterator[World]:
    one = World()
    yield one
    one.close()


@pytest.mark.parametrize("version", [0, 2])
def test_transaction_is_aborted_at_its_timeout(version: int) -> None:
    world = World(transaction_version=version)
    producer = world.start(timeout=3_000)
    assert world.send(producer, 0).error_code == 0
    world.advance(2.9)
    assert world.stable() == 0
    world.advance(0.2)
    assert (world.stable(), world.batches()[1:]) == (2, [(1, 0x30, producer[1] + 1, -1, 0)])
    # Its owner learns of the abort.
    assert world.send(producer, 1).error_code == 47
    assert world.end(producer, True, version=4)[0] == 90
    assert world.end(producer, True)[0] == 48
    assert world.end(producer, False) == (0, producer[0], producer[1] + 1)
    world.close()


def test_each_transaction_has_its_own_timeout(world: World) -> None:
    producer = world.start(timeout=3_000)
    world.send(producer, 0)
    world.advance(2)
    _, *raised = world.end(producer, True)
    world.send((raised[0], raised[1]), 0)
    world.advance(2)
    assert world.stable() == 2
    world.advance(1)
    assert world.stable() == 4


def test_timeout_begins_with_the_first_partition(world: World) -> None:
    producer = world.start(timeout=3_000)
    world.send(producer, 0)
    world.advance(2)
    world.send(producer, 0, partition=1)
    world.advance(1)
    assert (world.stable(0), world.stable(1)) == (2, 2)


def test_producer_without_a_transaction_never_times_out(world: World) -> None:
    producer = world.start(timeout=1_000)
    world.advance(100)
    assert world.send(producer, 0).error_code == 0


def test_held_control_records_hold_up_the_next_transaction(world: World) -> None:
    producer = world.start()
    world.send(producer, 0)
    world.cluster.hold_markers()
    code, *raised = world.end(producer, True)
    following = raised[0], raised[1]
    assert (code, following, world.stable()) == (0, (producer[0], producer[1] + 1), 0)
    assert world.end(producer, True)[0] == 51
    assert world.end(producer, False)[0] == 48
    assert world.init()[0] == 51
    assert world.send(following, 0).error_code == 19
    assert (
        world.client.ask(
            messages.ADD_OFFSETS_TO_TXN,
            4,
            transactional_id="tx",
            producer_id=following[0],
            producer_epoch=following[1],
            group_id="g",
        ).error_code
        == 51
    )
    world.cluster.release_markers()
    assert world.stable() == 2
    assert world.send(following, 0).error_code == 0


def test_used_up_epochs_lead_to_a_new_producer_id(world: World) -> None:
    producer = world.start()

    def use_up(cluster: Cluster) -> None:
        found = cluster.transactions.get("tx")
        assert found is not None
        found.epoch = 32766

    world.cluster._call(use_up)
    last = producer[0], 32766
    assert world.send(last, 0).error_code == 0
    world.cluster.hold_markers()
    code, fresh, epoch = world.end(last, True)
    assert (code, fresh != producer[0], epoch) == (0, True, 0)
    world.cluster.release_markers()
    assert world.batches()[1][2] == 32767
    # The response was lost: the producer repeats the request, and recovers from the old id.
    assert world.end(last, True) == (0, fresh, 0)
    assert world.end(last, False)[0] == 48
    assert world.init(known=(producer[0], 0))[0] == 90
    assert world.init(known=last)[:2] == (0, fresh)
    # The epochs run out once more, without a start in between.
    world.cluster._call(use_up)
    _, second, _ = world.end((fresh, 32766), False)
    assert world.end((fresh, 32766), False) == (0, second, 0)
    fresh = second
    # The epochs run out at the start of a producer.
    world.cluster._call(use_up)
    assert world.init()[1:] == (fresh + 1, 0)
    # One epoch is left for fencing.
    world.cluster._call(use_up)
    assert world.send((fresh + 1, 32766), 0).error_code == 0
    assert world.init()[0] == 51
    assert world.init()[1:] == (fresh + 2, 0)
    assert world.batches()[-1][2] == 32767


def known_producers(world: World) -> list[int]:
    return world.cluster._ask("t", 0, lambda partition: [producer_id for producer_id, _ in partition.log.producers])


def test_producer_is_forgotten_at_the_first_check_behind_its_expiration(world: World) -> None:
    assert world.send((4711, 0), 0, transactional_id=None).error_code == 0
    world.advance(PRODUCER_EXPIRATION_MS / 1000 - 1)
    assert known_producers(world) == [4711]
    assert world.send((4711, 0), 5, transactional_id=None).error_code == 45
    world.advance(600)
    assert known_producers(world) == []
    assert world.send((4711, 0), 5, transactional_id=None).error_code == 0


def test_producer_of_old_records_is_forgotten_at_the_next_check() -> None:
    """Kafka measures the silence of a producer from the timestamps of its records."""
    world = World(producer_id_expiration_check_interval_ms=10_000)
    world.clock.advance(PRODUCER_EXPIRATION_MS / 1000)  # the records of `send` have the time at which the clock began
    world.cluster.tick()
    assert world.send((4711, 0), 0, transactional_id=None).error_code == 0
    world.advance(9.9)
    assert world.send((4711, 0), 1, transactional_id=None).error_code == 0
    world.advance(0.2)
    assert known_producers(world) == []
    repeated = world.send((4711, 0), 1, transactional_id=None)
    assert (repeated.error_code, repeated.base_offset) == (0, 2)
    world.close()


def test_expiration_of_producers_is_a_setting_of_the_cluster() -> None:
    world = World(config={"producer.id.expiration.ms": 5_000}, producer_id_expiration_check_interval_ms=1_000)
    world.send((4711, 0), 0, transactional_id=None)
    world.advance(4.9)
    assert known_producers(world) == [4711]
    world.advance(1.1)
    assert known_producers(world) == []
    world.close()


def test_producer_with_an_open_transaction_is_remembered(world: World) -> None:
    producer = world.start(timeout=900_000)
    world.cluster.hold_markers()
    world.send(producer, 0)
    world.advance(PRODUCER_EXPIRATION_MS / 1000 + 600)
    assert world.cluster._call(lambda c: c.catalogue.topic("t").partition(0).log.producers.in_transaction(*producer))


def test_new_leader_recognizes_a_repeated_batch() -> None:
    world = World(brokers=3)
    leader, _ = world.cluster.leader("t", 0)
    producer = 4711, 0

    def send(node: int) -> Any:
        host, port, _ = world.cluster.nodes()[node]
        with RawClient(f"{host}:{port}") as client:
            return world.send(producer, 0, transactional_id=None, client=client)

    assert send(leader).base_offset == 0
    world.cluster.stop_node(leader)
    following, _ = world.cluster.leader("t", 0)
    assert following != leader
    again = send(following)
    assert (again.error_code, again.base_offset, world.cluster.end_offset("t", 0)) == (0, 0, 1)
    world.close()


def test_control_record_is_written_once_the_partition_has_a_leader_again(world: World) -> None:
    producer = world.start(timeout=3_000)
    world.send(producer, 0)
    world.cluster.stop_node(1)
    world.advance(3)
    assert world.stable() == 0
    world.cluster.start_node(1)
    assert world.stable() == 2


def test_control_record_goes_to_the_new_leader_once_the_paused_leader_is_fenced() -> None:
    world = World(brokers=3)
    coordinator = world.cluster._call(lambda c: c.internal_topics.coordinator("__transaction_state", "tx"))
    leader = next(node for node in (1, 2, 3) if node != coordinator)
    world.cluster.move_leader("t", 0, leader)
    clients = {node: RawClient("{}:{}".format(*world.cluster.nodes()[node])) for node in (leader, coordinator)}
    world.client.socket.close()
    world.client = clients[coordinator]
    producer = world.start(timeout=60_000)
    assert world.send(producer, 0, client=clients[leader]).error_code == 0
    world.cluster.pause_node(leader)
    world.end(producer, True)
    assert world.stable() == 0, "the leader is paused, and its control record waits"
    world.advance(60)
    assert world.cluster.leader("t", 0)[0] != leader
    assert world.stable() == 2
    for client in clients.values():
        client.socket.close()
    world.close()


def test_transaction_survives_the_end_of_its_coordinator() -> None:
    world = World(brokers=3)
    coordinator = world.cluster._call(lambda c: c.internal_topics.coordinator("__transaction_state", "tx"))
    others = [node for node in (1, 2, 3) if node != coordinator]
    clients = {node: RawClient("{}:{}".format(*world.cluster.nodes()[node])) for node in (1, 2, 3)}
    world.client.socket.close()
    world.client = clients[others[0]]
    assert world.init()[0] == 16
    assert world.end((1, 0), True)[0] == 16
    world.client = clients[coordinator]
    producer = world.start()
    for node in (1, 2, 3):
        world.cluster.move_leader("t", 0, node)
        assert world.send(producer, node - 1, client=clients[node]).error_code == 0
    world.cluster.stop_node(coordinator)
    world.client = clients[world.cluster._call(lambda c: c.internal_topics.coordinator("__transaction_state", "tx"))]
    assert world.end(producer, True) == (0, producer[0], producer[1] + 1)
    assert world.stable() == 4
    for client in clients.values():
        client.socket.close()
    world.close()


def test_offset_with_too_much_metadata_is_refused_in_a_transaction_too(world: World) -> None:
    producer = world.start()
    partitions = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": "x" * (MAX_METADATA + index)}
        for index in range(2)
    ]
    answer = world.client.ask(
        messages.TXN_OFFSET_COMMIT,
        5,
        transactional_id="tx",
        producer_id=producer[0],
        producer_epoch=producer[1],
        group_id="g",
        topics=[{"name": "t", "partitions": partitions}],
    )
    codes = [partition.error_code for partition in answer.topics[0].partitions]
    assert codes == [0, OffsetMetadataTooLargeError.code]


def test_newest_commit_wins_when_a_transaction_ends(world: World) -> None:
    """An offset committed after the transaction's offset stays; an earlier offset is replaced."""
    producer = world.start()

    def commit(offset: int, transactional: bool) -> None:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        values: dict[str, Any] = {"group_id": "g", "topics": [{"name": "t", "partitions": [partition]}]}
        if transactional:
            producing = {"transactional_id": "tx", "producer_id": producer[0], "producer_epoch": producer[1]}
            answer = world.client.ask(messages.TXN_OFFSET_COMMIT, 5, **values, **producing)
        else:
            answer = world.client.ask(messages.OFFSET_COMMIT, 8, **values)
        assert answer.topics[0].partitions[0].error_code == 0

    def committed() -> int:
        topics = [{"name": "t", "partition_indexes": [0]}]
        answer = world.client.ask(messages.OFFSET_FETCH, 7, group_id="g", topics=topics, require_stable=True)
        return int(answer.topics[0].partitions[0].committed_offset)

    commit(1, False)
    commit(5, True)
    assert committed() == -1
    _, *raised = world.end(producer, True)
    assert committed() == 5
    producer = raised[0], raised[1]
    commit(7, True)
    commit(6, False)
    world.end(producer, True)
    assert committed() == 6


def test_filters_limit_the_listed_transactions(world: World) -> None:
    def listed(**filters: Any) -> list[str]:
        return [
            one.transactional_id
            for one in world.client.ask(messages.LIST_TRANSACTIONS, 2, **filters).transaction_states
        ]

    producer = world.start(timeout=900_000)
    for name in ("ab", "abc"):
        world.client.ask(messages.INIT_PRODUCER_ID, 5, transactional_id=name, transaction_timeout=1000)
    world.send(producer, 0)
    world.advance(5)
    assert listed() == ["tx", "ab", "abc"]
    assert listed(transactional_id_pattern="a.") == ["ab"]
    assert listed(transactional_id_pattern="(?i)A[[:alpha:]]*") == ["ab", "abc"]
    assert listed(state_filters=["Empty"]) == ["ab", "abc"]
    assert (listed(duration_filter=4_999), listed(duration_filter=5_000)) == (["tx"], [])
    assert world.client.ask(messages.LIST_TRANSACTIONS, 2, transactional_id_pattern="(").error_code == 128


def test_pattern_that_makes_a_backtracking_matcher_hang_is_answered_at_once(world: World) -> None:
    for name in ("a" * 5_000 + ":", "a" * 5_000):
        world.client.ask(messages.INIT_PRODUCER_ID, 5, transactional_id=name, transaction_timeout=1000)
    start = time.process_time()
    response = world.client.ask(messages.LIST_TRANSACTIONS, 2, transactional_id_pattern="(a+)+$")
    assert [one.transactional_id for one in response.transaction_states] == ["a" * 5_000]
    assert time.process_time() - start < 1


def test_work_that_outlives_its_transaction_writes_nothing_into_the_next() -> None:
    """A work ends the transaction, and another one that tries again, because a leader is back, overtakes it."""
    loop = asyncio.new_event_loop()
    works: list[Work[None]] = []
    written: list[int] = []

    def write(partition: tuple[str, int], marker: Marker) -> Work[bool]:
        yield from ()
        written.append(partition[1])
        return True

    coordinator = Transactions(Timer(loop, ManualClock()), works.append, lambda: 7, write, version=1)
    producer = coordinator.init("tx", 1000, None)
    coordinator.add("tx", producer, [("t", index) for index in range(3)])
    first = coordinator.end("tx", producer, committed=True, version_2=False)
    next(first)
    coordinator.write_held_markers()
    finish(works.pop())
    assert sorted(written) == [0, 1, 2]
    coordinator.add("tx", producer, [("t", 0), ("t", 1), ("t", 2)])
    assert finish(first) == producer
    assert sorted(written) == [0, 1, 2]
    transaction = coordinator.get("tx")
    assert transaction is not None
    assert (transaction.state, len(transaction.partitions)) == (State.ONGOING, 3)
    loop.close()


def test_each_coordinator_lists_its_own_transactions() -> None:
    world = World(brokers=2)
    names = [f"tx-{number}" for number in range(8)]
    found: list[set[str]] = []
    for host, port, _ in world.cluster.nodes().values():
        with RawClient(f"{host}:{port}") as client:
            for name in names:
                client.ask(messages.INIT_PRODUCER_ID, 5, transactional_id=name, transaction_timeout=1000)
            found.append({one.transactional_id for one in client.ask(messages.LIST_TRANSACTIONS, 0).transaction_states})
    assert found[0] | found[1] == set(names)
    assert not found[0] & found[1]
    assert found[0]
    assert found[1]
    world.close()


@pytest.mark.parametrize(("name", "partition"), [("group", 47), ("polygenelubricants", 0), ("", 0), ("grüße", 23)])
def test_group_is_in_the_partition_of_javas_hash(name: str, partition: int) -> None:
    assert offsets_partition(name) == partition


def test_aborted_transaction_is_remembered_until_its_control_record_is_dropped() -> None:
    states = ProducerStates()
    states.append(BatchInfo(3, 0, 2, 5, 0, 0, True), 10)
    states.end(Marker(5, 0, 0, False), 13, 0)
    states.forget_aborted_before(13)
    assert states.aborted == [AbortedTransaction(5, 10, 13)]
    states.forget_aborted_before(14)
    assert states.aborted == []


def test_only_aborted_transactions_within_the_offsets_are_returned() -> None:
    log = PartitionLog()
    for producer_id in range(3):
        log.append(b"", BatchInfo(3, 0, 2, producer_id, 0, 0, True), 0)
        log.append_marker(Marker(producer_id, 0, 0, False), 0, 0)
    assert [one.first_offset for one in log.aborted(0, 12)] == [0, 4, 8]
    assert [one.first_offset for one in log.aborted(3, 8)] == [0, 4]
    assert [one.first_offset for one in log.aborted(4, 9)] == [4, 8]


def test_retention_drops_aborted_transactions_and_passes_open_transactions() -> None:
    world = World(retention_bytes=400)
    for _ in range(20):
        producer = world.start()
        world.send(producer, 0)
        world.end(producer, False)
    aborted = world.cluster._call(lambda c: c.catalogue.topic("t").partition(0).log.producers.aborted)
    start = world.cluster.log_start_offset("t", 0)
    assert start > 0
    assert [one.last_offset for one in aborted] == list(range(start + 1 - start % 2, 40, 2))
    # Open transactions do not hold retention up.
    producer = world.start(timeout=900_000)
    world.send(producer, 0)
    for sequence in range(10):
        world.send((4711, 0), sequence, transactional_id=None)
    assert world.stable() == world.cluster.log_start_offset("t", 0) > 40
    world.close()


def test_a_request_adds_all_its_partitions_to_the_transaction_at_once(tmp_path: Path) -> None:
    """Added one by one, each would store all before it: a request of 10,000 partitions took a minute and 64 MiB."""
    world = World(data_dir=tmp_path)
    try:
        world.cluster.create_topic("many", 60)
        producer = world.start()
        stored = [0]

        def produce(first: int, last: int) -> set[int]:
            records = batch([b"x"], producer=(*producer, 0), attributes=TRANSACTIONAL)
            data = [{"index": index, "records": records} for index in range(first, last)]
            topics = [{"name": "many", "partition_data": data}, {"name": "unknown", "partition_data": data[:1]}]
            answer = world.client.ask(
                messages.PRODUCE, 12, transactional_id="tx", acks=-1, timeout=1000, topic_data=topics
            )
            stored.append(sum(path.stat().st_size for path in tmp_path.rglob("*journal*")))
            assert [int(found.error_code) for found in answer.responses[1].partition_responses] == [3]
            return {int(found.error_code) for found in answer.responses[0].partition_responses}

        assert produce(0, 1) == {0}
        assert produce(1, 20) == {0}
        assert produce(20, 60) == {0}
        assert 0 < stored[-1] - stored[-2] < 4 * (stored[-2] - stored[-3])
        end = {"transactional_id": "tx", "producer_id": producer[0], "producer_epoch": producer[1], "committed": True}
        assert world.client.ask(messages.END_TXN, 5, **end).error_code == 0
        assert all(len(world.cluster.records("many", index)) == 2 for index in (0, 19, 59))  # with the control record
    finally:
        world.close()
