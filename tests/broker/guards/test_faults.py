"""Faults on demand in the APIs of producers and transactions, leader hints, finalized features."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.replica.state import PartitionState
from kafkabuf.errors import ConfigError
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch
from tests.broker.transactions.support import World
from tests.hostile.fuzz_requests.target import api_of, corpus


@pytest.fixture
def world() -> Iterator[World]:
    one = World()
    yield one
    one.close()


# ---- faults


def test_end_is_repeated_after_a_lost_response(world: World) -> None:
    producer = world.start()
    world.send(producer, 0)
    world.cluster.drop_next(messages.END_TXN)
    with RawClient(world.cluster.bootstrap_servers) as client:
        ending = {"transactional_id": "tx", "producer_id": producer[0], "producer_epoch": producer[1]}
        client.send(messages.END_TXN, 5, **ending, committed=True)
        assert client.closed()
    assert world.stable() == 2
    assert world.end(producer, True) == (0, producer[0], producer[1] + 1)


def transactional_values(api_key: int, producer: tuple[int, int]) -> dict[str, Any]:
    """The fields of a request that adds topic t, or offsets of group g, to the transaction."""
    if api_key == messages.ADD_PARTITIONS_TO_TXN:
        return {
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_producer_id": producer[0],
            "v3_and_below_producer_epoch": producer[1],
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
        }
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    return {
        "transactional_id": "tx",
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "group_id": "g",
        "topics": [{"name": "t", "partitions": [partition]}],
    }


def test_injected_error_reaches_every_api_once() -> None:
    frames = {api_of(frame)[0]: frame for frame in sorted(corpus(), key=api_of)}  # in the highest version
    with EmbeddedCluster() as cluster, RawClient(cluster.bootstrap_servers) as client:
        cluster.create_topic("f-t")  # the corpus names it
        for (api_key, version), frame in ((api_of(frame), frame) for frame in frames.values()):
            cluster.fail_next(api_key, 29)
            for injected in (True, False):
                client.send_frame(frame)
                response = client.receive_frame()
                assert response is not None, api_key
                _, entity = messages.decode_response(api_key, version, response)
                assert ("topic_authorization_failed: 29" in str(entity)) == injected, entity


@pytest.mark.parametrize(("api_key", "version"), [(messages.ADD_PARTITIONS_TO_TXN, 3), (messages.TXN_OFFSET_COMMIT, 5)])
def test_error_after_the_request_leaves_it_carried_out(world: World, api_key: int, version: int) -> None:
    producer = world.start()
    world.cluster.fail_next(api_key, 7, after=True)
    assert "request_timed_out: 7" in str(world.client.ask(api_key, version, **transactional_values(api_key, producer)))
    assert world.cluster._call(lambda c: [len(one.partitions) for one in c.transactions]) == [1]
    # The fault counts one request: the next request succeeds.
    assert "none: 0" in str(world.client.ask(api_key, version, **transactional_values(api_key, producer)))


def test_error_of_the_request_itself_comes_before_an_injected_error(world: World) -> None:
    world.cluster.fail_next(messages.PRODUCE, 20, after=True)
    assert world.client.produce("t", batch([b"x"])[:-1]).error_code == 2


def test_error_after_an_append_leaves_the_append(world: World) -> None:
    world.cluster.fail_next(messages.PRODUCE, 20, after=True)
    assert world.send((4711, 0), 0, transactional_id=None).error_code == 20
    assert world.cluster.end_offset("t", 0) == 1
    again = world.send((4711, 0), 0, transactional_id=None)
    assert (again.error_code, again.base_offset, world.cluster.end_offset("t", 0)) == (0, 0, 1)
    producer = world.start()
    world.send(producer, 0, partition=1)
    world.cluster.fail_next(messages.END_TXN, 7, after=True)
    assert world.end(producer, True)[0] == 7
    assert world.stable(1) == 2
    with pytest.raises(ConfigError, match="cannot fail after"):
        world.cluster.fail_next(messages.FETCH, 7, after=True)


# ---- leader hints (KIP-951)


@pytest.mark.parametrize("version", [9, 10, 13])
def test_wrong_node_names_the_leader(version: int) -> None:
    with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("t")
        leader, epoch = cluster.leader("t", 0)
        topic_id = cluster._call(lambda c: c.catalogue.topic("t").topic_id)
        host, port, _ = cluster.nodes()[3 - leader]
        with RawClient(f"{host}:{port}") as client:
            named = {"topic_id": topic_id} if version >= 13 else {"name": "t"}
            data = [{**named, "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
            answer = client.ask(messages.PRODUCE, version, acks=1, timeout=1000, topic_data=data)
    one = answer.responses[0].partition_responses[0]
    assert one.error_code == 6
    if version >= 10:
        assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == (leader, epoch)
        expected = [(leader, *cluster_address) for cluster_address in [(host, answer.node_endpoints[0].port)]]
        assert [(each.node_id, each.host, each.port) for each in answer.node_endpoints] == expected


def test_leader_hint_may_name_an_unknown_node(world: World) -> None:
    world.cluster._call(lambda c: setattr(c.catalogue.replica("t", 0, 1), "known", PartitionState(9, 1, (1,))))
    one = world.client.produce("t", batch([b"x"]), version=10)
    assert (one.error_code, one.current_leader.leader_id) == (6, 9)


def test_unknown_topic_id_is_refused(world: World) -> None:
    data = [{"topic_id": uuid.UUID(int=5), "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
    answer = world.client.ask(messages.PRODUCE, 13, acks=1, timeout=1000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code == 100


@pytest.mark.parametrize(("version", "finalized"), [(0, []), (2, [("transaction.version", 2, 2)])])
def test_transaction_version_is_a_finalized_feature(version: int, finalized: list[tuple[str, int, int]]) -> None:
    with EmbeddedCluster(transaction_version=version) as cluster, RawClient(cluster.bootstrap_servers) as client:
        for asked in (3, 4):
            answer = client.ask(messages.API_VERSIONS, asked, client_software_name="x", client_software_version="1")
            found = [(one.name, one.min_version_level, one.max_version_level) for one in answer.finalized_features]
            assert found == finalized
            assert len(answer.supported_features) == (asked == 4)
    with pytest.raises(ConfigError, match="0, 1 and 2 are known"):
        EmbeddedCluster(transaction_version=3)
