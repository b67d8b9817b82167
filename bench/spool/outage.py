"""A broker that hangs for a day, at a tenth of the size: what the file holds, and how fast it is delivered.

The bench stops the broker's process (SIGSTOP) and lets it go on. It may take what was in flight: nobody can know, and
the proof has to find it out. The records are sent as fast as send() takes them, and not over hours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.clients import ARROW_ROWS, VALUE
from bench.harness import ROOT, topic
from bench.measure import BATCH_LARGE, LINGER_MS, RATE, arrivals
from bench.rss import MIB, forget_peak, peak, resident

A_DAY = 86_400 * 1_000  # records
A_TENTH = A_DAY // 10
BYTES_OF_A_DAY = 10 << 30
# So many records, with values that fill 1 GiB.
MANY, GIB = 10_000_000, 1 << 30
SHORT_VALUE = VALUE[:90]
FIRST = Metric("first_s", "s to the first record", ".2f", more_is_better=False, ratio=False)
RESIDENT = Metric("resident_mib", "MiB resident then", ".0f", more_is_better=False, ratio=False)
OWN = Metric("own_mib", "MiB of it not of the file", ".0f", more_is_better=False, ratio=False)
PEAK = Metric("peak_mib", "MiB resident at most", ".0f", more_is_better=False, ratio=False)
_LOOK_EVERY_S = 0.005
_SETTLED_AFTER_S = 1.0
_LISTENING = "0A"  # in /proc/net/tcp


def _settings(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": bootstrap, "batch_size": BATCH_LARGE, "linger_ms": LINGER_MS, "acks": "all", **more}


@contextmanager
def _stopped(bootstrap: str) -> Iterator[None]:
    """The broker takes no record during the `with`: each of its threads is stopped."""
    process = listener(int(bootstrap.rpartition(":")[2]))
    os.kill(process, signal.SIGSTOP)
    while any(status.read_text().split(") ")[1][0] != "T" for status in Path(f"/proc/{process}/task").glob("*/stat")):
        time.sleep(_LOOK_EVERY_S)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def listener(port: int) -> int:
    """The process of this machine that listens at a port. Raises RuntimeError if there is none."""
    rows = (line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:])
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENING and row[1].endswith(f":{port:04X}")}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # a process of another user, or one that ends just now
            if os.readlink(descriptor) in sockets:
                return int(descriptor.parts[2])
    raise RuntimeError(f"the claim stops the process of its broker, and none of this machine listens at port {port}")


def _end(admin: AdminClient, name: str) -> int:
    """The end of the topic's log."""
    place, latest = TopicPartition(name, 0), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    while True:
        try:
            return int(admin.list_offsets({place: latest})[place].result().offset)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.FENCED_LEADER_EPOCH:  # a stopped broker comes back as a new leader
                raise
            time.sleep(_LOOK_EVERY_S)


def _settled_end(bootstrap: str, name: str) -> int:
    """The end, once the broker has taken what a dead process had sent to it."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    end = -1
    while end != (end := _end(admin, name)):
        time.sleep(_SETTLED_AFTER_S)
    return end


class FirstArrival:
    """When the log first ends above an offset, and the memory of this process then, and at most until `join`."""

    def __init__(self, bootstrap: str, name: str, *, above: int = 0) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._name, self._above = name, above
        _end(self._admin, name)  # from here on it is connected
        self.arrived = 0.0
        self.figures: Measurement = {}
        forget_peak()
        self._started = time.perf_counter()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        asked = before = self._started
        while _end(self._admin, self._name) <= self._above:
            before = asked
            time.sleep(_LOOK_EVERY_S)
            asked = time.perf_counter()
        self.arrived = before  # when it had not arrived yet: a rate that counts from here is too low, never too high
        self.figures = {
            FIRST.name: time.perf_counter() - self._started,
            RESIDENT.name: resident() / MIB,
            OWN.name: _anonymous() / MIB,
        }

    def join(self) -> Measurement:
        self._thread.join()
        # The system's two counts may differ by some pages: it adds up those of the processors late.
        return self.figures | {PEAK.name: max(peak() / MIB, self.figures[RESIDENT.name])}


def _anonymous() -> int:
    """Resident bytes that no file has: all but the mapped file, and the code."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon:"))) * 1024


def _without_file(job: Job) -> Measurement:
    """send_arrow(), from the opening of its producer on."""
    import pyarrow as pa

    from kafkabuf import KafkaProducer

    rows = pa.record_batch({"value": pa.array([VALUE] * ARROW_ROWS, pa.binary())})
    with topic(job.bootstrap) as name, arrivals(Job(1, job.bootstrap, name)) as arrived:
        first = FirstArrival(job.bootstrap, name)
        with closing(KafkaProducer(_settings(job.bootstrap))) as producer:
            started = time.perf_counter()
            for _ in range(0, job.amount, ARROW_ROWS):
                producer.send_arrow(rows, name)
            producer.flush()
            rate = job.amount / (time.perf_counter() - started)
        arrived.expected = job.amount
        return first.join() | {RATE.name: rate}


