"""send_arrow() of whole record batches against the raw replay, our own send() loop and confluent-kafka."""

from __future__ import annotations

from functools import partial

from bench import clients
from bench.claim import Case, Claim, Goal
from bench.measure import BATCH_LARGE, BATCH_SMALL, CPU, RATE, measure

REPLAY, ARROW, SEND = "replay 128 KiB", "kafkabuf send_arrow 128 KiB", "kafkabuf send 128 KiB"
# The share of a case that takes several times as long.
SLOWER = 0.5

CLAIM = Claim(
    name="arrow",
    title="send_arrow() keeps pace with a raw replay at a fraction of send()'s CPU",
    cases=[
        Case("replay 16 KiB", partial(measure, clients.replay(BATCH_SMALL)), share=SLOWER),
        Case(REPLAY, partial(measure, clients.replay(BATCH_LARGE))),
        Case("kafkabuf send_arrow 16 KiB", partial(measure, clients.kafkabuf_arrow(BATCH_SMALL)), share=SLOWER),
        Case(ARROW, partial(measure, clients.kafkabuf_arrow(BATCH_LARGE))),
        Case(SEND, partial(measure, clients.kafkabuf(BATCH_LARGE)), share=SLOWER),
        Case("confluent-kafka, callback", partial(measure, clients.confluent(callback=True)), share=SLOWER),
        Case(
            "confluent-kafka, best setting",
            partial(measure, clients.confluent(settings=clients.CONFLUENT_BEST)),
            share=SLOWER,
        ),
    ],
    metrics=[RATE, CPU],
    baseline=REPLAY,
    amount=2_000_000,
    seconds=22,
    goals=[
        Goal("send_arrow(), 128 KiB, of the raw replay", ARROW, RATE.name, 0.95, REPLAY),
        Goal("CPU of send_arrow(), 128 KiB, of our own send() loop", ARROW, CPU.name, 1 / 3, SEND, at_most=True),
    ],
    notes=[
        f"Values of 100 bytes in a binary column, {clients.ARROW_ROWS:,} rows a batch; acks=all, linger.ms 5.",
        "Idempotence is on in all but the replay.",
        "All but the two fastest cases get half the records: rates and costs are per record.",
    ],
)
