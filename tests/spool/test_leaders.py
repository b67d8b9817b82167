"""The proof over sockets, against the embedded cluster: leaders that forget, move, die, refuse and lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest

from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.errors import ClosedError, OffsetOutOfRangeError, UnknownLeaderEpochError, UnknownTopicIdError
from kafkabuf.protocol import messages
from kafkabuf.spool.evidence import Answer
from kafkabuf.spool.proof import prove
from tests.spool import stage as scripts
from tests.spool.stage import ABSENT, FORGOTTEN, THERE, UNPROVEN, DeadProcess, Stage, leaders, outcomes, prove_one
from tests.waiting import PATIENCE, wait_until

UNSUPPORTED_VERSION, NOT_LEADER, FENCED, TIMED_OUT, OFFSET_NOT_AVAILABLE = 35, 6, 74, 7, 78


def stage_of(cluster: EmbeddedCluster) -> Stage:
    return Stage(cluster.bootstrap_servers, lambda name, configs: cluster.create_topic(name, configs=dict(configs)))


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1) as running:
        yield running


@pytest.fixture
def stage(cluster: EmbeddedCluster) -> Stage:
    return stage_of(cluster)


def forget_in(cluster: EmbeddedCluster) -> Callable[[DeadProcess], None]:
    """The leader forgets all producers, as after producer.id.expiration.ms."""

    def forget(process: DeadProcess) -> None:
        leader, _ = cluster.leader(process.topic, 0)
        cluster._call(
            lambda c: c.catalogue.topic(process.topic).partition(0).led_by(leader).log.producers._entries.clear()
        )
        assert process.known_ids() == set()

    return forget


@pytest.mark.parametrize(
    "script",
    [
        scripts.in_doubt_batches_are_divided_by_the_last_sequence,
        scripts.topic_made_again_is_read_from_its_start,
        scripts.restored_file_is_recognised,
        scripts.next_epoch_of_an_id_begins_at_0_without_a_word_to_the_coordinator,
        scripts.half_of_a_batch_under_its_numbers_is_unproven,
        scripts.last_of_a_busy_log_is_waited_for,
    ],
)
def test_script_holds(script: Callable[[Stage], None], stage: Stage) -> None:
    script(stage)


@pytest.mark.parametrize(
    "script", [scripts.compressed_and_large_batches_are_found_among_others, scripts.deleted_stretch_is_unproven]
)
def test_script_of_a_forgotten_id_holds(
    script: Callable[[Stage, Callable[[DeadProcess], None]], None], cluster: EmbeddedCluster
) -> None:
    script(stage_of(cluster), forget_in(cluster))


def test_batch_that_compaction_removed_is_unproven(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t", configs={"cleanup.policy": "compact,delete"})
    process = DeadProcess(stage_of(cluster), "t", key=b"k")
    batches = [process.numbered(1, 10), process.numbered(2, 15), process.numbered(3, 20)]
    for spooled in batches[:2]:
        process.append(spooled)
    assert cluster.compact("t")
    forget_in(cluster)(process)
    proof = prove_one(cluster.bootstrap_servers, process.file(batches))
    assert outcomes(proof) == [UNPROVEN, THERE, UNPROVEN]
    assert "offsets 10 to 14 of t-0 are gone" in proof.verdicts[0].reason


# ---- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [NOT_LEADER, FENCED, TIMED_OUT, OFFSET_NOT_AVAILABLE])
@pytest.mark.parametrize("api_key", [messages.DESCRIBE_PRODUCERS, messages.LIST_OFFSETS, messages.FETCH])
def test_errors_that_pass_are_asked_again(api_key: int, code: int, cluster: EmbeddedCluster) -> None:
    process = DeadProcess(stage_of(cluster), stage_of(cluster).new_topic())
    batches = [process.numbered(1, 10), process.numbered(2, 15)]
    process.append(batches[0])
    forget_in(cluster)(process)
    cluster.fail_next(api_key, code, times=3, topic=process.topic)
    assert outcomes(prove_one(cluster.bootstrap_servers, process.file(batches))) == [THERE, FORGOTTEN]
    assert len(cluster.requests(api_key=api_key)) > 3


def test_broker_without_describe_producers_is_read(cluster: EmbeddedCluster) -> None:
    process = DeadProcess(stage_of(cluster), stage_of(cluster).new_topic())
    batches = [process.numbered(1, 10), process.numbered(2, 15)]
    process.append(batches[0])
    cluster.fail_next(messages.DESCRIBE_PRODUCERS, UNSUPPORTED_VERSION, topic=process.topic)
    assert outcomes(prove_one(cluster.bootstrap_servers, process.file(batches))) == [THERE, ABSENT]


def test_leader_of_another_epoch_or_topic_is_not_believed(cluster: EmbeddedCluster) -> None:
    process = DeadProcess(stage_of(cluster), stage_of(cluster).new_topic())
    place = process.topic, 0
    with leaders(cluster.bootstrap_servers) as asked:
        answer = asked.ask([place])[place]
        assert isinstance(answer, Answer)
        assert answer.topic_id == process.topic_id
        assert asked.ends(place, answer) == (10, 10)
        with pytest.raises(UnknownLeaderEpochError):
            asked._list_offset(place, -1, answer.leader_epoch + 1)
        with pytest.raises(UnknownLeaderEpochError):
            asked._has(place, replace(answer, leader_epoch=answer.leader_epoch + 1), 0)
        with pytest.raises(UnknownTopicIdError):
            asked.read(place, uuid4(), 0)
        with pytest.raises(OffsetOutOfRangeError):
            asked.read(place, answer.topic_id, 11)


def test_right_to_read_is_named_where_it_is_missing() -> None:
    security = Security(authorizer=True, allow_everyone_if_no_acl_found=True)
    with EmbeddedCluster(brokers=1, security=security) as cluster:
        stage = stage_of(cluster)
        process = DeadProcess(stage, stage.new_topic())
        batches = [process.numbered(1, 10)]
        process.append(batches[0])
        cluster.add_acl("User:ANONYMOUS", "WRITE", topic=process.topic)  # and with it DESCRIBE
        proof = prove_one(stage.address, process.file(batches))
        assert outcomes(proof) == [UNPROVEN]
        assert f"grant this user Read on topic {process.topic!r}" in proof.verdicts[0].reason


def test_connections_that_are_cut_decide_nothing(cluster: EmbeddedCluster) -> None:
    process = DeadProcess(stage_of(cluster), stage_of(cluster).new_topic())
    batches = [process.numbered(1, 10), process.numbered(2, 15)]
    process.append(batches[0])
    process.append_others(30, 200_000)
    forget_in(cluster)(process)
    cluster.cut_after(3_000_000, sent=True)
    assert outcomes(prove_one(cluster.bootstrap_servers, process.file(batches))) == [THERE, FORGOTTEN]


def test_many_partitions_are_asked_in_requests_of_a_hundred(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("many", 250)
    process = DeadProcess(stage_of(cluster), stage_of(cluster).new_topic())
    none = process.file([process.numbered(1, 10)], topic="many", topic_id=None, last_acked=-1, last_acked_offset=-1)
    files = [replace(none, partition=number) for number in range(250)]
    with leaders(cluster.bootstrap_servers) as asked:
        proofs = list(prove(asked, files))
    assert {proof.partition.partition for proof in proofs} == set(range(250))
    assert {verdict.outcome for proof in proofs for verdict in proof.verdicts} == {FORGOTTEN}
    assert len(cluster.requests(api_key=messages.DESCRIBE_PRODUCERS)) == 3


def test_proof_of_a_dead_cluster_waits_until_it_is_stopped() -> None:
    with EmbeddedCluster(brokers=1) as cluster:
        process = DeadProcess(stage_of(cluster), stage_of(cluster).new_topic())
        address, file = cluster.bootstrap_servers, process.file([process.numbered(1, 10)])
    with leaders(address) as dead, ThreadPoolExecutor() as pool:
        proof = pool.submit(lambda: list(prove(dead, [file])))
        wait_until(lambda: dead._client.connection_error())
        assert not proof.done()
        dead.stop()
        with pytest.raises(ClosedError):
            proof.result(PATIENCE)


# ---- three nodes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def three() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, broker_session_timeout_ms=300, replica_lag_time_max_ms=600_000) as running:
        yield running


def leader_stage(cluster: EmbeddedCluster, topic: str) -> Stage:
    """The topic's leader, for the process; the proof has all addresses."""
    host, port, _ = cluster.nodes()[cluster.leader(topic, 0)[0]]
    return Stage(f"{host}:{port}", lambda name, configs: None)


