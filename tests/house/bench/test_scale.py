"""The model of many producers: it loses no record, replays by its seed, and gives the answers that paper gives."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bench.scale import __main__ as scale
from bench.scale import jobs, transactions
from bench.scale.costs import Costs
from bench.scale.events import Cores, Simulation, Thread
from bench.scale.load import Load, Pattern
from bench.scale.model import Outcome, Place, simulate
from kafkabuf import KafkaProducer
from kafkabuf.admin.transactions import TransactionAdmin
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.config.model import ProducerConfig
from kafkabuf.protocol import messages
from kafkabuf.sharing import assign, pause, resume
from kafkabuf.spark.reports.marker import Marker, read_marker
from kafkabuf.spark.worker.place import MicroBatch

COSTS = Costs(
    call_s=5e-6, nap_s=1e-5, memory_wait_s=1e-5, record_s=5e-8, key_s=1e-8, batch_s=2e-6, request_s=2e-5, turn_s=3e-5,
    byte_s=5e-10, connection_s=4e-4, broker_batch_s=2e-5, broker_request_s=8e-5, broker_byte_s=1e-10, wait_s=1e-5,
    record_bytes=126.0, value_overhead_bytes=10.0, batch_bytes=61.0, request_bytes=50.0, entry_bytes=7.0,
    slab_bytes=16384.0, other_connections=1.0,
)  # fmt: skip
FREE = replace(COSTS, **{name: 0.0 for name in Costs.__dataclass_fields__ if name.endswith("_s")})
CLUSTER = Place(one_way_s=0.001)
LOADS = [
    Load(Pattern.KEYS, 2, 3, 30, rows=500, chunks=10),
    Load(Pattern.KEYS, 2, 3, 300, rows=600, chunks=2, buffer_memory=1 << 20),
    Load(Pattern.KEYS, 2, 3, 12, rows=100, chunks=20, every_s=0.003),
    Load(Pattern.STICKY, 2, 3, 12, rows=700, chunks=20),
    Load(Pattern.ALIGNED, 3, 3, 12, rows=5_000, chunks=5, buffer_memory=1 << 18),
    Load(Pattern.STICKY, 1, 3, 3, rows=1, chunks=20, wait_each=True),
]


def outcome(load: Load, given: Costs = COSTS, place: Place = CLUSTER, seed: int = 1) -> Outcome:
    return simulate(load, given, place, seed)


@pytest.mark.parametrize("shared_cores", [0, 2])
@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.pattern}-{load.partitions}-{load.rows}")
def test_every_record_of_the_model_is_acknowledged_once(load: Load, shared_cores: int) -> None:
    found = outcome(load, place=replace(CLUSTER, shared_cores=shared_cores))
    assert found.counts.records == found.acknowledged == load.records
    assert found.waiting == 0
    assert found.counts.batch_bytes == pytest.approx(
        load.records * COSTS.size(load) + found.counts.batches * COSTS.batch_bytes
    )
    assert sum(found.broker_requests) == found.counts.requests
    assert found.memory <= load.buffer_memory


def test_seed_gives_the_same_run_again() -> None:
    load = LOADS[1]
    assert outcome(load) == outcome(load)
    assert outcome(load, seed=2) != outcome(load)


def test_single_record_takes_the_sum_of_its_steps() -> None:
    load = Load(Pattern.STICKY, 1, 1, 1, rows=1, chunks=1)
    size = COSTS.value_overhead_bytes + load.value_bytes + COSTS.batch_bytes
    whole = size + COSTS.request_bytes + COSTS.entry_bytes
    append = COSTS.call_s + COSTS.record_s
    send = COSTS.wait_s + COSTS.turn_s + COSTS.request_s + COSTS.batch_s + whole * COSTS.byte_s
    broker = COSTS.broker_request_s + COSTS.broker_batch_s + whole * COSTS.broker_byte_s
    found = outcome(load)
    assert found.counts.request_bytes == pytest.approx(whole)
    assert found.counts.wall_s == pytest.approx(append + send + 0.002 + broker + COSTS.wait_s + COSTS.turn_s)


def test_one_partition_at_full_speed_is_paced_by_its_slowest_step() -> None:
    """The broker takes a millisecond a request, and everything else nothing: so many requests, so many milliseconds."""
    load = Load(Pattern.ALIGNED, 1, 1, 1, rows=1_290, chunks=10)
    given = replace(FREE, broker_request_s=0.001)
    batches = math.ceil(load.records / ((load.batch_size - given.batch_bytes) // given.record_bytes))
    found = outcome(load, given, Place(one_way_s=0.0))
    assert found.counts.batches == found.counts.requests == batches
    assert found.counts.wall_s == pytest.approx(batches * 0.001)


def test_round_trips_bound_the_rate_where_nothing_costs_time() -> None:
    """With one request in flight a request a round trip goes; five in flight are five times as fast."""
    load = Load(Pattern.ALIGNED, 1, 1, 1, rows=1_290, chunks=100, max_in_flight=1)
    one, five = (outcome(replace(load, max_in_flight=number), FREE) for number in (1, 5))
    assert one.counts.wall_s == pytest.approx(one.counts.requests * 0.002, rel=0.01)
    assert one.counts.wall_s / five.counts.wall_s == pytest.approx(5, rel=0.05)


def test_paced_records_wait_for_the_linger() -> None:
    """Every 2 ms a row for each of 4 partitions, on average: a batch has what comes within linger.ms of 10."""
    load = Load(Pattern.KEYS, 1, 1, 4, rows=400, every_s=0.002, chunks=500, linger_s=0.009, batch_size=1 << 20)
    found = outcome(load, FREE, Place(one_way_s=0.0))
    assert found.counts.records / found.counts.batches == pytest.approx(100 * 5, rel=0.02)
    assert found.counts.batches / found.counts.requests == pytest.approx(4)


@pytest.mark.parametrize("pattern", list(Pattern))
def test_tenth_of_the_producers_stands_for_all(pattern: Pattern) -> None:
    load = Load(pattern, 120, 3, 120, rows=2_000, chunks=3, every_s=0.02)
    whole, sample = outcome(load), simulate(load, COSTS, CLUSTER, share=10)
    assert sample.counts.records == sample.acknowledged == load.records
    assert sum(sample.broker_requests) == sample.counts.requests
    assert sample.counts.connections == whole.counts.connections
    for name in ("batches", "requests", "request_bytes", "cpu_s", "wall_s"):
        assert getattr(sample.counts, name) == pytest.approx(getattr(whole.counts, name), rel=0.1), name
    assert sample.broker_cpu_s == pytest.approx(whole.broker_cpu_s, rel=0.1)


def test_sample_that_leaves_producers_over_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiple"):
        simulate(LOADS[0], COSTS, CLUSTER, share=3)


def test_twice_the_brokers_get_half_the_requests_each() -> None:
    load = Load(Pattern.ALIGNED, 24, 3, 24, rows=5_000, chunks=4)
    few, many = outcome(load), outcome(replace(load, brokers=6))
    assert sum(few.broker_requests) == sum(many.broker_requests)
    assert max(few.broker_requests) == 2 * max(many.broker_requests)


def test_rows_without_keys_burden_every_broker_alike() -> None:
    load = Load(Pattern.STICKY, 60, 3, 30, rows=130 * 5, chunks=1)
    found = outcome(load)
    assert max(found.broker_bytes) < 1.4 * min(found.broker_bytes)


def test_aligned_producers_connect_to_one_leader() -> None:
    load = Load(Pattern.KEYS, 6, 3, 12, rows=120, chunks=2)
    assert outcome(load).counts.connections == 6 * (3 + 1)
    assert outcome(replace(load, pattern=Pattern.ALIGNED)).counts.connections == 6 * (1 + 1)


def test_keys_of_many_partitions_exhaust_the_buffer_and_send_crumbs() -> None:
    load = Load(Pattern.KEYS, 1, 3, 999, rows=5_000, chunks=2, buffer_memory=4 << 20)
    small, large = outcome(load), outcome(replace(load, buffer_memory=64 << 20))
    assert small.counts.waits > 0 == large.counts.waits
    assert small.counts.records / small.counts.batches < 2
    assert large.counts.records / large.counts.batches > 4


def test_smaller_memory_of_a_batch_is_taken_from_the_measurement() -> None:
    """Batches that grow in chunks leave room for more open batches: the model needs no change for them."""
    load = Load(Pattern.KEYS, 1, 3, 999, rows=5_000, chunks=2, buffer_memory=4 << 20)
    chunked = outcome(load, replace(COSTS, slab_bytes=1024.0))
    assert chunked.counts.waits == 0
    assert chunked.memory < 4 << 20


def test_partitions_that_brokers_share_unevenly_are_refused() -> None:
    with pytest.raises(ValueError, match="no multiple"):
        outcome(Load(Pattern.KEYS, 1, 3, 10))


def test_threads_share_cores_in_turn() -> None:
    simulation = Simulation()
    cores, ended = Cores(1), []
    for name in "ab":
        thread = Thread(simulation, cores)
        for _ in range(2):
            thread.do(1.0, lambda name=name: ended.append((name, simulation.now)))
    simulation.run()
    assert ended == [("a", 1.0), ("b", 2.0), ("a", 3.0), ("b", 4.0)]


def test_only_exactly_once_with_keys_has_a_transaction_of_all_partitions_for_each_task() -> None:
    keys, aligned = transactions.exactly_once(9, 30), transactions.exactly_once(30, 1)
    atomic = transactions.atomic(30, 30, 3)
    assert [asked.transactions for asked in (keys, aligned, atomic)] == [9, 30, 1]
    assert [asked.partitions for asked in (keys, aligned, atomic)] == [9 * 31, 60, 31]


def test_coordinators_are_asked_as_often_as_the_table_says() -> None:
    """The steps of a task of exactly_once, in two micro-batches: the second goes on from the note of the first."""
    name, asked = "scale-task", transactions.exactly_once(1, 4)
    requests = []
    with EmbeddedCluster() as running:
        running.create_topic("t", 4)
        settings = {"bootstrap.servers": running.bootstrap_servers, "transactional.id": "unassigned"}
        with (
            closing(KafkaProducer(settings)) as producer,
            closing(TransactionAdmin(ProducerConfig.from_mapping(settings))) as admin,
        ):
            assign(producer, name)
            producer.init_transactions()
            assert read_marker(admin, name, "t") is None
            for number in range(2):
                producer.begin_transaction()
                for partition in range(4):
                    producer.send("t", b"row", partition=partition)
                marker = Marker(MicroBatch(number, "query", "run"), 4, 0)
                producer.send_offsets_to_transaction({("t", 0): marker.offset()}, name)
                producer.commit_transaction()
                paused = pause(producer)
                assert paused is not None
                resume(producer, paused)
                others = (messages.PRODUCE, messages.METADATA, messages.API_VERSIONS)
                requests.append(sum(request.api_key not in others for request in running.requests()))
                running.clear_requests()
    assert requests == [asked.first_requests, asked.requests]


def test_jobs_need_no_uneven_brokers() -> None:
    assert all(way.load(size).partitions % size.brokers == 0 for size, way in jobs.chosen(jobs.SIZES))


def test_sample_of_each_size_has_as_many_tasks_for_each_broker() -> None:
    assert all(size.workers % (size.share * size.brokers) == 0 for size in jobs.SIZES)
    assert jobs.SIZES[-1].share > 1


def test_page_has_the_tables_of_the_model() -> None:
    """The rows of the two largest jobs take the model a minute: `python -m bench.scale` prints all."""
    page = Path("docs/scale.md").read_text()
    for columns, rows in (
        (jobs.COLUMNS, jobs.rows(jobs.SIZES[:2])),
        (transactions.COLUMNS, transactions.rows(jobs.SIZES)),
    ):
        for line in scale.markdown(columns, rows):
            assert line in page
