"""Idempotence and transactions of the embedded broker: one script of raw requests beside real Kafka, and what a script
cannot show, on a manual clock."""

from __future__ import annotations

import uuid
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from kafkabuf.broker import EmbeddedCluster
from tests import transaction_script
from tests.raw_client import RawClient
from tests.real_kafka import RealKafka
from tests.transaction_script import Script


def answers(bootstrap: str, parts: tuple[Any, ...]) -> dict[str, Any]:
    topic = f"script-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, transaction_script.PARTITIONS, 1)])[topic].result(30)
    with RawClient(bootstrap) as client:
        script = Script(client, topic, topic)
        script.wait_for_coordinators()
        for part in parts:
            part(script)
    return script.answers


def test_kafka_4_answers_otherwise(kafka_4: RealKafka) -> None:
    with EmbeddedCluster() as cluster:
        ours = answers(cluster.bootstrap_servers, transaction_script.PARTS)
    assert ours == answers(kafka_4.bootstrap_servers, transaction_script.PARTS)
