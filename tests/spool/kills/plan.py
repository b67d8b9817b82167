"""What one case does, drawn from its seed: the settings, the storms, the moments of the kills, and the trouble.

A case is some processes that open the same file, one after the other. All are killed but the last, which closes. Each
thread of each process has numbers of its own, and a record follows from its number: parent and child agree on it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

# Numbers of a thread, and threads of a process.
MOST, THREADS = 1_500, 2
# Neighbouring numbers go to the same topic, so that a call of send_many can take them.
_OF_A_TOPIC = 64
BATCH = 1_024
SMALL_LIMIT = 700  # max.message.bytes of a topic that refuses larger batches

# Topics with their partitions.
TOPICS = {"wide": 3, "narrow": 1}
SMALL = "small"
_SIZES = (0, 1, 7, 30, 90, 90, 90, 200, 450)
_OVERSIZE = (1_500, 4_000)
_LARGEST = 16_000  # bytes of a request: the face of confluent-kafka has memory for four of these at least

# What happens to the cluster before a kill, and what between two processes.
_BEFORE = ("up", "up", "up", "moved", "paused", "stopped", "killed", "restarted", "doubtful")
AWAY = ("made again", "deleted", "expired")
_EMBEDDED = (*_BEFORE, "made again", "deleted")
_REAL = ("up", "up", "up", "moved", "paused", "stopped", "killed", *AWAY, "expired")
_TRANSACTIONAL = ("up", "up", "moved", "paused", "stopped", "killed", "doubtful", "doubtful")
INSTANTS = ("records", "records", "opened", "started", "closing")
COMMITTING = "committing"  # an instant of a life with transactions


@dataclass(frozen=True)
class Record:
    """`partition` is None where the key decides."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None


@dataclass(frozen=True)
class Life:
    """One process. `instant` and `after` say when it is killed: so many records after its start, or seconds. The
    cluster is struck when the record `struck_at` is sent."""

    instant: str  # "": it is not killed
    after: float
    cluster: str
    struck_at: int
    threads: int
    records: int  # of each thread; the process then closes
    purges: bool
    close_timeout: float | None
    settings: dict[str, Any]
    face: str = ""  # "aio" or "confluent"; "": KafkaProducer
    forks: bool = False
    serializes: bool = False  # values pass a serializer


