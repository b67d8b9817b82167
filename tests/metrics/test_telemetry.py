"""KIP-714: what the operator of a cluster subscribes to arrives, and a hostile subscription costs nothing."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import cramjam
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError, IllegalStateError, TimeoutError
from kafkabuf.metrics import otlp, telemetry
from kafkabuf.metrics.telemetry import Telemetry
from kafkabuf.protocol import messages
from tests.metrics.otlp_reader import read
from tests.network.support import ALL_VERSIONS, PATIENCE, FakeBroker, Received, Rig, brokers, cluster_of, rig
from tests.waiting import wait_until

GET, PUSH = messages.GET_TELEMETRY_SUBSCRIPTIONS, messages.PUSH_TELEMETRY
VERSIONS = {**ALL_VERSIONS, GET: (0, 0), PUSH: (0, 0)}
INSTANCE = UUID("c53d4e7a-6d62-4d57-8c61-9e5dd5f8c222")
SUBSCRIPTION: dict[str, Any] = {
    "error_code": 0,
    "client_instance_id": INSTANCE,
    "subscription_id": 7,
    "accepted_compression_types": (),
    "push_interval": 10_000,
    "telemetry_max_bytes": 1 << 20,
    "delta_temporality": False,
    "requested_metrics": ("",),
}
SENT = "org.apache.kafka.producer.record.send.total"


class Watched:
    """A client with telemetry, whose metrics are those in `snapshot`."""

    def __init__(self, rigged: Rig, broker: FakeBroker) -> None:
        self.rig, self.broker = rigged, broker
        self.snapshot: dict[str, dict[str, float]] = {
            "producer-metrics": {"record-send-total": 5.0, "batch-size-avg": 2.5, "batch-size-max": float("nan")},
            "producer-topic-metrics.größe": {"record-send-total": 3.0},
            "producer-node-metrics.node-1": {"request-latency-avg": 0.5},
        }
        self.telemetry = Telemetry(
            rigged.client.connections, rigged.clock, lambda: self.snapshot, {"transactional_id": "t-1"}, lambda: 0.5
        )
        rigged.client.connections.telemetry = self.telemetry

    def request(self) -> Received:
        """The next request for telemetry."""
        self.rig.poll_until(lambda: not self.broker.requests.empty())
        return self.broker.next_request()

    def subscribe(self, **changes: Any) -> None:
        request = self.request()
        assert request.header.api_key == GET
        request.reply_entity(**{**SUBSCRIPTION, **changes})
        self.rig.poll_until(lambda: not self.telemetry._under_way)

    def pushed(self, error_code: int = 0) -> Any:
        request = self.request()
        assert request.header.api_key == PUSH
        request.reply_entity(error_code=error_code)
        self.rig.poll_until(lambda: not self.telemetry._under_way)
        return request.entity()

    def quiet(self) -> bool:
        self.rig.settle()
        return self.broker.requests.empty()


@contextlib.contextmanager
def watched(versions: dict[int, tuple[int, int]] = VERSIONS) -> Iterator[Watched]:
    with brokers(versions=versions) as (broker,), rig(broker) as rigged:
        rigged.connect(0)
        yield Watched(rigged, broker)


def test_subscribed_metrics_arrive_at_each_interval() -> None:
    with watched() as client:
        first = client.request()
        assert first.entity().client_instance_id is None
        first.reply_entity(**SUBSCRIPTION)
        client.rig.poll_until(lambda: not client.telemetry._under_way)
        client.rig.clock.advance(9.9)
        assert client.quiet()
        client.rig.clock.advance(0.2)
        for _ in range(2):
            push = client.pushed()
            assert (push.client_instance_id, push.subscription_id) == (INSTANCE, 7)
            assert (push.terminating, push.compression_type) == (False, 0)
            resource, metrics = read(push.metrics)
            assert resource == {"transactional_id": "t-1"}
            assert {name: [(point.value, point.label, point.temporality) for point in points]
                    for name, points in metrics.items()} == {
                SENT: [(5.0, {}, otlp.CUMULATIVE)],
                "org.apache.kafka.producer.batch.size.avg": [(2.5, {}, None)],
                "org.apache.kafka.producer.node.request.latency.avg": [(0.5, {"node_id": "node-1"}, None)],
                "org.apache.kafka.producer.topic.record.send.total": [(3.0, {"topic": "größe"}, otlp.CUMULATIVE)],
            }  # fmt: skip
            assert metrics[SENT][0].time == client.rig.clock.time_ms() * 1_000_000
            assert client.quiet()
            client.rig.clock.advance(10)


def test_first_push_comes_after_half_to_one_and_a_half_intervals() -> None:
    for random, wait in ((0.0, 5.0), (0.99, 14.9)):
        with watched() as client:
            client.telemetry._random = lambda random=random: random  # type: ignore[misc]
            client.subscribe()
            client.rig.clock.advance(wait - 0.1)
            assert client.quiet()
            client.rig.clock.advance(0.2)
            client.pushed()


def test_delta_temporality_sends_what_was_added_since_the_last_push_that_arrived() -> None:
    with watched() as client:
        client.subscribe(delta_temporality=True, requested_metrics=(SENT,))
        seen = []
        for total, error_code in ((5.0, 0), (9.0, 118), (10.0, 0), (10.0, 0)):
            client.snapshot["producer-metrics"]["record-send-total"] = total
            client.rig.clock.advance(10)
            _, metrics = read(client.pushed(error_code).metrics)
            ((point,),) = metrics.values()
            seen.append((point.value, point.temporality))
            if error_code:
                client.rig.clock.advance(10)
                client.subscribe(delta_temporality=True, requested_metrics=(SENT,))
        assert seen == [(5.0, otlp.DELTA), (4.0, otlp.DELTA), (5.0, otlp.DELTA), (0.0, otlp.DELTA)]


def test_last_push_does_not_count_again_what_a_push_without_response_has_counted() -> None:
    with watched() as client:
        client.subscribe(delta_temporality=True, requested_metrics=(SENT,))
        client.rig.clock.advance(10)
        requests = [client.request()]
        client.snapshot["producer-metrics"]["record-send-total"] = 7.0
        assert client.telemetry.finish(client.rig.clock.monotonic())
        requests.append(client.request())
        pushes = [request.entity() for request in requests]
        assert [push.terminating for push in pushes] == [False, True]
        # On another connection it would overtake the first push, and a broker refuses pushes behind the last push.
        assert requests[0].sock is requests[1].sock
        assert [read(push.metrics)[1][SENT][0].value for push in pushes] == [5.0, 2.0]


@pytest.mark.parametrize(
    ("accepted", "sent"), [((4, 1), 4), ((3,), 3), ((1,), 1), ((2, 1), 1), ((0, 4), 0), ((99, -1), 0), ((), 0)]
)
def test_payload_has_the_first_compression_of_the_broker_that_the_client_knows(
    accepted: tuple[int, ...], sent: int
) -> None:
    with watched() as client:
        client.subscribe(accepted_compression_types=accepted)
        client.rig.clock.advance(10)
        push = client.pushed()
        assert push.compression_type == sent
        assert SENT in read(_expanded(push.metrics, sent))[1]


def _expanded(data: bytes, compression: int) -> bytes:
    if compression == 0:
        return data
    if compression == 1:
        return zlib.decompress(data, 31)
    library: Any = cramjam.lz4 if compression == 3 else cramjam.zstd
    return bytes(library.decompress(data))


@pytest.mark.parametrize("requested", [(), ("org.apache.kafka.consumer.",), ("kafka",)])
def test_without_a_metric_to_push_the_client_only_asks_again(requested: tuple[str, ...]) -> None:
    with watched() as client:
        client.subscribe(requested_metrics=requested)
        client.rig.clock.advance(10)
        request = client.request()
        assert (request.header.api_key, request.entity().client_instance_id) == (GET, INSTANCE)


def test_broker_without_telemetry_gets_no_request() -> None:
    for versions in (ALL_VERSIONS, {**ALL_VERSIONS, GET: (0, 0)}, {**VERSIONS, PUSH: (1, 2)}):
        with watched(versions) as client:
            client.rig.clock.advance(1000)
            assert client.quiet()


@pytest.mark.parametrize("error_code", [42, 87, 35, -1, 31])
def test_final_error_ends_telemetry_and_nothing_else(error_code: int) -> None:
    with watched() as client:
        client.request().reply_entity(**{**SUBSCRIPTION, "error_code": error_code})
        client.rig.poll_until(lambda: not client.telemetry._under_way)
        client.rig.clock.advance(100_000)
        assert client.quiet()


@pytest.mark.parametrize(("error_code", "wait"), [(117, 1.0), (76, 1.0), (118, 10.0), (89, 10.0)])
def test_refused_push_leads_to_a_new_subscription(error_code: int, wait: float) -> None:
    with watched() as client:
        client.subscribe()
        client.rig.clock.advance(10)
        client.pushed(error_code)
        client.rig.clock.advance(wait - 0.01)
        assert client.quiet()
        client.rig.clock.advance(0.02)
        assert client.request().header.api_key == GET


def test_lost_connection_is_no_end_of_telemetry() -> None:
    with watched() as client:
        client.request()
        client.broker.drop_connections()
        client.rig.poll_until(lambda: not client.telemetry._under_way)
        client.rig.clock.advance(299)
        assert client.quiet()
        client.rig.clock.advance(2)
        client.rig.connect(0)
        assert client.request().header.api_key == GET


@pytest.mark.parametrize("interval", [0, -1, -(2**31)])
def test_interval_of_no_use_becomes_five_minutes(interval: int) -> None:
    with watched() as client:
        client.subscribe(push_interval=interval)
        client.rig.clock.advance(299)
        assert client.quiet()
        client.rig.clock.advance(2)
        client.pushed()


def test_hostile_interval_makes_no_flood() -> None:
    with watched() as client:
        client.subscribe(push_interval=1)
        assert client.quiet()
        client.rig.clock.advance(0.11)
        client.pushed()
    with watched() as client:
        client.subscribe(push_interval=2**31 - 1)
        client.rig.clock.advance(1_000_000)
        assert client.quiet()


def test_unknown_subscription_again_and_again_makes_no_flood() -> None:
    with watched() as client:
        for _ in range(3):
            client.request().reply_entity(**{**SUBSCRIPTION, "error_code": 117})
            client.rig.poll_until(lambda: not client.telemetry._under_way)
            assert client.quiet()
            client.rig.clock.advance(1.01)


def test_thousands_of_names_are_a_small_subscription() -> None:
    names = tuple(f"org.apache.kafka.producer.x{number:04}" for number in range(3000))
    with watched() as client:
        client.subscribe(requested_metrics=("org.apache.kafka.consumer.a", "zzz", *names))
        assert client.telemetry._subscription is not None
        assert len(client.telemetry._subscription.prefixes) == telemetry.MOST_PREFIXES
    with watched() as client:
        client.subscribe(requested_metrics=(SENT[:-6], SENT, "org.apache.kafka.producer.", *names))
        assert client.telemetry._subscription is not None
        assert client.telemetry._subscription.prefixes == ("org.apache.kafka.producer.",)


@pytest.mark.parametrize("largest", [-(2**31), 0, 700, 2**31 - 1])
def test_payload_has_no_more_bytes_than_the_broker_takes(largest: int) -> None:
    with watched() as client:
        client.snapshot |= {f"producer-topic-metrics.{n}": {"record-send-total": 1.0} for n in range(20_000)}
        client.subscribe(telemetry_max_bytes=largest)
        client.rig.clock.advance(10)
        data = client.pushed().metrics
        assert len(data) <= max(min(largest, telemetry.LARGEST_PAYLOAD), 64)
        _, metrics = read(data)
        assert (SENT in metrics) == (largest >= 700), "the metrics of the whole producer come first"


def test_missing_client_instance_id_ends_telemetry() -> None:
    with watched() as client:
        client.subscribe(client_instance_id=None)
        client.rig.clock.advance(100_000)
        assert client.quiet()


def test_metrics_that_raise_end_telemetry_and_nothing_else() -> None:
    with watched() as client:
        client.subscribe()
        client.snapshot = None  # type: ignore[assignment]
        client.rig.clock.advance(10)
        client.rig.poll_until(lambda: client.telemetry._due == float("inf"))
        assert client.quiet()


# ---- the end ---------------------------------------------------------------------------------------------------------


class Subscribed(FakeBroker):
    """A broker that responds to every request for telemetry, but to the last push only if `takes_last` is set."""

    takes_last = True

    def __init__(self) -> None:
        super().__init__(versions=VERSIONS)
        self.pushes: list[Any] = []
        self.answers: dict[str, Any] = {}
        self.asked = 0

    def handle(self, request: Received) -> bool:
        if request.header.api_key == GET:
            request.reply_entity(**{**SUBSCRIPTION, "push_interval": 600_000, **self.answers})
            self.asked += 1
            return True
        if request.header.api_key == PUSH:
            self.pushes.append(request.entity())
            if self.takes_last:
                request.reply_entity(error_code=0)
            return True
        return False


def open_producer(broker: Subscribed, **settings: Any) -> KafkaProducer:
    broker.cluster = cluster_of(broker, topics={"t": 1})
    producer = KafkaProducer(bootstrap_servers=f"{broker.host}:{broker.port}", enable_idempotence=False, **settings)
    producer.partitions_for("t")
    return producer


def test_close_pushes_a_last_time() -> None:
    broker = Subscribed()
    with contextlib.closing(broker):
        producer = open_producer(broker, transactional_id=None)
        wait_until(lambda: broker.asked == 1)
        wait_until(lambda: producer._sender._client.telemetry._subscription is not None)  # type: ignore[union-attr]
        producer.close()
        (push,) = broker.pushes
        assert push.terminating
        names = read(push.metrics)[1]
        assert {SENT, f"{otlp.PREFIX}producer.connection.creation.rate"} <= names.keys()


def test_broker_that_does_not_take_the_last_push_delays_close_by_longest_end_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Subscribed()
    broker.takes_last = False
    for timeout, longest_end in ((None, 0.5), (0.05, 2 * PATIENCE), (0, 2 * PATIENCE)):
        monkeypatch.setattr(telemetry, "LONGEST_END", longest_end)
        with contextlib.closing(open_producer(broker)) as producer:
            asked = broker.asked
            wait_until(lambda p=producer: p._sender._client.telemetry._subscription)  # type: ignore[misc]
            start = time.monotonic()
            producer.close(timeout)
            assert time.monotonic() - start < PATIENCE
            assert broker.asked == asked
    broker.close()


def test_client_instance_id_is_that_of_the_broker() -> None:
    broker = Subscribed()
    with contextlib.closing(broker), contextlib.closing(open_producer(broker)) as producer:
        assert producer.client_instance_id(PATIENCE) == INSTANCE
        assert producer.client_instance_id(0) == INSTANCE
        with pytest.raises(ValueError, match="timeout"):
            producer.client_instance_id(-1)
    with pytest.raises(ClosedError):
        producer.client_instance_id(PATIENCE)


def test_client_instance_id_tells_why_there_is_none() -> None:
    broker = Subscribed()
    with contextlib.closing(broker):
        with (
            contextlib.closing(open_producer(broker, enable_metrics_push=False)) as producer,
            pytest.raises(IllegalStateError, match=r"enable\.metrics\.push"),
        ):
            producer.client_instance_id(PATIENCE)
        broker.answers = {"error_code": 42}
        with (
            contextlib.closing(open_producer(broker)) as producer,
            pytest.raises(IllegalStateError, match="InvalidRequest"),
        ):
            producer.client_instance_id(PATIENCE)
        broker.answers = {"error_code": 89}
        with contextlib.closing(open_producer(broker)) as producer:
            wait_until(lambda: broker.asked == 2)
            wait_until(lambda: producer._telemetry._due > 1)  # type: ignore[union-attr]
            with pytest.raises(TimeoutError, match="ThrottlingQuotaExceeded"):
                producer.client_instance_id(0.01)


@pytest.mark.parametrize("timeout", [None, 0])
def test_close_ends_the_wait_for_the_client_instance_id(timeout: float | None) -> None:
    broker = Subscribed()
    broker.answers = {"error_code": 89}
    with contextlib.closing(broker), ThreadPoolExecutor(1) as pool:
        producer = open_producer(broker)
        waiting = pool.submit(producer.client_instance_id, float("inf"))
        wait_until(lambda: broker.asked == 1)
        producer.close(timeout)
        assert isinstance(waiting.exception(PATIENCE), ClosedError)


def test_producer_without_metrics_push_sends_none() -> None:
    broker = Subscribed()
    with contextlib.closing(broker):
        producer = open_producer(broker, enable_metrics_push=False)
        assert producer._sender._client.telemetry is None
        producer.close()
        assert broker.asked == 0
        assert broker.pushes == []
