"""send() and send_arrow() with the buffer in a file, beside other stores that outlive the process."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from click import ClickException

from bench import clients
from bench.claim import Case, Claim, Goal
from bench.clients import ARROW_ROWS
from bench.measure import BATCH_LARGE, BATCH_SMALL, CPU, RATE, Client, Publish, measure
from bench.spool import outboxes

PLAIN, FILE = "kafkabuf send 128 KiB", "kafkabuf send 128 KiB, file"
PLAIN_SMALL, FILE_SMALL = "kafkabuf send 16 KiB", "kafkabuf send 16 KiB, file"
ARROW, ARROW_FILE = "kafkabuf send_arrow 128 KiB", "kafkabuf send_arrow 128 KiB, file"
CONFLUENT = "confluent-kafka, no callback"
VALUES: clients.Values = partial(repeat, outboxes.VALUE)


def in_file(client: Callable[[Mapping[str, Any]], Client]) -> Client:
    """The client with a new file for its buffer."""

    @contextmanager
    def open_(bootstrap: str, topic: str) -> Iterator[Publish]:
        with tempfile.TemporaryDirectory() as folder:
            settings = {"kafkabuf.buffer.path": str(Path(folder, "buffer"))}
            with client(settings)(bootstrap, topic) as publish:
                yield publish

    return open_


def _sending(batch_size: int, settings: Mapping[str, Any] | None = None) -> Client:
    return clients.kafkabuf(batch_size, values=VALUES, settings=settings)


def _arrow(settings: Mapping[str, Any] | None = None) -> Client:
    return clients.kafkabuf_arrow(BATCH_LARGE, settings=settings)


def _case(name: str, client: Client, share: float = 1.0, baseline: str = "") -> Case:
    return Case(name, partial(measure, client), share, baseline)


def _outbox(name: str, open_: outboxes.Opener, share: float, check: Callable[[], object] = lambda: None) -> Case:
    return Case(name, partial(measure, outboxes.delivering(open_)), share, check=check)


def _require_persist_queue() -> None:
    if importlib.util.find_spec("persistqueue") is None:
        raise ClickException("persist-queue is not installed: `make bench-spool` installs it")


CLAIM = Claim(
    name="spool",
    title="A buffer that outlives the process costs send() little, and far less than an outbox",
    cases=[
        # Seconds each: the first pass over the buffer, and the leader's first batches, are a small part of them.
        _case(PLAIN, _sending(BATCH_LARGE), 5),
        _case(FILE, in_file(partial(_sending, BATCH_LARGE)), 5),
        _case(PLAIN_SMALL, _sending(BATCH_SMALL), 3, PLAIN_SMALL),
        _case(FILE_SMALL, in_file(partial(_sending, BATCH_SMALL)), 3, PLAIN_SMALL),
        _case(ARROW, _arrow(), 3, ARROW),
        _case(ARROW_FILE, in_file(_arrow), 3, ARROW),
        _case(CONFLUENT, clients.confluent(values=VALUES), 0.5),
        _outbox("JSON lines, written", outboxes.json_lines(sync=False), 0.1),
        _outbox("JSON lines, fdatasync", outboxes.json_lines(sync=True), 0.002),
        _outbox("sqlite3 outbox, WAL, synchronous=OFF", outboxes.sqlite("OFF"), 0.05),
        _outbox("sqlite3 outbox, WAL, synchronous=NORMAL", outboxes.sqlite("NORMAL"), 0.05),
        _outbox("persist-queue SQLiteQueue", outboxes.persist_queue("SQLiteQueue"), 0.01, _require_persist_queue),
        _outbox("persist-queue Queue", outboxes.persist_queue("Queue"), 0.005, _require_persist_queue),
    ],
    metrics=[RATE, CPU],
    baseline=PLAIN,
    amount=1_000_000,
    seconds=100,
    embedded=True,
    goals=[
        Goal("send() with a file, 128 KiB, of that without", FILE, RATE.name, 0.93, PLAIN),
        Goal("send() with a file, default settings, of that without", FILE_SMALL, RATE.name, 0.93, PLAIN_SMALL),
        Goal("send() with a file, against confluent-kafka, no callback", FILE, RATE.name, 3, CONFLUENT),
        Goal("send_arrow() with a file, of that without", ARROW_FILE, RATE.name, 0.90, ARROW),
    ],
    notes=[
        "acks=all, one partition, 100-byte values; linger.ms 5 and batch.size 128 KiB unless a case says otherwise; "
        f"buffer.memory 32 MiB. send_arrow() gets {ARROW_ROWS:,} rows at a time.",
        "A file, JSON lines, sqlite3 and persist-queue have one promise: a record survives the kill of its process "
        "once the call has returned, and is delivered. confluent-kafka and the cases without a file do not have it.",
        "The rate counts from the first call to the last acknowledgement. In each outbox a second thread reads the "
        "records and delivers them with a kafkabuf producer without a file, up to 10,000 at a time.",
        "fdatasync after each line survives the loss of power too, which the promise does not ask for. The outboxes "
        "deliver at least once; kafkabuf's file delivers once. SQLiteQueue gets synchronous=OFF, which persist-queue "
        "has no setting for: with its own it waits for the disk at each record.",
        "Slow cases get a part of the records: rates and costs are per record. Vector's disk buffer is not measured: "
        "it is a program of its own, which no package of Python brings along.",
    ],
)
