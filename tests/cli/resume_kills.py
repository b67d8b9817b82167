"""`kafkabuf produce --resume` that is killed again and again, with the broker too: what then has arrived.

Each row of an input has its number in its value. Some rows are faulty. `copies` counts by number what a consumer reads.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from pyarrow import ipc, parquet

from rigs.ports import free_ports

# `keyed` are lines with a separator behind the key.
KINDS = ("lines", "keyed", "jsonl", "csv", "parquet", "arrow")
_LINES = ("lines", "keyed")
TOPIC, PARTITIONS = "rows", 3
COMMAND = [sys.executable, "-m", "kafkabuf"]
# Small batches, so that a run lasts. A faulty line without a key, or row of a table, is larger than max.request.size.
SETTINGS = ["-X", "batch.size=2000", "-X", "max.request.size=4000", "-X", "reconnect.backoff.max.ms=200"]
FAULTY_EVERY, OVERLONG_EVERY = 997, 50_021
_TEXT = "x" * 40
_LONG = "y" * 5000
_OVERLONG = b"z" * 600_000  # longer than what the command reads at once
_NUMBER = re.compile(rb"\d+")
_WAIT = 120.0  # seconds


def is_faulty(kind: str, number: int) -> bool:
    return number % FAULTY_EVERY == 0 or (kind in _LINES and number % OVERLONG_EVERY == 0)


def value(kind: str, number: int) -> bytes:
    """Of a row that is not faulty."""
    if kind in _LINES:
        return b"%d %s" % (number, _TEXT.encode())
    if kind == "csv":  # whose columns are text
        return b'{"id":"%d","text":"%s"}' % (number, _TEXT.encode())
    return b'{"id":%d,"text":"%s"}' % (number, _TEXT.encode())


def letter(kind: str, number: int) -> bytes:
    """The line for a faulty row in the file of dead letters."""
    if kind in _LINES and number % OVERLONG_EVERY == 0:
        return b"%d %s" % (number, _OVERLONG)
    if kind == "lines":
        return b"%d %s" % (number, _LONG.encode())
    if kind == "keyed":
        return b"%d no separator" % number
    if kind == "jsonl":
        return b'{"id":%d,' % number
    if kind == "csv":
        return b"%d,text,one too many" % number
    return b'{"id":%d,"text":"%s"}' % (number, _LONG.encode())


def write(path: Path, kind: str, rows: int) -> None:
    """Rows 1 to `rows`."""
    if kind in ("parquet", "arrow"):
        _write_table(path, kind, rows)
        return
    with path.open("wb") as file:
        if kind == "csv":
            file.write(b"id,text\n")
        for number in range(1, rows + 1):
            file.write(_line(kind, number))


def _line(kind: str, number: int) -> bytes:
    if is_faulty(kind, number):
        return letter(kind, number) + b"\n"
    if kind == "csv":
        return b"%d,%s\n" % (number, _TEXT.encode())
    return (b"key:" if kind == "keyed" else b"") + value(kind, number) + b"\n"


def _write_table(path: Path, kind: str, rows: int) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    make = parquet.ParquetWriter if kind == "parquet" else ipc.new_file
    with make(str(path), schema) as writer:
        for first in range(1, rows + 1, 100_000):
            numbers = range(first, min(first + 100_000, rows + 1))
            texts = [_LONG if is_faulty(kind, number) else _TEXT for number in numbers]
            writer.write_table(pa.table([pa.array(numbers, pa.int64()), pa.array(texts)], schema=schema))


class BrokerProcess:
    """`kafkabuf broker` on a folder and a port that survive a kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap_servers = f"127.0.0.1:{self._port}"

    def start(self) -> None:
        command = [*COMMAND, "broker", "--data-dir", str(self._folder), "--port", str(self._port)]
        self._process = subprocess.Popen([*command, "--partitions", str(PARTITIONS)], stdout=subprocess.PIPE, text=True)
        out = self._process.stdout
        assert out is not None
        assert out.readline().startswith("bootstrap.servers=")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()


@contextmanager
def broker_process(folder: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(folder)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


@dataclass
class Run:
    """Runs of the command on one input. `settled` has the number of rows in the state behind each kill."""

    kind: str
    folder: Path
    broker: BrokerProcess
    rows: int
    random: random.Random
    settled: list[int] = field(default_factory=list)

    @property
    def input(self) -> Path:
        return self.folder / f"in.{self.kind}"

    @property
    def letters(self) -> Path:
        return self.folder / "letters"

    @property
    def state(self) -> Path:
        return Path(f"{self.input}.kafkabuf-resume")

    def until_done(self, kills: int) -> None:
        """The command, killed so many times, and then left to its end."""
        write(self.input, self.kind, self.rows)
        while True:
            with (self.folder / "errors").open("wb") as errors:
                process = subprocess.Popen(self._command(), stderr=errors)
                try:
                    killed = len(self.settled) < kills and self._kill(process)
                    # Each second a state is saved: how long the whole input takes, the machine decides.
                    while not killed and _lives(process, 0.01):
                        self._await_state(process)
                finally:
                    process.kill()
                    status = process.wait(_WAIT)
            if not killed:
                assert status == 0, (self.folder / "errors").read_text()
                return
            self.settled.append(self._settled())

    def _command(self) -> list[str]:
        options = ["--on-error", "dead-letter", "--dead-letter-file", str(self.letters), "--resume"]
        options += {"keyed": ["--key-separator", ":"], "jsonl": ["--key", "id"]}.get(self.kind, [])
        return [
            *COMMAND, "produce", TOPIC, str(self.input), "-f", "lines" if self.kind == "keyed" else self.kind, *options,
            *SETTINGS, "-b", self.broker.bootstrap_servers,
        ]  # fmt: skip

    def _kill(self, process: subprocess.Popen[bytes]) -> bool:
        """Kills at a random moment behind the first state of the run, or before it. False: the run ended before."""
        chance = self.random.random()
        if chance < 0.8:
            self._await_state(process)
        if chance < 0.3:
            self.broker.kill()
            _lives(process, self.random.uniform(0, 0.5))
            self.broker.start()
        if not _lives(process, self.random.uniform(0, 1.2)):
            return False
        process.kill()
        return True

    def _await_state(self, process: subprocess.Popen[bytes]) -> None:
        before, deadline = self._settled(), time.monotonic() + _WAIT
        while self._settled() == before and _lives(process, 0.01):
            assert time.monotonic() < deadline, "no state was saved"

    def _settled(self) -> int:
        return int(json.loads(self.state.read_bytes())["count"]) if self.state.exists() else 0


def _lives(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process lives for so long."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def numbers_of(pieces: Iterator[bytes], whole: Callable[[int], bytes]) -> Iterator[int | None]:
    """The number in each text that is as it was written; None for another text."""
    for text in pieces:
        found = _NUMBER.search(text)
        number = 0 if found is None else int(found[0])
        yield number if number and text == whole(number) else None


def arrived(broker: BrokerProcess) -> Iterator[bytes]:
    """All values of the topic, by librdkafka."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    try:
        places = [TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
        left = sum(consumer.get_watermark_offsets(place, timeout=_WAIT)[1] for place in places)
        consumer.assign(places)
        while left:
            messages = consumer.consume(min(left, 10_000), timeout=_WAIT)  # waits for as many
            assert messages, f"{left} records did not come"
            for message in messages:
                assert message.error() is None, message.error()
                yield message.value() or b""
            left -= len(messages)
    finally:
        consumer.close()


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    for line in file:
        yield line.removesuffix(b"\n")