def followers(cluster: EmbeddedCluster, topic: str) -> list[int]:
    return [node for node in cluster.nodes() if node != cluster.leader(topic, 0)[0]]


def test_batch_that_no_follower_has_is_there_only_when_followers_have_it(three: EmbeddedCluster) -> None:
    three.create_topic("t")
    process = DeadProcess(leader_stage(three, "t"), "t")
    batches = [process.numbered(1, 10)]
    for node in followers(three, "t"):
        three.set_replica_lag(node, 3600)
    process.append(batches[0], acks=1)
    assert three.high_watermark("t", 0) == 10
    with leaders(three.bootstrap_servers) as asked, ThreadPoolExecutor() as pool:
        proof = pool.submit(lambda: list(prove(asked, [process.file(batches)])))
        three.wait_for_request(messages.LIST_OFFSETS, count=3, timeout=PATIENCE)
        assert not proof.done()
        for node in followers(three, "t"):
            three.set_replica_lag(node, 0)
        assert outcomes(proof.result(PATIENCE)[0]) == [THERE]
    assert three.high_watermark("t", 0) == 15


def test_batch_that_died_with_its_leader_is_absent(three: EmbeddedCluster) -> None:
    three.create_topic("t")
    process = DeadProcess(leader_stage(three, "t"), "t")
    batches = [process.numbered(1, 10)]
    leader, _ = three.leader("t", 0)
    for node in followers(three, "t"):
        three.set_replica_lag(node, 3600)
    process.append(batches[0], acks=1)
    with leaders(three.bootstrap_servers, request_timeout_ms=300) as asked, ThreadPoolExecutor() as pool:
        proof = pool.submit(lambda: list(prove(asked, [process.file(batches)])))
        three.wait_for_request(messages.LIST_OFFSETS, timeout=PATIENCE)
        three.kill_node(leader)
        assert outcomes(proof.result(PATIENCE)[0]) == [ABSENT]


