"""Admin calls while the broker to ask is gone: the Admin asks another broker, within max.block.ms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.admin.admin import Admin
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import KafkaError
from kafkabuf.protocol import messages
from tests.network.support import ALL_VERSIONS, FakeBroker, Received, cluster_of

VERSIONS = {**ALL_VERSIONS, messages.FIND_COORDINATOR: (0, 6), messages.DESCRIBE_TRANSACTIONS: (0, 0)}
PARTITION = ("t", 0)


class Stale(FakeBroker):
    """Names a dead coordinator `times` times and then itself, and knows one transaction."""

    def __init__(self, times: int) -> None:
        super().__init__(versions=VERSIONS)
        self.times = times
        self.lookups = 0
        dead = FakeBroker()
        dead.close()
        self.cluster = cluster_of(self, dead)

    def handle(self, request: Received) -> bool:
        match request.header.api_key:
            case messages.FIND_COORDINATOR:
                self.lookups += 1
                node = {"node_id": int(self.lookups <= self.times), "host": "h", "port": 1, "error_code": 0}
                request.reply_entity(throttle_time=0, coordinators=[{**node, "key": "x", "error_message": None}])
            case messages.DESCRIBE_TRANSACTIONS:
                state = {"error_code": 0, "transactional_id": "x", "transaction_state": "Ongoing", "topics": [],
                         "transaction_timeout_ms": 1, "transaction_start_time_ms": 1, "producer_id": 7,
                         "producer_epoch": 8}  # fmt: skip
                request.reply_entity(throttle_time=0, transaction_states=[state])
            case _:
                return False
        return True


def admin_for(servers: str, **settings: int) -> Admin:
    dotted = {"max_block_ms": 10_000, "retry_backoff_ms": 10, **settings}
    return Admin(ProducerConfig.from_mapping({"bootstrap.servers": servers}, dotted))


def test_dead_coordinator_is_looked_up_until_another_is_named() -> None:
    broker = Stale(3)
    try:
        with admin_for(f"{broker.host}:{broker.port}") as admin:
            assert admin.transaction("x").producer_id == 7
        assert broker.lookups == 4
    finally:
        broker.close()


def test_coordinator_that_stays_dead_is_looked_up_with_a_back_off_for_max_block_ms() -> None:
    broker = Stale(10_000)
    try:
        started = time.monotonic()
        with (
            admin_for(f"{broker.host}:{broker.port}", max_block_ms=1_000, retry_backoff_ms=50) as admin,
            # On a busy machine the last lookup may find a few milliseconds left.
            pytest.raises(KafkaError, match=r"refused|no response .* within \d+ ms"),
        ):
            admin.transaction("x")
        assert time.monotonic() - started < 3
        assert 2 <= broker.lookups <= 30
    finally:
        broker.close()


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, min_insync_replicas=2, broker_session_timeout_ms=200) as embedded:
        embedded.create_topic("t", 1)
        with KafkaProducer(bootstrap_servers=embedded.bootstrap_servers, linger_ms=0) as producer:
            producer.send("t", b"v").result(10)
        yield embedded


TROUBLE: dict[str, Callable[[EmbeddedCluster, int], None]] = {
    "killed": EmbeddedCluster.kill_node,
    "paused": EmbeddedCluster.pause_node,
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_next_leader_is_asked_after_the_leader_has_gone(cluster: EmbeddedCluster, trouble: str) -> None:
    with admin_for(cluster.bootstrap_servers, request_timeout_ms=300) as admin:
        before = admin.active_producers([PARTITION])
        leader, _ = cluster.leader(*PARTITION)
        TROUBLE[trouble](cluster, leader)
        started = time.monotonic()
        (after,) = admin.active_producers([PARTITION])[PARTITION]
        assert after.producer_id == before[PARTITION][0].producer_id
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("trouble", TROUBLE)
def test_next_group_coordinator_is_asked_after_the_coordinator_has_gone(cluster: EmbeddedCluster, trouble: str) -> None:
    with admin_for(cluster.bootstrap_servers, request_timeout_ms=300) as admin:
        assert admin.committed("g", [PARTITION]) == {PARTITION: None}
        victim = cluster._call(lambda inside: inside.internal_topics.coordinator("__consumer_offsets", "g"))
        TROUBLE[trouble](cluster, victim)
        started = time.monotonic()
        assert admin.committed("g", [PARTITION]) == {PARTITION: None}
        assert time.monotonic() - started < 5
