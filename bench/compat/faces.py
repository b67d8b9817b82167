"""The producers with other clients' names (kafkabuf.compat), against kafkabuf's own send() and those clients."""

from __future__ import annotations

from functools import partial

from bench import clients
from bench.claim import Case, Claim, Goal
from bench.measure import BATCH_LARGE, CPU, RATE, Client, measure

OWN, OWN_CALLBACK = "kafkabuf send", "kafkabuf send, callback"
KAFKA_FACE, KAFKA = "compat.kafka_python send", "kafka-python send"
CONFLUENT_FACE, CONFLUENT = "compat.confluent produce", "confluent-kafka produce"
CALLBACK_FACE, CALLBACK = "compat.confluent produce, callback", "confluent-kafka produce, callback"
# kafkabuf's send() and both faces fill batches of this size.
SIZE = BATCH_LARGE


def _case(name: str, client: Client, share: float = 1.0) -> Case:
    return Case(name, partial(measure, client), share)


CLAIM = Claim(
    name="compat",
    title="A face costs little, and a program that moves gains",
    cases=[
        _case(OWN, clients.kafkabuf(SIZE)),
        _case(KAFKA_FACE, clients.kafka_python(SIZE, "kafkabuf.compat.kafka_python")),
        _case(CONFLUENT_FACE, clients.confluent(module="kafkabuf.compat.confluent")),
        _case(OWN_CALLBACK, clients.kafkabuf(SIZE, callback=True)),
        _case(CALLBACK_FACE, clients.confluent(callback=True, module="kafkabuf.compat.confluent")),
        _case(CONFLUENT, clients.confluent()),
        _case(CALLBACK, clients.confluent(callback=True)),
        _case(KAFKA, clients.kafka_python(SIZE), share=0.05),
    ],
    metrics=[RATE, CPU],
    baseline=OWN,
    amount=1_000_000,
    seconds=25,
    goals=[
        Goal("compat.kafka_python of kafkabuf's send()", KAFKA_FACE, RATE.name, 0.85, OWN),
        Goal("compat.confluent, no callback, of kafkabuf's send()", CONFLUENT_FACE, RATE.name, 0.85, OWN),
        Goal("compat.kafka_python against kafka-python", KAFKA_FACE, RATE.name, 5, KAFKA),
        Goal(
            "compat.confluent, callback, of kafkabuf's send(), callback",
            CALLBACK_FACE,
            RATE.name,
            0.85,
            OWN_CALLBACK,
        ),
        Goal(
            "compat.confluent, no callback, against confluent-kafka with callback",
            CONFLUENT_FACE,
            RATE.name,
            5,
            CALLBACK,
        ),
        Goal(
            "compat.confluent, no callback, against the same of confluent-kafka",
            CONFLUENT_FACE,
            RATE.name,
            5,
            CONFLUENT,
        ),
        Goal("compat.confluent, callback, against the same of confluent-kafka", CALLBACK_FACE, RATE.name, 5, CALLBACK),
        Goal("CPU of compat.confluent, no callback", CONFLUENT_FACE, CPU.name, 1 / 5, CONFLUENT, at_most=True),
        Goal("CPU of compat.confluent with callback", CALLBACK_FACE, CPU.name, 1 / 2.5, CALLBACK, at_most=True),
    ],
    notes=[
        "acks=all, idempotent, one partition, 100-byte values, batch.size 128 KiB, linger.ms 5 in all cases.",
        "Each send() of kafkabuf and of compat.kafka_python returns a future. A record with callback has a Message in "
        "compat.confluent, as in confluent-kafka.",
        "Only a callback tells a program of confluent-kafka what became of a record; a send() has its future for that.",
        "confluent-kafka's threads in C use both cores: a busy machine limits the rates, and not the CPU times.",
        "kafka-python gets a twentieth of the records: rates and costs are per record.",
    ],
)
