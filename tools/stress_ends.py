"""Producers that end at the wrong moment: `python -m tools.stress_ends [--runs 200]`.

Each run is a process of its own. It ends without close(), calls close(0), or gets SIGINT at a random moment while it
blocks. A run fails if it takes more than LIMIT seconds to end, crashes, hangs, gets no KeyboardInterrupt, or leaks
memory. The runs take turns among the cases and among three brokers: a broker that responds, a broker that accepts
connections and never responds, and a broker that does not exist.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import click

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import KafkaError

LIMIT = 5.0  # seconds from the line BEGUN to the end of the process
HANGS = 60.0  # seconds after which a run is killed
BEGUN = "the end begins"
RESPONDS = "responds"
TOPIC = "ends"

_kept: list[KafkaProducer] = []


# ---- in a run's own process ------------------------------------------------------------------------------------------


def _open(servers: str, **settings: Any) -> KafkaProducer:
    small = {"bootstrap_servers": servers, "buffer_memory": 1 << 16, "batch_size": 1 << 12, "linger_ms": 5}
    return KafkaProducer(small | {"max_block_ms": 30_000} | settings)


def _start_senders(producer: KafkaProducer) -> None:
    """Start two daemon threads that send without an end."""

    def send() -> None:
        while True:
            with contextlib.suppress(KafkaError):
                producer.send(TOPIC, bytes(500))

    for _ in range(2):
        threading.Thread(target=send, daemon=True).start()


def _fill(producer: KafkaProducer) -> None:
    """Queue records, with or without a broker: the topic gets a partition without metadata."""
    producer._accumulator.topic_queues(TOPIC, [1])
    for _ in range(50):
        producer.send(TOPIC, bytes(500))


def _begin() -> None:
    print(BEGUN, flush=True)


def exit_without_close(servers: str, responds: bool) -> None:
    producers = [_open(servers) for _ in range(5)]
    for producer in producers:
        _fill(producer)
        _start_senders(producer)
    _kept.extend(producers[1:])  # the first producer is collected before the exit
    time.sleep(random.random() / 5)
    _begin()


def close_0(servers: str, responds: bool) -> None:
    producer = _open(servers)
    _fill(producer)
    futures = [producer.send(TOPIC, b"last") for _ in range(10)]
    _start_senders(producer)
    time.sleep(random.random() / 5)
    _begin()
    producer.close(0)
    assert all(future.done() for future in futures), "a future has no outcome after close(0)"
    _all_given_back(producer)


def interrupt_send(servers: str, responds: bool) -> None:
    """SIGINT comes in a wait for memory or metadata, or between two waits."""

    def send(producer: KafkaProducer) -> None:
        for number in range(1 << 40):
            producer.send(f"{TOPIC}-{number % 100}", bytes(500))

    _interrupted(servers, responds, send)


def interrupt_flush(servers: str, responds: bool) -> None:
    def flush(producer: KafkaProducer) -> None:
        while True:
            with contextlib.suppress(KafkaError):
                _fill(producer)
                producer.flush()

    _interrupted(servers, responds, flush, max_block_ms=50)


def interrupt_result(servers: str, responds: bool) -> None:
    def result(producer: KafkaProducer) -> None:
        producer._accumulator.topic_queues(TOPIC, [1])
        while True:
            with contextlib.suppress(KafkaError):
                producer.send(TOPIC, b"v").result()

    _interrupted(servers, responds, result, max_block_ms=50)


def interrupt_partitions_for(servers: str, responds: bool) -> None:
    def ask(producer: KafkaProducer) -> None:
        for number in range(1 << 40):
            with contextlib.suppress(KafkaError):
                producer.partitions_for(f"{TOPIC}-{number}")

    _interrupted(servers, responds, ask)


def interrupt_close(servers: str, responds: bool) -> None:
    def close(producer: KafkaProducer) -> None:
        _fill(producer)
        producer.close()
        time.sleep(HANGS)  # with a broker that responds, close() returns before the signal

    _interrupted(servers, False, close)


def _interrupted(servers: str, usable: bool, blocks: Callable[[KafkaProducer], None], **settings: Any) -> None:
    """SIGINT comes while `blocks` runs. The producer must still work if `usable`, and close(0) must free all memory."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT
    producer = _open(servers, **settings)

    def interrupt() -> None:
        time.sleep(0.05 + random.random() / 4)
        _begin()
        os.kill(os.getpid(), signal.SIGINT)

    try:
        threading.Thread(target=interrupt, daemon=True).start()  # on a busy machine the signal comes in here
        blocks(producer)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("no KeyboardInterrupt")
    assert producer.pool.waiting == 0, "the interrupted thread still stands in the pool's queue"
    assert not producer._metadata._waiters, "the interrupted thread still waits for metadata"
    if usable:
        assert producer.send(TOPIC, b"after").result(LIMIT)
    producer.close(0)
    _all_given_back(producer)


