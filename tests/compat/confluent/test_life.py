"""compat.confluent: from the constructor to the end of a producer, its log and its callbacks."""

from __future__ import annotations

import gc
import json
import logging
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.compat import confluent
from kafkabuf.compat.confluent import Message, Producer
from kafkabuf.protocol.messages import PRODUCE
from tests.compat import TOPIC
from tests.compat.reports import PATIENCE, Reports, dead_address


def test_a_closed_producer_refuses_calls(new: Callable[..., Producer]) -> None:
    reports = Reports()
    with new() as producer:
        producer.produce(TOPIC, b"v", on_delivery=reports)
    assert reports.values == [b"v"]
    assert producer.close()
    assert len(producer) == 0
    for call in (lambda: producer.produce(TOPIC), producer.poll, producer.flush, producer.purge, producer.list_topics):
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            call()

    class Unopened(Producer):
        def __init__(self) -> None: ...

    with pytest.raises(RuntimeError, match="Producer has been closed"):
        Unopened().produce(TOPIC)
    assert len(Unopened()) == 0
    assert Unopened().close()


@pytest.mark.parametrize("reported", [False, True])
def test_a_producer_that_closes_within_produce_refuses_the_record(new: Callable[..., Producer], reported: bool) -> None:
    class Closing(dict[str, bytes]):
        def items(self) -> Any:
            producer.close()
            return super().items()

    producer, reports = new(), Reports()
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce(TOPIC, b"v", headers=Closing(a=b"b"), on_delivery=reports if reported else None)
    assert not reports.calls
    assert len(producer) == 0


def test_a_second_init_is_refused(new: Callable[..., Producer]) -> None:
    producer = new()
    with pytest.raises(RuntimeError, match="already"):
        producer.__init__({})  # type: ignore[misc]
    producer.produce(TOPIC, b"v")
    assert producer.flush(PATIENCE) == 0


def test_the_constructor_waits_for_no_name() -> None:
    started = time.monotonic()
    for settings in (
        {},
        {"bootstrap.servers": "no-such-host.invalid"},
        {"metadata.broker.list": "no-such-host.invalid:1"},
    ):
        producer = Producer(settings)
        producer._producer.close(0)
    assert time.monotonic() - started < 5


def test_a_message_comes_from_a_report_only() -> None:
    with pytest.raises(TypeError):
        Message()


def test_error_cb_hears_of_brokers_that_cannot_be_reached() -> None:
    heard: list[Any] = []
    producer = Producer({"bootstrap.servers": dead_address(), "error_cb": heard.append})
    producer.produce(TOPIC, b"v")
    deadline = time.monotonic() + PATIENCE
    while not heard and time.monotonic() < deadline:
        producer.poll(0.05)
    assert heard[0].code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    producer._producer.close(0)


@pytest.mark.parametrize("kind", [confluent_kafka.Producer, Producer])
def test_throttle_cb_hears_of_each_pause_and_of_its_end(kind: Any, cluster: EmbeddedCluster) -> None:
    heard: list[Any] = []
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "throttle_cb": heard.append}
    producer = kind(settings)
    producer.produce(TOPIC, b"v", partition=0)
    assert producer.flush(PATIENCE) == 0
    assert not heard
    cluster.throttle_next(PRODUCE, 50)
    deadline = time.monotonic() + PATIENCE
    while len(heard) < 2 and time.monotonic() < deadline:
        producer.produce(TOPIC, b"v", partition=0)
        producer.flush(PATIENCE)
        producer.poll(0)
    leader, _ = cluster.leader(TOPIC, 0)
    port = cluster.bootstrap_servers.split(",")[leader - 1]
    assert [str(event) for event in heard[:2]] == [f"{port}/{leader} throttled for {ms} ms" for ms in (50, 0)]
    assert [(event.broker_id, event.throttle_time) for event in heard[:2]] == [(leader, 0.05), (leader, 0.0)]


