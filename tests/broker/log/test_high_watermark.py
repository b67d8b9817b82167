"""The high watermark over a restart: Kafka's replication-offset-checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.clock import ManualClock
from tests.broker.replica.replication_support import NEVER, TOPIC, NoSocket, Rig, lag
from tests.virtual.loop import VirtualLoop

FILE = "replication-offset-checkpoint"


def written(folder: Path) -> list[str]:
    return [(folder / f"node-{node}" / FILE).read_text() for node in (1, 2, 3)]


def run(folder: Path) -> None:
    """A run that ends with two records on node 1, of which all replicas have the first."""
    rig = Rig(data_dir=folder)
    rig.produce(1, b"on all replicas")
    rig.advance(1)
    lag(rig, NEVER, 2, 3)
    rig.produce(1, b"on one replica", acks=1)
    assert (rig.ends(), rig.high_watermarks()) == ([2, 1, 1], [1, 1, 1])
    rig.close()


@contextmanager
def restored(folder: Path) -> Iterator[Cluster]:
    """A cluster that has read the folder, and whose nodes have not started."""
    loop = VirtualLoop(ManualClock())
    cluster = Cluster(ClusterConfig(brokers=3, data_dir=folder), ManualClock(), loop, NoSocket)
    loop.enter()
    cluster.logs.start()
    cluster._restore()
    yield cluster
    loop.do(cluster.stop)
    loop.close()


def high_watermarks(cluster: Cluster) -> list[int]:
    return [cluster.catalogue.replica(TOPIC, 0, node).log.high_watermark for node in (1, 2, 3)]


def test_checkpoint_is_written_when_the_cluster_stops(tmp_path: Path) -> None:
    run(tmp_path)
    assert written(tmp_path) == [f"0\n1\n{TOPIC} 0 1\n"] * 3


def test_checkpoint_is_written_by_the_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    with EmbeddedCluster(3, data_dir=tmp_path, clock=clock) as cluster:
        cluster.create_topic("t")
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
            producer.send("t", b"v", timestamp_ms=clock.time_ms()).result(10)
        leader, _ = cluster.leader("t", 0)
        clock.advance(1)
        cluster.tick()
        assert written(tmp_path)[leader - 1] == "0\n1\nt 0 1\n"


def test_copies_begin_with_the_high_watermark_of_the_last_run(tmp_path: Path) -> None:
    run(tmp_path)
    with restored(tmp_path) as cluster:
        assert high_watermarks(cluster) == [1, 1, 1]


def test_leader_shows_no_record_beyond_the_checkpoint_until_its_followers_have_it(tmp_path: Path) -> None:
    run(tmp_path)
    with restored(tmp_path) as cluster:
        partition = cluster.catalogue.topic(TOPIC).partition(0)
        cluster.nodes[1].listen()
        cluster.controller.admit(cluster.nodes[1])
        assert (partition.leader, partition.isr) == (1, (1, 2, 3))
        assert (partition.log.high_watermark, partition.log.end_offset) == (1, 2)
        for node in (2, 3):
            cluster.nodes[node].listen()
        cluster.loop.do(lambda: cluster.controller.admit(cluster.nodes[2], cluster.nodes[3]))  # type: ignore[attr-defined]
        assert partition.log.high_watermark == 2


def test_checkpoint_that_is_missing_or_wrong_shows_no_record_too_many(tmp_path: Path) -> None:
    run(tmp_path / "data")
    for number, (text, expected) in enumerate([(None, 0), ("0\n1\nt 0 x\n", 0), ("0\n1\nt 0 99\n", 2)]):
        folder = shutil.copytree(tmp_path / "data", tmp_path / str(number))
        (folder / "node-1" / FILE).unlink() if text is None else (folder / "node-1" / FILE).write_text(text)
        with restored(folder) as cluster:
            assert high_watermarks(cluster) == [expected, 1, 1]


def test_deleted_topic_leaves_the_checkpoint(tmp_path: Path) -> None:
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("t")
        cluster.create_topic("u")
        cluster._call(lambda c: c.logs.write_checkpoints())
        assert (tmp_path / "node-1" / FILE).read_text() == "0\n2\nt 0 0\nu 0 0\n"
        cluster._call(lambda c: c.catalogue.delete_topic("t"))
    assert (tmp_path / "node-1" / FILE).read_text() == "0\n1\nu 0 0\n"
