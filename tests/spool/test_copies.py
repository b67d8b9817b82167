"""Copies of a buffer's file: what another process has delivered from the same file is found, and is not sent again."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.spool.recovered import Recovered
from tests.spool.test_producer import PATIENCE, PRODUCE, TOPIC, in_child, opened, stored

VALUES = [b"0", b"1", b"2"]
LINGERS = {"linger_ms": 600_000}


def copy_of(path: Path, name: str = "copy") -> Path:
    copy = path.with_name(name)
    shutil.copyfile(path, copy)
    copy.chmod(0o600)
    return copy


def left(cluster: EmbeddedCluster, path: Path, sent: list[bytes], *, topic: str = TOPIC) -> None:
    """A process sends some values, leaves VALUES in the file without having sent them, and is killed."""

    def run() -> None:
        producer = opened(cluster, path, **LINGERS)
        for value in sent:
            producer.send(TOPIC, value)
        producer.flush(PATIENCE)
        for value in VALUES:
            producer.send(topic, value)

    in_child(run)


def delivered_by(cluster: EmbeddedCluster, path: Path, *new: bytes, **settings: Any) -> Recovered:
    with opened(cluster, path, **settings) as producer:
        for value in new:
            producer.send(TOPIC, value)
        producer.flush(PATIENCE)
        assert producer.recovered is not None
        assert producer.recovered.pending == 0
        return producer.recovered


def test_copy_that_is_opened_after_the_delivery_delivers_nothing_twice_and_says_so(
    cluster: EmbeddedCluster, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kafkabuf.producer")
    left(cluster, path, [b"first"])
    copy = copy_of(path)
    assert not delivered_by(cluster, path, b"new").restored
    assert caplog.text == ""
    recovered = delivered_by(cluster, copy, b"of the copy")
    assert recovered.acknowledged == {(TOPIC, 0): 3}
    assert "has epoch 1 of this producer, and the file has epoch 0" in recovered.restored[TOPIC, 0]
    assert "copy is an old copy, another process has delivered from the same file" in caplog.text
    assert "3 records of this partition are in the cluster already" in caplog.text
    assert "an old copy, held 3 records" in str(recovered)
    assert stored(cluster) == [b"first", *VALUES, b"new", b"of the copy"]


def test_copies_are_told_where_the_process_had_sent_nothing_to_the_partition_yet(
    cluster: EmbeddedCluster, path: Path
) -> None:
    cluster.create_topic("other")
    left(cluster, path, [b"first"], topic="other")
    copies = [copy_of(path, f"copy-{number}") for number in range(3)]
    for copy in (path, *copies):
        delivered_by(cluster, copy)
    assert [message.value for message in cluster.messages("other")] == VALUES


def test_copy_of_a_process_that_still_lives_delivers_nothing_twice(cluster: EmbeddedCluster, path: Path) -> None:
    with opened(cluster, path, **LINGERS) as producer:
        producer.send(TOPIC, b"first")
        producer.flush(PATIENCE)
        for value in VALUES:
            producer.send(TOPIC, value)
        copy = copy_of(path)
        producer.send(TOPIC, b"appended to the batch after the copy was taken")
        producer.flush(PATIENCE)
        producer.send(TOPIC, b"last")
    recovered = delivered_by(cluster, copy)
    assert recovered.acknowledged == {(TOPIC, 0): 3}
    assert stored(cluster) == [b"first", *VALUES, b"appended to the batch after the copy was taken", b"last"]


def test_copy_is_told_by_the_log_once_the_leader_has_forgotten_the_producer(
    cluster: EmbeddedCluster, path: Path
) -> None:
    left(cluster, path, [b"first"])
    copy = copy_of(path)
    delivered_by(cluster, path)
    leader, _ = cluster.leader(TOPIC, 0)
    cluster._call(lambda c: c.catalogue.topic(TOPIC).partition(0).led_by(leader).log.producers._entries.clear())
    assert delivered_by(cluster, copy).acknowledged == {(TOPIC, 0): 3}
    assert stored(cluster) == [b"first", *VALUES]


def test_file_and_copy_that_are_open_together_deliver_once(cluster: EmbeddedCluster, path: Path) -> None:
    left(cluster, path, [b"first"])
    copies = [path, *(copy_of(path, f"copy-{number}") for number in range(3))]
    producers = [opened(cluster, copy) for copy in copies]
    for producer in producers:
        producer.send(TOPIC, b"new")
    for producer in producers:
        producer.close()
    assert stored(cluster) == [b"first", *VALUES, *[b"new"] * 4]


def test_records_that_copies_took_apart_from_each_other_are_never_taken_for_the_same(
    cluster: EmbeddedCluster, path: Path
) -> None:
    """Both processes meet no cluster, and are killed. Their records would have the same numbers, were they in line."""
    left(cluster, path, [b"first"])
    copies = {b"a": path, b"b": copy_of(path)}
    cluster.kill_node(1)
    for value, copy in copies.items():

        def take(value: bytes = value, copy: Path = copy) -> None:
            opened(cluster, copy, **LINGERS).send(TOPIC, value, timestamp_ms=1)

        in_child(take)
    cluster.start_node(1)
    producers = [opened(cluster, copy) for copy in copies.values()]
    for producer in producers:
        producer.close()
    assert stored(cluster)[:4] == [b"first", *VALUES]
    assert set(stored(cluster)[4:]) == {b"a", b"b"}
    assert len(stored(cluster)) == 6


def test_line_goes_on_where_killed_processes_have_left_it(cluster: EmbeddedCluster, path: Path) -> None:
    """The first process meets no cluster. The second gets no response to what the cluster has taken."""
    left(cluster, path, [b"first"])
    copy = copy_of(path)
    cluster.kill_node(1)
    in_child(lambda: opened(cluster, path, **LINGERS))
    cluster.start_node(1)
    cluster.drop_next(PRODUCE)
    patient = {"retry_backoff_ms": 600_000, "retry_backoff_max_ms": 600_000}
    in_child(lambda: opened(cluster, path, **patient), until=lambda: len(stored(cluster)) == 4)
    assert delivered_by(cluster, copy).acknowledged == {(TOPIC, 0): 3}
    delivered_by(cluster, path, b"new")
    assert stored(cluster) == [b"first", *VALUES, b"new"]


def test_process_whose_copy_is_opened_goes_on_under_a_new_id_and_is_told(
    cluster: EmbeddedCluster, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kafkabuf.producer")
    with opened(cluster, path, **LINGERS) as producer:
        producer.send(TOPIC, b"first")
        producer.flush(PATIENCE)
        producer.send(TOPIC, b"0")
        copy = copy_of(path)
        delivered_by(cluster, copy)
        for value in VALUES[1:]:
            producer.send(TOPIC, value)
            producer.flush(PATIENCE)
    assert stored(cluster) == [b"first", b"0", b"0", *VALUES[1:]]
    assert "another process has opened a copy of the file" in caplog.text


def test_file_for_another_cluster_is_told_and_delivered(
    cluster: EmbeddedCluster, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kafkabuf.producer")
    left(cluster, path, [b"first"])
    cluster._call(lambda c: setattr(c, "cluster_id", "another"))
    recovered = delivered_by(cluster, path, b"new")
    assert recovered.unproven == recovered.delivered == {(TOPIC, 0): 3}
    assert recovered.other_cluster == "the file is for cluster 'kafkabuf-embedded', and this is cluster 'another'"
    assert f"{recovered.other_cluster}: its records are delivered here" in caplog.text
    assert stored(cluster) == [b"first", *VALUES, b"new"]
    left(cluster, path, [])
    assert not delivered_by(cluster, path).other_cluster


def test_file_for_another_cluster_keeps_its_records_for_its_own_if_the_user_says_so(
    cluster: EmbeddedCluster, path: Path
) -> None:
    left(cluster, path, [b"first"])
    cluster._call(lambda c: setattr(c, "cluster_id", "another"))
    for _ in range(2):
        assert delivered_by(cluster, path, b"new", buffer_unproven="keep").kept == {(TOPIC, 0): 3}
    cluster._call(lambda c: setattr(c, "cluster_id", "kafkabuf-embedded"))
    recovered = delivered_by(cluster, path)
    assert "'kafkabuf-embedded, another'" in recovered.other_cluster  # the file has numbers of both
    assert stored(cluster) == [b"first", b"new", b"new", *VALUES]
