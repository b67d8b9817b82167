"""Recovered batches that become doubtful while they are sent: the cluster is asked before they go again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.batches._batch import Batch
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.process import threads
from kafkabuf.sending.recovery import Recovery
from tests.spool.test_producer import PATIENCE, PRODUCE, TOPIC, in_child, opened, stored
from tests.waiting import wait_until

VALUES = [b"%d" % number for number in range(20)]
NOT_ENOUGH_REPLICAS_AFTER_APPEND, OUT_OF_ORDER_SEQUENCE_NUMBER = 20, 45


def forget_ids(cluster: EmbeddedCluster) -> None:
    """The leader forgets all producers, as it does by the timestamps of old records."""
    leader, _ = cluster.leader(TOPIC, 0)
    cluster._call(lambda c: c.catalogue.topic(TOPIC).partition(0).led_by(leader).log.producers._entries.clear())


def left_in_many_batches(cluster: EmbeddedCluster, path: Path) -> None:
    """A process gets its producer id, sends nothing under it, leaves VALUES in the file, and is killed."""

    def run() -> None:
        producer = opened(cluster, path, batch_size=1)
        state = producer._accumulator.producer_state
        assert state is not None
        state.send_allowed = lambda topic, partition: False
        for value in VALUES:
            producer.send(TOPIC, value)
        wait_until(lambda: state.producer_id >= 0)

    in_child(run)


TROUBLES: dict[str, Callable[[EmbeddedCluster], object]] = {
    "lost connection": lambda cluster: cluster.drop_next(PRODUCE),
    "late followers": lambda cluster: cluster.fail_next(PRODUCE, NOT_ENOUGH_REPLICAS_AFTER_APPEND, after=True),
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("settings", [{}, {"max_in_flight_requests_per_connection": 1}])
def test_batch_that_was_appended_without_a_response_comes_once_although_the_leader_has_forgotten_its_id(
    cluster: EmbeddedCluster,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    settings: dict[str, Any],
) -> None:
    left_in_many_batches(cluster, path)
    requeue = Recovery.requeue

    def requeue_and_forget(recovery: Recovery, batch: Batch, *, soon: bool = False) -> None:
        forget_ids(cluster)
        requeue(recovery, batch, soon=soon)

    monkeypatch.setattr(Recovery, "requeue", requeue_and_forget)
    TROUBLES[trouble](cluster)
    with opened(cluster, path, batch_size=1, **settings) as producer:
        producer.send(TOPIC, b"new")
        producer.flush(PATIENCE)
        assert producer.recovered is not None
        assert producer.recovered.delivered == {(TOPIC, 0): len(VALUES)}
    assert stored(cluster) == [*VALUES, b"new"]


def test_batch_whose_numbers_are_refused_goes_under_new_numbers_once_the_cluster_lacks_it(
    cluster: EmbeddedCluster, path: Path
) -> None:
    left_in_many_batches(cluster, path)
    cluster.fail_next(PRODUCE, OUT_OF_ORDER_SEQUENCE_NUMBER, times=3)
    with opened(cluster, path, batch_size=1) as producer:
        producer.send(TOPIC, b"new")
        producer.flush(PATIENCE)
    assert stored(cluster) == [*VALUES, b"new"]


def test_batch_in_doubt_goes_again_where_no_thread_can_ask_for_it(
    cluster: EmbeddedCluster, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_in_many_batches(cluster, path)
    retry = Recovery.requeue

    def requeue_without_threads(recovery: Recovery, batch: Batch, *, soon: bool = False) -> None:
        monkeypatch.setattr(threads._Thread, "start", no_thread)
        retry(recovery, batch, soon=soon)

    def no_thread(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Recovery, "requeue", requeue_without_threads)
    cluster.drop_next(PRODUCE)
    with opened(cluster, path, batch_size=1) as producer:
        producer.flush(PATIENCE)
    assert stored(cluster) == VALUES
