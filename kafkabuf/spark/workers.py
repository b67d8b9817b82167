"""The producers of this process: one per configuration, and those with transactions, each for one task.

Spark reuses its Python workers for task after task, one task at a time, and ends them with os._exit or SIGKILL. So a
producer lives as long as its worker, is never shared by two tasks at once, and nothing may be left for an exit handler:
each task flushes what it sent.

Only tasks import this module: it loads the extensions.
"""

from __future__ import annotations

import os

from kafkabuf.producer import KafkaProducer

Settings = tuple[tuple[str, str], ...]

# What giving a transaction up may take: its readers wait for its end, the task's retry for us.
_GIVE_UP_SECONDS = 5.0

# Keyed by process as well: a forked child must not use its parent's sockets and threads.
_producers: dict[tuple[int, Settings], KafkaProducer] = {}


def producer_for(settings: Settings) -> KafkaProducer:
    """This process's producer with `settings`, opened at the first call."""
    place = (os.getpid(), settings)
    producer = _producers.get(place)
    if producer is None:
        producer = _producers[place] = KafkaProducer(dict(settings))
    return producer


def discard(settings: Settings) -> None:
    """Close the producer at once, giving up what it has not sent; the next task opens a new one."""
    producer = _producers.pop((os.getpid(), settings), None)
    if producer is not None:
        producer.close(timeout=0)


def transactional(settings: Settings, transactional_id: str) -> KafkaProducer:
    """A new producer for transactions."""
    return KafkaProducer({**dict(settings), "transactional.id": transactional_id})


def give_up(producer: KafkaProducer) -> None:
    """Close a producer whose task has failed; its open transaction is aborted if that is quickly done."""
    producer.close(timeout=_GIVE_UP_SECONDS)
