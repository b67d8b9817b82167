"""send() in a loop, 100-byte values, against every other producer and a raw replay of ready-made batches."""

from __future__ import annotations

from functools import partial

from bench import clients
from bench.claim import Case, Claim, Goal
from bench.measure import BATCH_LARGE, BATCH_SMALL, CPU, RATE, Client, measure

CONFLUENT, CONFLUENT_FULL = "confluent-kafka, callback", "confluent-kafka, key, 2 headers, callback"
SEND_SMALL, SEND_LARGE, SEND_FULL = (
    "kafkabuf send 16 KiB",
    "kafkabuf send 128 KiB",
    "kafkabuf send 128 KiB, key, 2 headers, callback",
)
REPLAY_SMALL, REPLAY_LARGE = "replay 16 KiB", "replay 128 KiB"


def _case(name: str, client: Client, share: float = 1.0) -> Case:
    return Case(name, partial(measure, client), share)


CLAIM = Claim(
    name="send",
    title="send() from Python nears what one socket can carry",
    cases=[
        _case(REPLAY_SMALL, clients.replay(BATCH_SMALL)),
        _case(REPLAY_LARGE, clients.replay(BATCH_LARGE)),
        _case(SEND_SMALL, clients.kafkabuf(BATCH_SMALL)),
        _case(SEND_LARGE, clients.kafkabuf(BATCH_LARGE)),
        _case("kafkabuf send 128 KiB, callback", clients.kafkabuf(BATCH_LARGE, callback=True)),
        _case(SEND_FULL, clients.kafkabuf(BATCH_LARGE, full=True)),
        _case(CONFLUENT, clients.confluent(callback=True)),
        _case("confluent-kafka, no callback", clients.confluent()),
        _case(CONFLUENT_FULL, clients.confluent(full=True)),
    ],
    metrics=[RATE, CPU],
    baseline=CONFLUENT,
    amount=1_000_000,
    goals=[
        Goal("send(), 128 KiB, of the raw replay", SEND_LARGE, RATE.name, 0.85, REPLAY_LARGE),
        Goal("send(), 128 KiB, against confluent-kafka with callback", SEND_LARGE, RATE.name, 7, CONFLUENT),
        Goal("send(), default settings, of the raw replay", SEND_SMALL, RATE.name, 0.70, REPLAY_SMALL),
        Goal("CPU of send(), 128 KiB", SEND_LARGE, CPU.name, 1 / 7, CONFLUENT, at_most=True),
        Goal("send() with key, two headers, callback", SEND_FULL, RATE.name, 4, CONFLUENT_FULL),
    ],
    notes=["kafkabuf has no idempotence yet; confluent-kafka has it on."],
)