def test_an_error_of_throttle_cb_comes_out_of_poll(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    def raising(event: confluent.ThrottleEvent) -> None:
        raise ValueError(str(event))

    def send_and_flush() -> None:
        while True:
            producer.produce(TOPIC, b"v")
            producer.flush(PATIENCE)

    producer = new(throttle_cb=raising)
    cluster.throttle_next(PRODUCE, 50)
    with pytest.raises(ValueError, match="throttled for 50 ms"):
        send_and_flush()


class Lines:
    """A logger that has only what confluent-kafka calls."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def log(self, level: int, form: str, *arguments: str) -> None:
        self.texts.append(f"{level} {form % arguments}")


def test_the_users_logger_gets_the_lines_until_the_producer_closes() -> None:
    lines = Lines()
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "client.id": "named"}, logger=lines)
    logging.getLogger("kafkabuf.network").warning("%s", "seen")
    logging.getLogger("kafkabuf.broker").warning("of a broker")
    assert lines.texts[0].startswith("20 INIT [named]")
    assert "30 kafkabuf.network [named] seen" in lines.texts
    producer.close()
    logging.getLogger("kafkabuf.network").warning("late")
    assert not [text for text in lines.texts if "late" in text or "of a broker" in text]


def test_the_users_logger_gets_no_lines_of_another_producer() -> None:
    mine, others = Lines(), Lines()
    address = dead_address()
    producer = Producer({"bootstrap.servers": "", "logger": mine})
    failing = Producer({"bootstrap.servers": address, "logger": others})
    failing.produce(TOPIC, b"v")
    deadline = time.monotonic() + PATIENCE
    while not [text for text in others.texts if address in text]:
        assert time.monotonic() < deadline
        failing.poll(0.05)
    assert not [text for text in mine.texts if address in text]
    for each in (producer, failing):
        each.purge()
        each.close()


def test_a_logger_that_fails_stops_no_producer(new: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def log(self, *arguments: Any) -> None:
            calls.append(threading.current_thread().name)
            raise ZeroDivisionError

    calls: list[str] = []
    monkeypatch.setattr(logging, "raiseExceptions", False)
    settings = {"bootstrap.servers": dead_address(), "client.id": "failing", "message.timeout.ms": 100}
    failing = Producer(settings, logger=Failing())
    deadline = time.monotonic() + PATIENCE
    while "kafkabuf-log" not in calls and time.monotonic() < deadline:  # the Sender waits for no handler of a user's
        time.sleep(0.01)
    assert "kafkabuf-log" in calls
    for producer in (failing, new()):
        producer.produce(TOPIC, b"v")
        assert producer.flush(PATIENCE) == 0
    failing.close()


def test_the_users_logger_may_be_a_child_of_kafkabufs() -> None:
    logger = logging.getLogger("kafkabuf.user")
    producer = Producer({"bootstrap.servers": ""}, logger=logger)
    logger.warning("once")
    producer.close()


@pytest.mark.parametrize("logger", [3, logging, object()])
def test_a_logger_that_cannot_log_is_refused(logger: Any) -> None:
    before = list(logging.getLogger("kafkabuf").handlers)
    if logger is logging:
        Producer(logger=logger).close()  # its functions do
    else:
        with pytest.raises(TypeError, match="logger"):
            Producer(logger=logger)
    assert logging.getLogger("kafkabuf").handlers == before


def test_settings_of_consumers_are_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    expected = [f"Configuration property {name} is a consumer property" for name in sorted(settings)]
    peers, own = Lines(), Lines()
    for module, lines in ((confluent_kafka, peers), (confluent, own)):
        producer = module.Producer(settings | {"logger": lines})
        producer.poll(0.1)
        warned = sorted(text.split("[thrd:app]: ")[-1].split("] ")[-1] for text in lines.texts if "consumer" in text)
        assert [text[: len(start)] for text, start in zip(warned, expected, strict=True)] == expected
    Producer(settings).close()
    warned = [text for text in caplog.messages if "consumer" in text]
    assert [text[: len(start)] for text, start in zip(warned, expected, strict=True)] == expected


def test_error_cb_hears_that_all_brokers_are_down_without_a_record() -> None:
    heard: list[Any] = []
    producer = Producer({"bootstrap.servers": dead_address(), "error_cb": heard.append})
    deadline = time.monotonic() + PATIENCE
    while len(heard) < 2 and time.monotonic() < deadline:
        producer.poll(0.1)
    assert [error.code() for error in heard[:2]] == [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN]
    assert not any(error.fatal() for error in heard)
    while len(heard) < 6 and time.monotonic() < deadline:
        producer.poll(0.1)
    assert [error.code() for error in heard].count(KafkaError._ALL_BROKERS_DOWN) == 1
    producer.close()


def test_an_error_of_error_cb_comes_out_of_poll() -> None:
    def raising(error: Any) -> None:
        raise ZeroDivisionError(error.str())

    producer = Producer({"bootstrap.servers": dead_address(), "error_cb": raising})
    with pytest.raises(ZeroDivisionError):
        producer.poll(PATIENCE)
    producer._producer.close(0)


def test_stats_cb_gets_json_in_poll(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    texts: list[str] = []
    producer = new(stats_cb=texts.append, statistics__interval__ms=20, client__id="counted")
    producer.produce(TOPIC, b"v" * 100)
    assert producer.flush(PATIENCE) == 0
    texts.clear()
    assert producer.poll(PATIENCE) == 1
    found = json.loads(texts[0])
    assert found["name"].startswith("counted#producer-")
    assert (found["client_id"], found["type"], found["txmsgs"], found["msg_cnt"]) == ("counted", "producer", 1, 0)
    assert found["txmsg_bytes"] >= 100
    assert found["topics"][TOPIC]["txmsgs"] == 1
    leader = next(broker for broker in found["brokers"].values() if broker["nodeid"] >= 0)
    assert (leader["state"], leader["nodename"]) == ("UP", cluster.bootstrap_servers)
    assert leader["tx"] > 0


def statistics_of(producer: Any, texts: list[str]) -> dict[str, Any]:
    producer.produce(TOPIC, b"v" * 100, partition=1)
    assert producer.flush(PATIENCE) == 0
    texts.clear()
    while not texts:
        producer.poll(0.1)
    return json.loads(texts[0])  # type: ignore[no-any-return]


def test_statistics_have_librdkafkas_names_and_values(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    there: list[str] = []
    here: list[str] = []
    peer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "statistics.interval.ms": 20, "stats_cb": there.append}
    )
    theirs = statistics_of(peer, there)
    ours = statistics_of(new(stats_cb=here.append, statistics__interval__ms=20), here)
    leaders = [next(b for b in found["brokers"].values() if b["nodeid"] == 1) for found in (ours, theirs)]
    topics = [found["topics"][TOPIC] for found in (ours, theirs)]
    partitions = [topic["partitions"]["1"] for topic in topics]
    for mine, their in ((ours, theirs), leaders, topics, partitions):
        assert mine.keys() - their.keys() <= {"pid", "txmsgs", "txbytes", "eos"}
    assert theirs.keys() <= ours.keys()
    page = (Path(__file__).parents[3] / "docs" / "moving.md").read_text()
    left_out = set(
        re.findall(r"`(\w+)`", next(line for line in page.splitlines() if line.startswith("| `stats_cb` gets")))
    )
    assert leaders[1].keys() - leaders[0].keys() <= left_out, "the page names what is left out"
    assert topics[1].keys() - topics[0].keys() <= left_out
    assert partitions[1].keys() - partitions[0].keys() <= left_out
    same = partitions[0].keys() - {"msgq_bytes"}
    assert {name: partitions[0][name] for name in same} == {name: partitions[1][name] for name in same}
    assert {"rxmsgs", "consumer_lag", "leader", "msgq_cnt", "msgs_inflight"} <= same
    assert leaders[0]["toppars"] == {f"{TOPIC}-{number}": {"topic": TOPIC, "partition": number} for number in range(4)}
    for window in (leaders[0]["rtt"], topics[0]["batchsize"], topics[0]["batchcnt"]):
        assert 0 < window["avg"] <= window["max"] <= window["sum"]
        assert window["cnt"] > 0
    assert topics[0]["batchcnt"]["sum"] == 1


def test_statistics_count_the_records_that_wait(alone: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    texts: list[str] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 60_000, "message.timeout.ms": 120_000,
         "statistics.interval.ms": 20, "stats_cb": texts.append}
    )  # fmt: skip
    producer._producer.partitions_for(TOPIC)
    for _ in range(3):
        producer.produce(TOPIC, b"v", partition=2)
    while not texts:
        producer.poll(0.1)
    waits = json.loads(texts[-1])["topics"][TOPIC]["partitions"]["2"]
    assert (waits["msgq_cnt"], waits["msgs_inflight"], waits["msgq_bytes"] > 0) == (3, 0, True)
    producer._producer.close(0)


def test_statistics_of_a_producer_without_servers_name_no_broker() -> None:
    texts: list[str] = []
    producer = Producer({"bootstrap.servers": None, "statistics.interval.ms": 10, "stats_cb": texts.append})
    producer.poll(PATIENCE)
    assert json.loads(texts[0])["brokers"] == {}
    producer.close()


def test_poll_is_interrupted_by_a_signal(alone: Callable[..., Producer]) -> None:
    producer = alone()
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        producer.poll()


def test_purge_fails_records_in_flight(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    producer, reports = new(), Reports()
    producer.produce(TOPIC, b"known")
    producer.flush(PATIENCE)
    cluster.delay_next(PRODUCE, 2)
    cluster.clear_requests()
    producer.produce(TOPIC, b"v", partition=0, on_delivery=reports)
    cluster.wait_for_request(PRODUCE)
    producer.purge()
    assert producer.poll(PATIENCE) == 1
    assert reports.calls[0][0].code() in (KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE)
    assert len(producer) == 0


class Service:
    """A program's object, whose callback refers to the producer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.producer = Producer(settings)

    def on_delivery(self, error: Any, message: Message) -> None: ...


def ended(name: str) -> bool:
    """Whether a producer's thread ends, though nobody polls."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        gc.collect()
        if name not in [thread.name for thread in threading.enumerate()]:
            return True
        time.sleep(0.01)
    return False


def test_a_dropped_producer_sends_its_records_and_ends(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("dropped", 1)
    service = Service({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "dropped"})
    service.producer.produce("dropped", b"known")
    service.producer.flush(PATIENCE)
    service.producer.produce("dropped", b"v", on_delivery=service.on_delivery)
    face = weakref.ref(service.producer)
    del service
    assert ended("kafkabuf-dropped")
    assert face() is None
    assert cluster.end_offset("dropped", 0) == 2


def test_a_dropped_producer_without_a_broker_ends() -> None:
    service = Service({"bootstrap.servers": dead_address(), "client.id": "dropped-alone"})
    service.producer.produce(TOPIC, b"v", on_delivery=service.on_delivery)
    del service
    assert ended("kafkabuf-dropped-alone")


FORKING = """
import os, sys
from kafkabuf.compat.confluent import KafkaException, Producer

producer, reports = Producer({"bootstrap.servers": sys.argv[1]}), []
transactional = Producer({"bootstrap.servers": sys.argv[1], "transactional.id": "forked"})

def produce(value):
    producer.produce("forked", value, on_delivery=lambda error, message: reports.append((error, message.value())))

def in_child():
    assert len(producer) == 0
    produce(b"child")
    assert producer.flush(20) == 0 and reports[-1] == (None, b"child"), reports
    try:
        transactional.init_transactions(1)
    except KafkaException as error:
        return "fork" in str(error)

produce(b"known")
assert producer.flush(20) == 0
produce(b"parent")
child = os.fork()
if child == 0:
    os._exit(0 if in_child() else 1)
assert os.waitpid(child, 0)[1] == 0
assert producer.flush(20) == 0
assert reports == [(None, b"known"), (None, b"parent")], reports
"""


@pytest.mark.processes
def test_a_forked_child_has_a_producer_of_its_own(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("forked", 1)
    subprocess.run([sys.executable, "-c", FORKING, cluster.bootstrap_servers], check=True, timeout=60)
    assert cluster.end_offset("forked", 0) == 3


def test_credentials_can_be_replaced() -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    with EmbeddedCluster(security=Security(users={"new": "secret"})) as cluster:
        given = {"bootstrap.servers": cluster.bootstrap_servers, "sasl.username": "old", "sasl.password": "wrong"}
        cluster.pause_node(1)  # no connection authenticates with the old name
        producer, reports = Producer(settings | given), Reports()
        producer.set_sasl_credentials("new", "secret")
        producer.produce("t", b"v", on_delivery=reports)
        cluster.resume_node(1)
        assert producer.flush(PATIENCE) == 0
        assert reports.calls[0][0] is None
        with pytest.raises(TypeError):
            producer.set_sasl_credentials(None, "x")  # type: ignore[arg-type]
        producer.close()


def test_list_topics_has_the_shape_of_confluents(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    cluster.create_topic("listed", 3)
    found = new().list_topics(timeout=PATIENCE)
    peers: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=PATIENCE)
    assert found.cluster_id == peers.cluster_id
    assert found.controller_id == peers.controller_id
    assert {n: (b.id, b.host, b.port) for n, b in found.brokers.items()} == {
        n: (b.id, b.host, b.port) for n, b in peers.brokers.items()
    }
    assert (found.orig_broker_id, found.orig_broker_name) in {
        (n, f"{b.host}:{b.port}/{n}") for n, b in peers.brokers.items()
    }
    mine, theirs = found.topics["listed"], peers.topics["listed"]
    assert (mine.topic, mine.error) == (theirs.topic, theirs.error) == ("listed", None)
    assert {n: (p.id, p.leader, p.replicas, p.isrs, p.error) for n, p in mine.partitions.items()} == {
        n: (p.id, p.leader, p.replicas, p.isrs, p.error) for n, p in theirs.partitions.items()
    }
    missing = new().list_topics("missing", PATIENCE).topics
    assert list(missing) == ["missing"]
    assert missing["missing"].error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert "missing" not in cluster.topics()


def test_list_topics_says_that_no_broker_can_be_reached(alone: Callable[..., Producer]) -> None:
    with pytest.raises(KafkaException) as raised:
        alone().list_topics(timeout=0.1)
    assert raised.value.args[0].code() == KafkaError._TRANSPORT


@pytest.mark.parametrize(
    "partitioner",
    [None, "consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random", "random"],
)
def test_every_key_goes_where_confluent_sends_it(
    new: Callable[..., Producer], cluster: EmbeddedCluster, partitioner: str | None
) -> None:
    chosen = {} if partitioner is None else {"partitioner": partitioner}
    keys = [f"user-{n}".encode() for n in range(60)]
    if partitioner not in (None, "consistent_random"):  # these two let an empty key go anywhere
        keys.append(b"")
    found: list[list[int | None]] = []
    peer: Any = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, **chosen})
    for producer in (new(**chosen), peer):
        reports = Reports()
        for key in keys:
            producer.produce(TOPIC, b"v", key, on_delivery=reports)
        assert producer.flush(PATIENCE) == 0
        partitions = {message.key(): message.partition() for _, message in reports.calls}
        found.append([partitions[key] for key in keys])
    if partitioner == "random":
        assert all(partition in range(4) for partition in found[0])
    else:
        assert found[0] == found[1]


def run(script: str) -> subprocess.CompletedProcess[str]:
    program = f"from kafkabuf.compat.confluent import Producer\n{script}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)


def test_a_record_of_a_new_topic_is_sent_at_the_end_of_the_program(cluster: EmbeddedCluster) -> None:
    servers = cluster.bootstrap_servers
    done = run(
        f"producer = Producer({{'bootstrap.servers': {servers!r}, 'linger.ms': 60_000}})\n"
        "producer.produce('new-at-exit', b'v')\n"
    )
    assert done.stderr == ""
    assert cluster.messages("new-at-exit") == [b"v"]


def test_records_that_wait_for_their_topic_at_the_end_of_the_program_are_warned_of() -> None:
    done = run(
        "from kafkabuf.sending import lifetime\n"
        "lifetime.EXIT_TIMEOUT = 0.1\n"
        f"producers = [Producer({{'bootstrap.servers': {dead_address()!r}}}) for _ in range(2)]\n"
        "for producer in producers:\n"
        "    producer.produce('t', b'v'), producer.produce('t', b'v', callback=print)\n"
    )
    assert "RuntimeWarning: 4 records were not acknowledged within 0.1 s" in done.stderr
    assert "for 2 KafkaProducer(s)" in done.stderr
    assert "dropped" not in done.stderr, "they are warned of once"
    assert done.stdout == ""


def test_records_that_are_lost_with_a_dropped_producer_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Owner:
        """Refers to its producer, and the producer's callback to it."""

        def __init__(self, producer: Producer) -> None:
            self.producer = producer
            for _ in range(3):
                producer.produce("t", b"v", callback=self.delivered)

        def delivered(self, error: Any, message: Message) -> None: ...

    there = weakref.ref(Owner(Producer({"bootstrap.servers": dead_address()})))
    gc.collect()
    assert there() is None
    assert [r.getMessage() for r in caplog.records if "dropped" in r.getMessage()] == [
        "a Producer was dropped without flush(): 3 records are lost, which waited for a broker to describe their topic"
    ]


def test_a_producer_that_has_flushed_or_closed_is_dropped_without_a_word(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    for end in (Producer.flush, Producer.close):
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce(TOPIC, b"v")
        end(producer)
        del producer
    closed = Producer({"bootstrap.servers": dead_address(), "message.timeout.ms": 100})
    closed.produce("t", b"v")
    closed.close()
    del closed
    gc.collect()
    assert not [record for record in caplog.records if "dropped" in record.getMessage()]