def _all_given_back(producer: KafkaProducer) -> None:
    producer.pool.check()
    books = producer.pool.accounting()
    assert books["free"] + books["loose"] == producer.pool.total, f"memory is missing: {books}"


CASES: dict[str, Callable[[str, bool], None]] = {
    case.__name__: case
    for case in (
        exit_without_close,
        close_0,
        interrupt_send,
        interrupt_flush,
        interrupt_result,
        interrupt_partitions_for,
        interrupt_close,
    )
}


# ---- the runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    case: str
    broker: str
    seconds: float  # from the line BEGUN to the end
    problem: str  # "" for a run that passed


@contextlib.contextmanager
def brokers() -> Iterator[dict[str, str]]:
    """The bootstrap servers of the three brokers, by name."""
    with EmbeddedCluster() as cluster, socket.create_server(("127.0.0.1", 0), backlog=100) as mute:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            dead = gone.getsockname()[1]
        yield {
            RESPONDS: cluster.bootstrap_servers,
            "is mute": f"127.0.0.1:{mute.getsockname()[1]}",
            "is dead": f"127.0.0.1:{dead}",
        }


def run(case: str, broker: str, servers: str, limit: float) -> Run:
    command = [sys.executable, "-X", "faulthandler", "-m", "tools.stress_ends", "--case", case, broker, servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        watchdog = threading.Timer(HANGS, child.kill)
        watchdog.start()
        begun = child.stdout.readline()
        started = time.monotonic()
        output = child.communicate()[1]
        watchdog.cancel()
    seconds = time.monotonic() - started
    return Run(case, broker, seconds, _problem(case, broker, begun, child.returncode, seconds, output, limit))


def _problem(case: str, broker: str, begun: str, code: int, seconds: float, output: str, limit: float) -> str:
    if code or not begun or "Traceback" in output:
        return f"exit code {code}: {output or 'no output'}"
    if seconds > limit:
        return f"took {seconds:.1f} s to end"
    if case == exit_without_close.__name__ and broker != RESPONDS and "may be lost" not in output:
        return f"unsent records, and no warning: {output!r}"
    return ""


def all_runs(runs: int, jobs: int, limit: float = LIMIT) -> Iterator[Run]:
    """The runs in the order of their ends. Cases and brokers take turns. A run may take `limit` seconds to end."""
    with brokers() as servers, ThreadPoolExecutor(jobs) as pool:
        turns = islice(zip(cycle(CASES), cycle(servers), strict=False), runs)  # 7 cases, 3 brokers: every pair comes
        started = [pool.submit(run, case, broker, servers[broker], limit) for case, broker in turns]
        for future in as_completed(started):
            yield future.result()


@click.command(help=__doc__)
@click.option("--runs", default=200, show_default=True, type=click.IntRange(1))
@click.option("--jobs", default=4, show_default=True, type=click.IntRange(1), help="Processes at a time.")
@click.option("--case", "single", nargs=3, hidden=True)
def main(runs: int, jobs: int, single: tuple[str, str, str] | None) -> None:
    if single:
        case, broker, servers = single
        CASES[case](servers, broker == RESPONDS)
        return
    slowest = 0.0
    failed = 0
    for done in all_runs(runs, jobs):
        slowest = max(slowest, done.seconds)
        if done.problem:
            failed += 1
            click.echo(f"{done.case}, the broker {done.broker}: {done.problem}", err=True)
    click.echo(f"{runs} runs, {failed} failed; the slowest ended after {slowest:.2f} s (allowed: {LIMIT:g} s)")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