@pytest.mark.parametrize("trouble", ["kill", "pause", "move"])
def test_leader_that_moves_while_its_log_is_read_changes_nothing(three: EmbeddedCluster, trouble: str) -> None:
    three.create_topic("t")
    process = DeadProcess(leader_stage(three, "t"), "t")
    batches = [process.numbered(1, 10), process.numbered(2, 15)]
    process.append(batches[0])
    process.append_others(20, 300_000)
    leader, _ = three.leader("t", 0)
    other = followers(three, "t")[0]
    with leaders(three.bootstrap_servers, request_timeout_ms=500) as asked, ThreadPoolExecutor() as pool:
        unknown = process.file([*batches, process.numbered(3, 20)])
        three.fail_next(messages.DESCRIBE_PRODUCERS, UNSUPPORTED_VERSION, times=50, topic="t")
        proof = pool.submit(lambda: list(prove(asked, [unknown])))
        three.wait_for_request(messages.FETCH, timeout=PATIENCE)
        match trouble:
            case "kill":
                three.kill_node(leader)
            case "pause":
                three.pause_node(leader)
            case _:
                three.move_leader("t", 0, other)
        assert outcomes(proof.result(PATIENCE)[0]) == [THERE, ABSENT, ABSENT]


def test_follower_that_metadata_took_for_the_leader_does_not_decide(three: EmbeddedCluster) -> None:
    """DescribeProducers is answered by followers, too."""
    three.create_topic("t")
    process = DeadProcess(leader_stage(three, "t"), "t")
    batches = [process.numbered(1, 10)]
    with leaders(three.bootstrap_servers) as asked:
        asked.ask([("t", 0)])  # metadata is known
        old, new = three.leader("t", 0)[0], followers(three, "t")[0]
        three.move_leader("t", 0, new)
        process.address = leader_stage(three, "t").address
        process.append(batches[0])
        three.clear_requests()
        (proof,) = prove(asked, [process.file(batches)])
    assert outcomes(proof) == [THERE]
    nodes = [request.node_id for request in three.requests(api_key=messages.DESCRIBE_PRODUCERS)]
    assert (nodes[0], nodes[-1]) == (old, new)  # a slow answer is asked for again
