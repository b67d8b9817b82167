"""How many requests a small micro-batch costs, once the Python workers are warm; without Spark."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.protocol import messages
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import workers
from tests.spark.query import COLUMNS, Query, options

TASKS = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def warm_requests(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Counter[int]]:
    """The requests of a micro-batch of eight tasks with a row each, by API key, after four such micro-batches.

    The first micro-batch asks for metadata more than once, with a back-off in between, which may end in the fifth.
    """
    topic = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, partitions=TASKS)
    query = Query(ArrowSink(options(cluster, topic, request.param), COLUMNS), monkeypatch, tmp_path)
    for number in range(8):
        cluster.clear_requests()
        writer = query.begun()
        rows = [
            pa.record_batch({"key": ["k"], "value": ["v"], "partition": pa.array([task], pa.int32())})
            for task in range(TASKS)
        ]
        reports = [query.task(writer, number, task, rows=[rows[task]]) for task in range(TASKS)]
        query.writer().commit(list(reports), number)
        # A connection to another node may open at any time.
        found = Counter(one.api_key for one in cluster.requests() if one.api_key != messages.API_VERSIONS)
        if number >= 4 and messages.METADATA not in found:
            break
    yield found
    workers.close_all()


@pytest.mark.parametrize("warm_requests", ["at_least_once"], indirect=True)
def test_warm_task_of_at_least_once_sends_one_request(warm_requests: Counter[int]) -> None:
    assert warm_requests == {messages.DESCRIBE_CONFIGS: 1, messages.PRODUCE: TASKS}


@pytest.mark.parametrize("warm_requests", ["exactly_once"], indirect=True)
def test_warm_task_of_exactly_once_sends_three_requests(warm_requests: Counter[int]) -> None:
    assert warm_requests == {
        messages.DESCRIBE_CONFIGS: 1,
        messages.PRODUCE: TASKS,
        messages.TXN_OFFSET_COMMIT: TASKS,
        messages.END_TXN: TASKS,
    }


@pytest.mark.parametrize("warm_requests", ["atomic"], indirect=True)
def test_warm_task_of_atomic_sends_two_requests_and_its_driver_nine(warm_requests: Counter[int]) -> None:
    assert warm_requests == {
        messages.DESCRIBE_CONFIGS: 1,
        messages.INIT_PRODUCER_ID: 1,
        messages.OFFSET_FETCH: 1,
        messages.PRODUCE: TASKS,
        messages.DESCRIBE_PRODUCERS: TASKS + 3,  # the driver asks every leader
        messages.DESCRIBE_TRANSACTIONS: 1,
        messages.TXN_OFFSET_COMMIT: 1,
        messages.END_TXN: 1,
    }
