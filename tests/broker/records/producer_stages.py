"""The clusters of the script about producers: three embedded nodes on a manual clock, and three of real Kafka.

`python -m tests.broker.records.producer_stages` writes what Kafka answers into a file, so that each run of the tests
compares the embedded cluster with it. Another test compares the file with Kafka.
"""

from __future__ import annotations

import ast
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.clock import ManualClock
from rigs.real_cluster import RealCluster
from tests.broker.records.producer_script import Script, Stage
from tests.broker.records.producer_steps import PARTS
from tests.broker.storage.test_data_dir import forget

# What nodes of real Kafka need to do at once what the steps wait for.
OPTIONS = {
    "producer.id.expiration.check.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
    "log.cleaner.backoff.ms": "200",
}


class EmbeddedStage:
    """The steps restart the whole cluster where they restart a node: its state lies in a folder as that of a node."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self._folder = folder
        self.cluster = self._cluster()

    def _cluster(self) -> EmbeddedCluster:
        return EmbeddedCluster(
            3,
            data_dir=self._folder,
            clock=self.clock,
            min_insync_replicas=2,
            producer_id_expiration_check_interval_ms=200,
        )

    def __enter__(self) -> Self:
        self.cluster.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.cluster.stop()

    def address(self, node_id: int) -> str:
        host, port, _ = self.cluster.nodes()[node_id]
        return f"{host}:{port}"

    def now_ms(self) -> int:
        return self.clock.time_ms()

    def pause(self) -> None:
        self.clock.advance(1)
        self.cluster.tick()
        time.sleep(0.001)  # the followers' fetches need real time

    def restart(self, node_id: int) -> None:
        self.cluster.stop()
        self.cluster = self._cluster().start()

    def kill(self, node_id: int) -> None:
        forget(self.cluster)
        self.cluster = self._cluster().start()

    def bounce(self, node_id: int) -> None:
        self.cluster.stop_node(node_id)
        self.cluster.start_node(node_id)

    def move_leader(self, topic: str) -> None:
        leader, _ = self.cluster.leader(topic, 0)
        self.cluster.move_leader(topic, 0, leader % 3 + 1)


class RealStage:
    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster

    def address(self, node_id: int) -> str:
        return self.cluster.nodes[node_id].bootstrap_servers

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def pause(self) -> None:
        time.sleep(0.05)

    def restart(self, node_id: int) -> None:
        self.cluster.shut_down(node_id)
        self.cluster.restart(node_id)

    def kill(self, node_id: int) -> None:
        self.cluster.kill(node_id)
        self.cluster.restart(node_id)

    bounce = restart

    def move_leader(self, topic: str) -> None:
        self.cluster.move_leader(topic)


RECORDED = Path(__file__).with_name("producers-4.1.2.txt")


def answers(stage: Stage, part: Callable[[Script], None]) -> dict[str, Any]:
    script = Script(stage, f"producers-{uuid.uuid4().hex[:8]}")
    try:
        part(script)
    finally:
        script.close()
    return script.answers


def of_real_kafka() -> dict[str, dict[str, Any]]:
    """What Kafka 4.1.2 answers in each part."""
    with RealCluster(options=OPTIONS) as cluster:
        return {part.__name__: answers(RealStage(cluster), part) for part in PARTS}


def recorded() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        part, step, answer = line.split("\t")
        found.setdefault(part, {})[step] = ast.literal_eval(answer)
    return found


def record() -> None:
    """Writes the file of Kafka's answers."""
    parts = of_real_kafka()
    with RECORDED.open("w", encoding="utf-8") as file:
        for part, found in parts.items():
            file.writelines(f"{part}\t{step}\t{answer!r}\n" for step, answer in found.items())


if __name__ == "__main__":
    record()
