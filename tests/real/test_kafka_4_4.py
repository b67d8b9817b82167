"""What Apache Kafka 4.4 has and 4.1 lacks, held by the same tests on it and on the embedded broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.protocol import messages
from rigs.real_kafka import KAFKA_4_4, TEST_JVM, RealKafka, create_topic

NODE = 1
INVALID_REQUEST, REBOOTSTRAP_REQUIRED = 42, 129


@pytest.fixture(scope="module", params=["embedded", KAFKA_4_4])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """Its bootstrap servers."""
    if request.param == "embedded":
        with EmbeddedCluster() as cluster:
            yield cluster.bootstrap_servers
    else:
        with RealKafka(KAFKA_4_4, jvm_options=TEST_JVM) as kafka:
            yield kafka.bootstrap_servers


def code_for(servers: str, cluster_id: str | None, node_id: int) -> int:
    """The broker's answer to a client that means this cluster and node."""
    request = messages.build_request(
        messages.API_VERSIONS, 5, client_software_name="test", client_software_version="1", cluster_id=cluster_id,
        node_id=node_id,
    )  # fmt: skip
    frame = messages.encode_request(messages.API_VERSIONS, 5, 7, "test", request)
    host, _, port = servers.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
        _, response = messages.decode_response(messages.API_VERSIONS, 5, connection.recv(size, socket.MSG_WAITALL))
    return int(response.error_code)


def test_broker_says_whether_it_is_the_one_that_the_client_means(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    own: str = admin.describe_cluster().result(30).cluster_id
    assert code_for(servers, own, NODE) == code_for(servers, None, -1) == 0
    for another, node_id in (("another", NODE), (own, NODE + 1), ("", NODE), (own, -2)):
        assert code_for(servers, another, node_id) == REBOOTSTRAP_REQUIRED
    for cluster_id in (own, "another"):  # a client names both, or none
        assert code_for(servers, cluster_id, -1) == INVALID_REQUEST
    assert code_for(servers, None, NODE) == INVALID_REQUEST


def test_producer_names_cluster_and_node_and_is_served(servers: str) -> None:
    create_topic(AdminClient({"bootstrap.servers": servers}), "served", 1)
    with KafkaProducer(bootstrap_servers=servers) as producer:
        assert producer.send("served", b"value").result(60).offset == 0