def _same_process(job: Job) -> Measurement:
    """The process that sent during the outage delivers when the broker goes on."""
    from kafkabuf import KafkaProducer

    memory = round(job.amount * BYTES_OF_A_DAY / A_DAY)
    with (
        topic(job.bootstrap) as name,
        tempfile.TemporaryDirectory() as folder,
        arrivals(Job(1, job.bootstrap, name)) as arrived,
    ):
        settings = _settings(job.bootstrap, buffer_memory=memory, buffer_path=f"{folder}/buffer", max_block_ms=10_000)
        with closing(KafkaProducer(settings)) as producer:
            producer.send(name, VALUE).result(60)
            with _stopped(job.bootstrap):
                fill(producer.send, name, job.amount, VALUE)
            started = time.perf_counter()
            first = FirstArrival(job.bootstrap, name, above=1)
            producer.flush()
            rate = job.amount / (time.perf_counter() - started)
            figures = first.join()
        arrived.expected = job.amount + 1
        return figures | {RATE.name: rate}


def _killed(job: Job) -> Measurement:
    """The process that sent during the outage is killed. Another opens its file when the broker is back."""
    from kafkabuf import KafkaProducer

    memory = str(round(job.amount * GIB / MANY))
    with (
        topic(job.bootstrap) as name,
        tempfile.TemporaryDirectory() as folder,
        arrivals(Job(1, job.bootstrap, name)) as arrived,
    ):
        path = f"{folder}/buffer"
        command = [sys.executable, "-m", "bench.spool.outage", job.bootstrap, name, path, memory, str(job.amount)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            line = process.stdout.readline()
            with _stopped(job.bootstrap):
                process.stdin.write("the broker is away\n")
                process.stdin.flush()
                line += process.stdout.readline()
                process.kill()
                process.wait()
        if line != "opened\nsent\n":
            raise RuntimeError("the process that was to be killed did not send its records")
        present = _settled_end(job.bootstrap, name)
        first = FirstArrival(job.bootstrap, name, above=present)
        settings = _settings(job.bootstrap, buffer_memory=int(memory), buffer_path=path)
        with closing(KafkaProducer(settings)) as producer:
            producer.flush()
            figures = first.join()
            rate = (job.amount + 1 - present) / (time.perf_counter() - first.arrived)
            if producer.recovered is None or producer.recovered.records.total() != job.amount:
                raise RuntimeError(f"{producer.recovered} of {job.amount} records")
        arrived.expected = job.amount + 1
        return figures | {RATE.name: rate}


def fill(send: Any, name: str, records: int, value: bytes) -> None:
    for each in repeat(value, records):
        send(name, each)


def _send_and_wait(bootstrap: str, name: str, path: str, memory: str, records: str) -> None:
    """In a process of its own, which waits to be killed."""
    from kafkabuf import KafkaProducer

    settings: Mapping[str, Any] = _settings(bootstrap, buffer_memory=int(memory), buffer_path=path, max_block_ms=10_000)
    producer = KafkaProducer(settings)
    producer.send(name, SHORT_VALUE).result(60)
    print("opened", flush=True)
    sys.stdin.readline()
    fill(producer.send, name, int(records), SHORT_VALUE)
    print("sent", flush=True)
    time.sleep(600)
    os._exit(1)


NONE, SAME, KILLED = "send_arrow, no file", "outage, same process", "outage, killed, opened again"

CLAIM = Claim(
    name="spool-outage",
    title="A day's outage lies in 10 GiB, and is delivered at the speed of send_arrow()",
    cases=[
        Case(NONE, _without_file),
        Case(SAME, _same_process),
        Case(KILLED, _killed, share=MANY / A_TENTH),
    ],
    metrics=[RATE, FIRST, RESIDENT, OWN, PEAK],
    baseline=NONE,
    amount=A_TENTH,
    rounds=3,
    seconds=150,
    embedded=True,
    goals=[
        Goal("an outage is delivered, of send_arrow()'s rate", SAME, RATE.name, 0.7, NONE),
        Goal("a file of 1 GiB is delivered, of send_arrow()'s rate", KILLED, RATE.name, 0.7, NONE),
        Goal("s from opening 1 GiB of records to the first at the broker", KILLED, FIRST.name, 2, at_most=True),
        Goal("MiB resident at that time", KILLED, RESIDENT.name, 100, at_most=True),
        Goal("MiB resident at most, from the opening to the last record", KILLED, PEAK.name, 100, at_most=True),
    ],
    notes=[
        "acks=all, batch.size 128 KiB, one partition; values of 100 bytes, and of 90 in the killed process: 10 million "
        "records fill 1 GiB with them.",
        "The outage: a tenth of a day at 1,000 records/s, in a file of a tenth of 10 GiB. The records come as fast as "
        "send() takes them, while the broker's process is stopped (SIGSTOP).",
        "The first record counts when the broker has it. Resident memory has the pages of the file that the process "
        "has touched; the system takes these back when others need memory. The most of it counts from the opening, or "
        "from the moment at which the broker goes on, until all records are delivered.",
        "The rate counts from the moment at which the broker goes on; in the last case from the first record that the "
        "second process delivers. The file is in the page cache: it was written a moment before.",
    ],
)

if __name__ == "__main__":
    _send_and_wait(*sys.argv[1:])