@dataclass(frozen=True)
class Plan:
    seed: int
    topics: dict[str, int]
    small: bool  # whether one topic refuses larger batches
    once: bool  # whether the promise is once, and not at least once
    magic: int
    now_ms: int
    lives: list[Life] = field(default_factory=list)
    transaction: int = 0  # numbers of a transaction; 0: there are no transactions
    json: bool = False  # values are JSON objects
    keeps: bool = False  # what cannot be proven stays in the file
    drops: bool = False  # a full buffer drops its oldest records

    def record(self, number: int) -> Record:
        mixed = (number * 0x9E3779B97F4A7C15 + self.seed * 0xC2B2AE3D27D4EB4F) & (1 << 64) - 1
        mixed ^= mixed >> 29
        names = list(self.topics)
        topic = names[number // _OF_A_TOPIC % len(names)]
        size = _SIZES[mixed % len(_SIZES)]
        if mixed >> 8 & 0x7F == 0 and topic != SMALL:
            size = _OVERSIZE[mixed >> 15 & 1]
        keyed = mixed >> 16 & 3 == 0
        many = self.magic == 2 and mixed >> 18 & 3 == 0
        return Record(
            topic=topic,
            partition=None if keyed else (mixed >> 20) % self.topics[topic],
            key=b"key %d" % (mixed >> 24 & 15) if keyed or mixed >> 28 & 1 else None,
            value=self._value(number, f"{mixed:x}" * (size // 16) + "." * (size % 16)),
            headers=(("first", b"%d" % number), ("empty", None))[: 1 + (mixed >> 30 & 1)] if many else (),
            timestamp_ms=self.now_ms + number if mixed >> 31 & 1 else None,
        )

    def _value(self, number: int, text: str) -> bytes:
        if self.json:
            return json.dumps({"number": number, "text": text}, separators=(",", ":")).encode()
        return f"{number}:{text}".encode()

    def number_in(self, value: bytes | None) -> int | None:
        """The number of the record with this value; None: no record has it."""
        if self.json:
            return int(json.loads(value)["number"]) if value and value.startswith(b'{"number":') else None
        digits, colon, _ = (value or b"").partition(b":")
        return int(digits) if colon and digits.isdigit() else None

    def transaction_of(self, number: int) -> tuple[int, int]:
        """The first number of the transaction, and the number behind its last."""
        thread = number - number % MOST
        first = number - (number - thread) % self.transaction
        return first, min(first + self.transaction, thread + MOST)


def end_of_topic(number: int) -> int:
    """The number behind the neighbours that go to the same topic."""
    return (number // _OF_A_TOPIC + 1) * _OF_A_TOPIC


def first_number(life: int, thread: int) -> int:
    return (life * THREADS + thread) * MOST


def life_of(number: int) -> int:
    return number // (THREADS * MOST)


def thread_of(number: int) -> int:
    return number // MOST


def drawn(seed: int, now_ms: int, *, splits: bool = True, real: bool = False) -> Plan:
    """`real`: for real Kafka, which takes no magic 1."""
    draw = Random(seed)
    magic = 1 if draw.random() < 0.1 and not real else 2
    once = magic == 2 and draw.random() < 0.9
    small = splits and draw.random() < 0.3
    transaction = draw.choice((1, 7, 40, 300)) if once and draw.random() < 0.25 else 0
    plan = Plan(
        seed,
        TOPICS | ({SMALL: 2} if small else {}),
        small,
        once,
        magic,
        now_ms,
        transaction=transaction,
        json=draw.random() < 0.2,
        keeps=draw.random() < 0.15,
        drops=draw.random() < 0.1 and not transaction,
    )
    shared = _settings(draw, plan)
    kills = draw.choice((1, 1, 1, 1, 2, 3))
    trouble: Sequence[str] = _TRANSACTIONAL if transaction else _EMBEDDED
    if real:
        trouble = tuple(kind for kind in _REAL if kind in trouble or not transaction)
    plan.lives.extend(_killed(draw, plan, shared, trouble) for _ in range(kills))
    plan.lives.append(_last(draw, plan, shared))
    return plan


def _settings(draw: Random, plan: Plan) -> dict[str, Any]:
    """Those that every process of the case has."""
    return {
        "buffer_memory": draw.choice((256, 1_024) if plan.keeps else (64, 256, 1_024)) * BATCH,
        "buffer_unproven": "keep" if plan.keeps else "deliver",
        "buffer_full": "drop_oldest" if plan.drops else draw.choice(("block", "block", "refuse")),
        "batch_size": BATCH,
        "record_magic": plan.magic,
        "enable_idempotence": plan.once,
        # Without idempotence only one batch in flight keeps the order.
        "max_in_flight_requests_per_connection": draw.choice((1, 2, 5)) if plan.once else 1,
        "acks": "all",
        "max_request_size": _LARGEST,
        "retry_backoff_ms": 5,
        "reconnect_backoff_ms": 5,
        "reconnect_backoff_max_ms": 50,
    } | ({"transactional_id": f"kills-{plan.seed}"} if plan.transaction else {})


def _changing(draw: Random, magic: int) -> dict[str, Any]:
    """Those that the next process may have otherwise."""
    codecs = ("none", "none", "none", "gzip", "snappy", "lz4", "zstd")
    return {
        "compression_type": draw.choice(codecs[:-1] if magic == 1 else codecs),
        "compression_thread_enable": draw.random() < 0.5,
        "linger_ms": draw.choice((0, 1, 5, 20)),
        "buffer_sync": draw.choice(("process",) * 6 + ("flush", "1")),
    }


# The face of confluent-kafka does not know them: it has magic 2 alone, and no codec in a thread.
_UNKNOWN_TO_CONFLUENT = ("record_magic", "compression_thread_enable")


def _life(draw: Random, plan: Plan, shared: dict[str, Any], **life: Any) -> Life:
    face = draw.choice(("",) * 5 + ("aio", "confluent"))
    settings = shared | _changing(draw, plan.magic)
    if face == "confluent" and plan.magic == 2:
        settings = {name: value for name, value in settings.items() if name not in _UNKNOWN_TO_CONFLUENT}
    elif face == "confluent":
        face = ""
    if face or plan.transaction:
        life["purges"] = False
    if face == "aio" or life["purges"] or plan.transaction:
        life["threads"] = 1
    forks = not face and draw.random() < 0.15
    serializes = not face and plan.json and draw.random() < 0.5
    return Life(**life, settings=settings, face=face, forks=forks, serializes=serializes)


def _last(draw: Random, plan: Plan, shared: dict[str, Any]) -> Life:
    return _life(
        draw,
        plan,
        shared,
        instant="",
        after=0.0,
        cluster="up",
        struck_at=0,
        threads=1,
        records=draw.choice((0, 5, 60)),
        purges=False,
        close_timeout=None,
    )


def _killed(draw: Random, plan: Plan, shared: dict[str, Any], trouble: Sequence[str]) -> Life:
    instant = draw.choice(INSTANTS + (COMMITTING,) * 6 * (plan.transaction > 0))
    cluster, struck_at = draw.choice(trouble), draw.choice((0, 0, 5, 50))
    after = _after(draw, instant)
    if instant == COMMITTING and cluster == "doubtful":
        after = struck_at  # no later transaction may come
    purges = draw.random() < 0.15
    return _life(
        draw,
        plan,
        shared,
        instant=instant,
        after=after,
        cluster=cluster,
        struck_at=struck_at,
        threads=draw.choice((1, 1, THREADS)),
        records=draw.choice((10, 200)) if instant == "closing" else MOST,
        purges=purges,
        close_timeout=draw.choice((None, 0.0, 0.002, 0.02)),
    )


def _after(draw: Random, instant: str) -> float:
    if instant in ("records", COMMITTING):
        return min(MOST - 1, int(2 ** draw.uniform(0, 10)))
    return draw.uniform(0, {"opened": 0.03, "started": 0.03, "closing": 0.01}[instant])
