"""send() in a loop with 100-byte values, against every other producer and a raw replay of ready-made batches."""

from __future__ import annotations

from functools import partial

from bench import clients, java
from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.measure import (
    BATCH_LARGE,
    BATCH_SMALL,
    CPU,
    LINGER_MS,
    RATE,
    VALUE_SIZE,
    Client,
    arrivals,
    measure,
)

REPLAY_SMALL, REPLAY_LARGE = "replay 16 KiB", "replay 128 KiB"
SEND_SMALL, SEND_LARGE = "kafkabuf send 16 KiB", "kafkabuf send 128 KiB"
# Idempotence is on by default; a case without it shows its cost.
NOT_IDEMPOTENT = {"enable_idempotence": False}
PLAIN_SMALL, PLAIN_LARGE = "kafkabuf send 16 KiB, not idempotent", "kafkabuf send 128 KiB, not idempotent"
SEND_CALLBACK = "kafkabuf send 128 KiB, callback"
SEND_TOLD = "kafkabuf send 128 KiB, opaque and on_acknowledged"
SEND_FULL = "kafkabuf send 128 KiB, key, 2 headers, callback"
CONFLUENT, CONFLUENT_BEST = "confluent-kafka, callback", "confluent-kafka, best setting"
CONFLUENT_BARE = "confluent-kafka, no callback"
CONFLUENT_FULL = "confluent-kafka, key, 2 headers, callback"
JAVA_LARGE = "Java 128 KiB, warm"
JAVA_TOOL = "Java's ProducerPerformance 128 KiB, cold"
# Enough records for Java's compiler to settle, however short the measured run is.
JAVA_WARM_UP = 1_000_000


def _case(name: str, client: Client, share: float = 1.0) -> Case:
    return Case(name, partial(measure, client), share)


def _java(batch_size: int, job: Job) -> Measurement:
    with arrivals(job) as arrived:
        settings = (batch_size, LINGER_MS, VALUE_SIZE)
        figures = java.run("SendLoop.java", job.bootstrap, job.topic, *settings, JAVA_WARM_UP, job.amount)
        arrived.expected = JAVA_WARM_UP + job.amount
    return figures


def _producer_performance(job: Job) -> Measurement:
    settings = {"acks": "all", "batch.size": BATCH_LARGE, "linger.ms": LINGER_MS}
    with arrivals(job) as arrived:
        figures = java.producer_performance(job.bootstrap, job.topic, job.amount, VALUE_SIZE, settings)
        arrived.expected = job.amount
    return figures


CLAIM = Claim(
    name="send",
    title="send() from Python nears what one socket can carry",
    cases=[
        _case(REPLAY_SMALL, clients.replay(BATCH_SMALL)),
        _case(REPLAY_LARGE, clients.replay(BATCH_LARGE)),
        _case(SEND_SMALL, clients.kafkabuf(BATCH_SMALL)),
        _case(SEND_LARGE, clients.kafkabuf(BATCH_LARGE)),
        _case(PLAIN_SMALL, clients.kafkabuf(BATCH_SMALL, settings=NOT_IDEMPOTENT)),
        _case(PLAIN_LARGE, clients.kafkabuf(BATCH_LARGE, settings=NOT_IDEMPOTENT)),
        _case(SEND_CALLBACK, clients.kafkabuf(BATCH_LARGE, callback=True)),
        _case(SEND_TOLD, clients.kafkabuf(BATCH_LARGE, told=True)),
        _case(SEND_FULL, clients.kafkabuf(BATCH_LARGE, full=True)),
        _case(CONFLUENT, clients.confluent(callback=True)),
        _case(CONFLUENT_BARE, clients.confluent()),
        _case(CONFLUENT_BEST, clients.confluent(settings=clients.CONFLUENT_BEST)),
        _case("confluent-kafka, best setting, produce_batch", clients.confluent_batches(clients.CONFLUENT_BEST)),
        _case(CONFLUENT_FULL, clients.confluent(full=True)),
        Case("Java 16 KiB, warm", partial(_java, BATCH_SMALL), check=java.require_compiler),
        Case(JAVA_LARGE, partial(_java, BATCH_LARGE), check=java.require_compiler),
        Case(JAVA_TOOL, _producer_performance, share=2, check=java.require_tools),
        _case("aiokafka send 128 KiB", clients.aiokafka(BATCH_LARGE), share=0.1),
        _case("aiokafka send_batch 128 KiB", clients.aiokafka(BATCH_LARGE, batches=True), share=0.1),
        _case("kafka-python send 128 KiB", clients.kafka_python(BATCH_LARGE), share=0.05),
    ],
    metrics=[RATE, CPU],
    baseline=CONFLUENT,
    amount=1_000_000,
    seconds=165,
    goals=[
        Goal("send(), 128 KiB, of the raw replay", SEND_LARGE, RATE.name, 0.85, REPLAY_LARGE),
        Goal("send(), 128 KiB, against confluent-kafka with callback", SEND_LARGE, RATE.name, 7, CONFLUENT),
        Goal("send(), 128 KiB, against confluent-kafka, no callback each", SEND_LARGE, RATE.name, 1, CONFLUENT_BARE),
        Goal("send(), 128 KiB, against warm Java", SEND_LARGE, RATE.name, 2, JAVA_LARGE),
        Goal("send(), default settings, of the raw replay", SEND_SMALL, RATE.name, 0.70, REPLAY_SMALL),
        Goal("send(), default settings, against confluent-kafka's best", SEND_SMALL, RATE.name, 4, CONFLUENT_BEST),
        Goal("CPU of send(), 128 KiB", SEND_LARGE, CPU.name, 1 / 7, CONFLUENT, at_most=True),
        Goal("send() with idempotence, 16 KiB, of that without", SEND_SMALL, RATE.name, 0.95, PLAIN_SMALL),
        Goal("send() with idempotence, 128 KiB, of that without", SEND_LARGE, RATE.name, 0.95, PLAIN_LARGE),
        Goal("send() with a callback", SEND_CALLBACK, RATE.name, 4, CONFLUENT),
        Goal("send() with key, two headers, callback", SEND_FULL, RATE.name, 4.5, CONFLUENT_FULL),
    ],
    notes=[
        "acks=all, one partition, 100-byte values; linger.ms 5 and batch.size 128 KiB unless a case says otherwise.",
        "Idempotence is on unless a case says otherwise; the replay has none.",
        "The replay sends a ready-made batch over and over. It encodes nothing, and is the limit of a connection.",
        f"confluent-kafka's best setting, found by a short search: {clients.CONFLUENT_BEST}; no callback.",
        "aiokafka gets a tenth of the records and kafka-python a twentieth: rates and costs are per record.",
        f"Java: {JAVA_WARM_UP:,} records of warm-up in the same process, a callback that counts failures.",
        "ProducerPerformance is a program of kafka-tools. It is never warm, and the JVM's start counts as CPU; it gets "
        "twice the records.",
    ],
)
