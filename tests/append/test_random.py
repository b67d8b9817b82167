"""The state of Python's global random generator belongs to the user."""

from __future__ import annotations

import random

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster


def test_producer_does_not_advance_the_users_seeded_generator() -> None:
    with EmbeddedCluster() as cluster:
        before = random.getstate()
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send("seeded", b"value").result(10)
        cluster.stop_node(1)
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_block_ms=300) as producer:
            with pytest.raises(TimeoutError):
                producer.partitions_for("seeded")  # connects again and again meanwhile
        assert random.getstate() == before
