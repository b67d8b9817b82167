"""Producers whose end comes at the wrong moment: `python -m tools.stress_ends [--runs 200]`.

Each run is a process of its own, which ends without close(), calls close(0), or is sent SIGINT at a moment drawn at
random while it blocks. It fails if it takes more than LIMIT seconds to be gone, crashes, hangs, does not get its
KeyboardInterrupt, or leaks. The runs take turns among the cases and among the brokers: one that answers, one that takes
connections and never answers, one that is not there.
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

LIMIT = 5.0  # seconds from the moment the end has begun
HANGS = 60.0  # seconds after which a run is killed
BEGUN = "the end begins"
ANSWERS = "answers"
TOPIC = "ends"

_kept: list[KafkaProducer] = []


# ---- what happens in a run's own process -----------------------------------------------------------------------------


def _open(servers: str, **settings: Any) -> KafkaProducer:
    small = {"bootstrap_servers": servers, "buffer_memory": 1 << 16, "batch_size": 1 << 12, "linger_ms": 5}
    return KafkaProducer(small | {"max_block_ms": 30_000} | settings)


def _busy(producer: KafkaProducer) -> None:
    """Two daemon threads that send for ever."""

    def send() -> None:
        while True:
            with contextlib.suppress(KafkaError):
                producer.send(TOPIC, bytes(500))

    for _ in range(2):
        threading.Thread(target=send, daemon=True).start()


def _fill(producer: KafkaProducer) -> None:
    """Queue what memory takes, whether the broker is there or not: the topic needs no metadata for that."""
    producer._accumulator.topic_queues(TOPIC, [1])
    for _ in range(50):
        producer.send(TOPIC, bytes(500))


def _begin() -> None:
    print(BEGUN, flush=True)


def exit_without_close(servers: str, answers: bool) -> None:
    producers = [_open(servers) for _ in range(5)]
    for producer in producers:
        _fill(producer)
        _busy(producer)
    _kept.extend(producers[1:])  # the first is collected before
    time.sleep(random.random() / 5)
    _begin()


def close_0(servers: str, answers: bool) -> None:
    producer = _open(servers)
    _fill(producer)
    futures = [producer.send(TOPIC, b"last") for _ in range(10)]
    _busy(producer)
    time.sleep(random.random() / 5)
    _begin()
    producer.close(0)
    assert all(future.done() for future in futures), "a future has no outcome after close(0)"
    _all_given_back(producer)


def interrupt_send(servers: str, answers: bool) -> None:
    """In the wait for memory or metadata, or between."""

    def send(producer: KafkaProducer) -> None:
        for number in range(1 << 40):
            producer.send(f"{TOPIC}-{number % 100}", bytes(500))

    _interrupted(servers, answers, send)


def interrupt_flush(servers: str, answers: bool) -> None:
    def flush(producer: KafkaProducer) -> None:
        while True:
            with contextlib.suppress(KafkaError):
                _fill(producer)
                producer.flush()

    _interrupted(servers, answers, flush, max_block_ms=50)


def interrupt_result(servers: str, answers: bool) -> None:
    def result(producer: KafkaProducer) -> None:
        producer._accumulator.topic_queues(TOPIC, [1])
        while True:
            with contextlib.suppress(KafkaError):
                producer.send(TOPIC, b"v").result()

    _interrupted(servers, answers, result, max_block_ms=50)


def interrupt_partitions_for(servers: str, answers: bool) -> None:
    def ask(producer: KafkaProducer) -> None:
        for number in range(1 << 40):
            with contextlib.suppress(KafkaError):
                producer.partitions_for(f"{TOPIC}-{number}")

    _interrupted(servers, answers, ask)


def interrupt_close(servers: str, answers: bool) -> None:
    def close(producer: KafkaProducer) -> None:
        _fill(producer)
        producer.close()
        time.sleep(HANGS)  # a broker that answers lets close() return before the signal

    _interrupted(servers, False, close)


def _interrupted(servers: str, usable: bool, blocks: Callable[[KafkaProducer], None], **settings: Any) -> None:
    """SIGINT while `blocks` runs; then the producer must be of use, and close(0) must find everything."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
    producer = _open(servers, **settings)

    def interrupt() -> None:
        time.sleep(0.05 + random.random() / 4)
        _begin()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
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
    seconds: float  # from the beginning of the end
    problem: str  # "": none


@contextlib.contextmanager
def brokers() -> Iterator[dict[str, str]]:
    """One that answers, one that takes connections and is silent, one that is not there: bootstrap servers by name."""
    with EmbeddedCluster() as cluster, socket.create_server(("127.0.0.1", 0), backlog=100) as mute:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            dead = gone.getsockname()[1]
        yield {
            ANSWERS: cluster.bootstrap_servers,
            "is mute": f"127.0.0.1:{mute.getsockname()[1]}",
            "is dead": f"127.0.0.1:{dead}",
        }


def run(case: str, broker: str, servers: str) -> Run:
    command = [sys.executable, "-X", "faulthandler", "-m", "tools.stress_ends", "--case", case, broker, servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        watchdog = threading.Timer(HANGS, child.kill)
        watchdog.start()
        begun = child.stdout.readline()
        started = time.monotonic()
        said = child.communicate()[1]
        watchdog.cancel()
    seconds = time.monotonic() - started
    return Run(case, broker, seconds, _problem(case, broker, begun, child.returncode, seconds, said))


def _problem(case: str, broker: str, begun: str, code: int, seconds: float, said: str) -> str:
    if code or not begun or "Traceback" in said:
        return f"exit code {code}: {said or 'nothing was said'}"
    if seconds > LIMIT:
        return f"took {seconds:.1f} s to be gone"
    if case == exit_without_close.__name__ and broker != ANSWERS and "may be lost" not in said:
        return f"unsent records, and no warning: {said!r}"
    return ""


def all_runs(runs: int, jobs: int) -> Iterator[Run]:
    """As they end. Cases and brokers take turns."""
    with brokers() as servers, ThreadPoolExecutor(jobs) as pool:
        turns = islice(zip(cycle(CASES), cycle(servers), strict=False), runs)  # of 7 and 3: all pairs in turn
        started = [pool.submit(run, case, broker, servers[broker]) for case, broker in turns]
        for future in as_completed(started):
            yield future.result()


@click.command(help=__doc__)
@click.option("--runs", default=200, show_default=True, type=click.IntRange(1))
@click.option("--jobs", default=4, show_default=True, type=click.IntRange(1), help="Processes at a time.")
@click.option("--case", "one", nargs=3, hidden=True)
def main(runs: int, jobs: int, one: tuple[str, str, str] | None) -> None:
    if one:
        case, broker, servers = one
        CASES[case](servers, broker == ANSWERS)
        return
    slowest = 0.0
    failed = 0
    for done in all_runs(runs, jobs):
        slowest = max(slowest, done.seconds)
        if done.problem:
            failed += 1
            click.echo(f"{done.case}, the broker {done.broker}: {done.problem}", err=True)
    click.echo(f"{runs} runs, {failed} failed; the slowest was gone after {slowest:.2f} s (allowed: {LIMIT:g})")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
