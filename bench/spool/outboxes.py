"""Stores with the promise of kafkabuf's file: a record whose call has returned survives the kill of its process.

A thread of each reads what is stored and delivers it, with a kafkabuf producer that has no file: the stores differ, and
nothing else. It forgets records once they are acknowledged, so that each is delivered at least once.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from bench.measure import BATCH_LARGE, LINGER_MS, Client, Publish

AT_MOST = 10_000  # records that the thread reads and delivers at a time
IDLE_S = LINGER_MS / 1000  # how long it waits when nothing is stored
# As text, which JSON holds without an encoding of its own: the other stores take the same 100 bytes.
TEXT = base64.b64encode(os.urandom(75)).decode()
VALUE = TEXT.encode()


class Outbox(Protocol):
    def put(self, value: bytes) -> object:
        """Store a record. It survives the process from here on. The application's thread."""

    def stored(self) -> Sequence[bytes]:
        """The oldest records, up to AT_MOST. The delivering thread, as below."""

    def forget(self) -> object:
        """Forget the records of the last `stored`."""


Opener = Callable[[Path], AbstractContextManager[Outbox]]


def delivering(open_: Opener) -> Client:
    """put() in a loop, while a thread delivers."""

    @contextmanager
    def client(bootstrap: str, topic: str) -> Iterator[Publish]:
        from kafkabuf import KafkaProducer

        def deliver() -> None:
            try:
                while not done.is_set():
                    if values := outbox.stored():
                        producer.send_many(topic, values).result(60)
                        outbox.forget()
                        delivered[0] += len(values)
                    else:
                        time.sleep(IDLE_S)
            except BaseException as error:
                failed.append(error)
                raise

        def publish(records: int) -> int:
            put, before = outbox.put, delivered[0]
            for _ in range(records):
                put(VALUE)
            while delivered[0] - before < records and not failed:
                time.sleep(0.001)
            if failed:
                raise RuntimeError(f"{delivered[0] - before} of {records} records were delivered") from failed[0]
            return records

        delivered, failed, done = [0], list[BaseException](), threading.Event()
        settings = {"batch_size": BATCH_LARGE, "linger_ms": LINGER_MS, "acks": "all"}
        with (
            tempfile.TemporaryDirectory() as folder,
            open_(Path(folder)) as outbox,
            closing(KafkaProducer(settings, bootstrap_servers=bootstrap)) as producer,
        ):
            thread = threading.Thread(target=deliver)
            thread.start()
            try:
                yield publish
            finally:
                done.set()
                thread.join()

    return client


def sqlite(synchronous: str) -> Opener:
    """A table in WAL mode, one transaction a record.

    synchronous=OFF survives the process. NORMAL, which many use, survives the machine without damage to the table, but
    not with all records.
    """

    @contextmanager
    def open_(folder: Path) -> Iterator[Outbox]:
        outbox = _Sqlite(folder / "outbox", synchronous)
        with closing(outbox.writer), closing(outbox.reader):
            yield outbox

    return open_


class _Sqlite:
    def __init__(self, path: Path, synchronous: str, *, new: bool = True) -> None:
        self.writer, self.reader = (
            sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60) for _ in range(2)
        )
        for connection in (self.writer, self.reader):
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")
        if new:
            self.writer.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, value BLOB)")
        self._last = 0

    def put(self, value: bytes) -> None:
        self.writer.execute("INSERT INTO outbox (value) VALUES (?)", (value,))

    def stored(self) -> list[bytes]:
        rows = self.reader.execute(f"SELECT id, value FROM outbox ORDER BY id LIMIT {AT_MOST}").fetchall()
        self._last = rows[-1][0] if rows else 0
        return [value for _, value in rows]

    def forget(self) -> None:
        self.reader.execute("DELETE FROM outbox WHERE id <= ?", (self._last,))


def json_lines(*, sync: bool) -> Opener:
    """A line of JSON a record, in one write(2). With `sync` fdatasync(2) follows each: it survives the machine too.

    A file beside it has the position up to which the lines are delivered. The lines are never removed.
    """

    @contextmanager
    def open_(folder: Path) -> Iterator[Outbox]:
        with (
            open(folder / "lines", "ab", buffering=0) as lines,
            open(folder / "lines", "rb") as reader,
            open(folder / "position", "wb", buffering=0) as position,
        ):
            yield _JsonLines(lines.fileno(), reader.fileno(), position.fileno(), sync)

    return open_


class _JsonLines:
    _AT_ONCE = AT_MOST * (len(TEXT) + 14)

    def __init__(self, lines: int, reader: int, position: int, sync: bool) -> None:
        self._lines, self._reader, self._position, self._sync = lines, reader, position, sync
        self._delivered = self._read = 0

    def put(self, value: bytes) -> None:
        os.write(self._lines, json.dumps({"value": value.decode()}).encode() + b"\n")
        if self._sync:
            os.fdatasync(self._lines)

    def stored(self) -> list[bytes]:
        found = os.pread(self._reader, self._AT_ONCE, self._delivered)
        whole = found[: found.rfind(b"\n") + 1]
        self._read = self._delivered + len(whole)
        return [json.loads(line)["value"].encode() for line in whole.splitlines()]

    def forget(self) -> None:
        self._delivered = self._read
        os.pwrite(self._position, struct.pack("q", self._delivered), 0)


def persist_queue(kind: str) -> Opener:
    """persist-queue's Queue (files) or SQLiteQueue, in the mode in which task_done() forgets what was read."""

    @contextmanager
    def open_(folder: Path) -> Iterator[Outbox]:
        import persistqueue

        if kind == "SQLiteQueue":
            queue: Any = persistqueue.SQLiteQueue(str(folder), multithreading=True, auto_commit=False)
            for connection in (queue._putter, queue._getter):
                connection.execute("PRAGMA synchronous=OFF")  # its own, FULL, waits for the disk at each record
        else:
            queue = persistqueue.Queue(str(folder), tempdir=str(folder))
        yield _PersistQueue(queue)

    return open_


class _PersistQueue:
    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.put = queue.put

    def stored(self) -> list[bytes]:
        return [self._queue.get() for _ in range(min(self._queue.qsize(), AT_MOST))]

    def forget(self) -> None:
        self._queue.task_done()
