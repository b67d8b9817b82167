"""No memory at each allocation of each call that a user makes: `python -m tests.hostile.no_memory`.

For each call, for n = 0, 1, 2 ... and k = 1 to 8, the k allocations of the process from the nth on fail. It does not
matter which thread makes them: the caller's, the Sender's, or another. The broker is another process, and lacks none.

A MemoryError for the caller is well, and so is CPython's RuntimeError or SystemError in its place ("can't allocate
lock", "returned NULL without setting an exception"). These are faults: a crash, a hang, a thread of the Sender that has
ended, a future that never completes, a pool that is not whole afterwards, a producer that delivers no further record,
a call that goes on only at a time-out: all time-outs here are a minute or more.

A child process makes the calls of one case and one k, so that a crash is an outcome. After a fault a new child goes on
with the next n.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, ClassVar, Protocol, cast

import pyarrow as pa

from kafkabuf import KafkaProducer
from kafkabuf.append import _bulk_arrow, _bulk_many, report
from kafkabuf.compat.confluent import Producer as ConfluentProducer
from kafkabuf.compat.kafka_python import KafkaProducer as KafkaPythonProducer
from kafkabuf.errors import KafkaError

TOPIC = "no-memory"
PATIENCE = 60.0  # seconds for anything that must happen: more than that is a hang
LATE = 30.0  # seconds; a call and what it has left take some back-offs of milliseconds, unless they wait for a time-out
QUICK: dict[str, Any] = {
    "request_timeout_ms": 60_000,
    "socket_connection_setup_timeout_ms": 120_000,
    "socket_connection_setup_timeout_max_ms": 120_000,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 20,
}
BROKER = """
import sys
from kafkabuf.broker import EmbeddedCluster
with EmbeddedCluster(brokers=1) as cluster:
    print(cluster.bootstrap_servers, flush=True)
    sys.stdin.read()
"""
LOADED = (_bulk_arrow, _bulk_many, report)  # imported in the parent: a late import without memory is CPython's matter


class Testcapi(Protocol):
    def set_nomemory(self, start: int, stop: int, /) -> None: ...
    def remove_mem_hooks(self) -> None: ...


def memory_hooks() -> Testcapi | None:
    """CPython's module that makes allocations fail. None: this interpreter was built without it."""
    try:
        import _testcapi  # type: ignore[import-not-found]
    except ImportError:
        return None
    return cast(Testcapi, _testcapi) if hasattr(_testcapi, "set_nomemory") else None


class Fault(Exception):
    """What must not be so after a call that found no memory."""


class Case:
    """A call, made again and again with one producer."""

    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, servers: str, failures: int) -> None:
        module = memory_hooks()
        assert module is not None
        self._module = module
        self.servers, self.failures, self.first = servers, failures, 0
        self.open()

    @contextmanager
    def scarce(self) -> Iterator[None]:
        """Let allocations fail within the block. Swallows what the lack of memory raises in the block."""
        set_nomemory, start, stop = self._module.set_nomemory, self.first, self.first + self.failures
        try:
            set_nomemory(start, stop)
            yield
        except (MemoryError, SystemError):
            pass
        except RuntimeError as error:
            if "can't" not in str(error):
                raise
        finally:
            self._module.remove_mem_hooks()

    def core(self) -> KafkaProducer[Any, Any]:
        """The producer whose Sender and pool must be well."""
        return self.producer

    def open(self) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=self.servers,
            **{"linger_ms": 0, **QUICK, **self.settings},
        )

    def call(self) -> None:
        """Make the call without memory, and check what it has left, with memory."""
        raise NotImplementedError

    def check(self) -> None:
        """The Sender lives, delivers a record, and has given all memory back."""
        producer = self.core()
        if not producer._running.thread.is_alive():
            raise Fault("the Sender's thread has ended")
        if (error := producer.send(TOPIC, b"after").exception(PATIENCE)) is not None:
            raise Fault(f"a later record fails: {error!r}")
        producer.flush(PATIENCE)
        check_whole(producer)

    def close(self) -> None:
        self.core().close(PATIENCE)


def check_whole(producer: KafkaProducer[Any, Any]) -> None:
    """The pool is whole as soon as the Sender has ended its turn. The codec's scratch stays until close()."""
    deadline = time.monotonic() + PATIENCE
    while True:
        bytes_of = producer.pool.accounting()
        if bytes_of["free"] + bytes_of["scratch"] + bytes_of["loose"] == producer.pool.total:
            return producer.pool.check()
        if time.monotonic() > deadline:
            raise Fault(f"the pool is not whole: {bytes_of}")
        time.sleep(0.001)


class OfFuture(Case):
    """A case whose call returns a future or a report."""

    waits = False  # there is no memory until the future has its outcome, so that the Sender lacks memory too

    def start(self) -> Any:
        raise NotImplementedError

    def call(self) -> None:
        future: Any = None
        with self.scarce():
            future = self.start()
            if self.waits:
                future.exception(PATIENCE)
        if future is not None:
            future.exception(PATIENCE)


class Send(OfFuture):
    def start(self) -> Any:
        return self.producer.send(TOPIC, b"value")


class SendAndWait(Send):
    waits = True


class SendWithAll(OfFuture):
    waits = True

    def start(self) -> Any:
        return self.producer.send(TOPIC, b"value", b"key", {"name": b"value"}, callback=print_nothing)


class SendCompressed(SendAndWait):
    settings: ClassVar[dict[str, Any]] = {"compression_type": "lz4", "enable_idempotence": False}


class SendMany(OfFuture):
    def start(self) -> Any:
        return self.producer.send_many(TOPIC, [b"one", b"two", b"three"], keys=[None, b"key", b""])


class SendManyAndWait(SendMany):
    waits = True


class SendArrow(OfFuture):
    def open(self) -> None:
        super().open()
        self.table = pa.table({"value": [b"one", b"two", b"three"], "key": ["a", None, "b"]})

    def start(self) -> Any:
        return self.producer.send_arrow(self.table, TOPIC)


class SendArrowAndWait(SendArrow):
    waits = True


class Flush(Case):
    settings: ClassVar[dict[str, Any]] = {"linger_ms": 600_000}

    def call(self) -> None:
        future = self.producer.send(TOPIC, b"value")
        with self.scarce():
            self.producer.flush(PATIENCE)
        self.producer.flush(PATIENCE)
        future.exception(0)

    def check(self) -> None:
        later = self.producer.send(TOPIC, b"after")
        self.producer.flush(PATIENCE)
        if later.exception(0) is not None:
            raise Fault(f"a later record fails: {later.exception(0)!r}")
        check_whole(self.producer)


class Result(Case):
    def call(self) -> None:
        future = self.producer.send(TOPIC, b"value")
        with self.scarce(), suppress(KafkaError):
            future.result(PATIENCE)
        future.exception(PATIENCE)


class Metrics(Case):
    def call(self) -> None:
        with self.scarce():
            self.producer.metrics()


class Close(Case):
    """The producer is opened anew for each call."""

    def call(self) -> None:
        self.close()
        self.open()
        futures = [self.producer.send(TOPIC, b"value") for _ in range(3)]
        producer, thread = self.producer, self.producer._running.thread
        with self.scarce():
            producer.close(PATIENCE)
        producer.close(PATIENCE)
        thread.join(PATIENCE)
        if thread.is_alive():
            raise Fault("the Sender's thread goes on after close()")
        for future in futures:
            future.exception(0)
        self.open()


class Transaction(Case):
    settings: ClassVar[dict[str, Any]] = {"transactional_id": "no-memory"}
    ends = "commit_transaction"

    def open(self) -> None:
        super().open()
        self.producer.init_transactions()

    def call(self) -> None:
        future: Any = None
        with self.scarce(), suppress(KafkaError):
            self.producer.begin_transaction()
            future = self.producer.send(TOPIC, b"value")
            getattr(self.producer, self.ends)()
        with suppress(KafkaError):  # the call may be under way
            getattr(self.producer, self.ends)()
        with suppress(KafkaError):  # there may be no transaction any more
            self.producer.abort_transaction()
        if future is not None:
            future.exception(PATIENCE)

    def check(self) -> None:
        if not self.producer._running.thread.is_alive():
            raise Fault("the Sender's thread has ended")
        self.producer.begin_transaction()
        later = self.producer.send(TOPIC, b"after")
        self.producer.commit_transaction()
        later.result(0)
        check_whole(self.producer)


class Abort(Transaction):
    ends = "abort_transaction"


class Confluent(Case):
    def open(self) -> None:
        settings = {
            "bootstrap.servers": self.servers,
            "linger.ms": 0,
            "retry.backoff.ms": 5,
            "request.timeout.ms": 60_000,
            "socket.connection.setup.timeout.ms": 120_000,
        }
        self.peer = ConfluentProducer(settings)
        self.told = 0

    def core(self) -> KafkaProducer[Any, Any]:
        return self.peer._producer

    def on_delivery(self, error: object, message: object) -> None:
        self.told += 1

    def call(self) -> None:
        before, produced = self.told, False
        with self.scarce():
            self.peer.produce(TOPIC, b"value", b"key", on_delivery=self.on_delivery)
            produced = True
            self.peer.poll(0.01)
        if self.peer.flush(PATIENCE) != 0:
            raise Fault("flush() leaves records behind")
        if produced and self.told == before:
            raise Fault("a record's callback was not called")

    def close(self) -> None:
        self.peer.flush(PATIENCE)


class ConfluentFlush(Confluent):
    def call(self) -> None:
        before = self.told
        self.peer.produce(TOPIC, b"value", on_delivery=self.on_delivery)
        with self.scarce():
            self.peer.flush(PATIENCE)
        if self.peer.flush(PATIENCE) != 0:
            raise Fault("flush() leaves records behind")
        if self.told == before:
            raise Fault("a record's callback was not called")


class KafkaPython(Case):
    def open(self) -> None:
        self.peer = KafkaPythonProducer(bootstrap_servers=self.servers, retry_backoff_ms=5, request_timeout_ms=60_000)

    def core(self) -> KafkaProducer[Any, Any]:
        return self.peer._producer

    def call(self) -> None:
        future: Any = None
        with self.scarce(), suppress(Exception):
            future = self.peer.send(TOPIC, b"value", b"key", headers=[("name", b"value")])
            future.get(PATIENCE)
        if future is not None:
            with suppress(KafkaError):
                future.get(PATIENCE)

    def close(self) -> None:
        self.peer.close(PATIENCE)


def print_nothing(metadata: object, error: object) -> None:
    """A callback."""


CASES: dict[str, type[Case]] = {
    case.__name__: case
    for case in (
        Send, SendAndWait, SendWithAll, SendCompressed, SendMany, SendManyAndWait, SendArrow, SendArrowAndWait, Flush,
        Result, Metrics, Close, Transaction, Abort, Confluent, ConfluentFlush, KafkaPython,
    )
}  # fmt: skip


# ---- children --------------------------------------------------------------------------------------------------------


def work(case: Case, places: range, told: IO[str]) -> None:
    """Make the call for each n. The last line in `told` is the n whose call is under way."""
    for first in places:
        print(first, file=told, flush=True)
        case.first = first
        began = time.monotonic()
        gc.disable()  # a collection's finalizers have nobody to catch their MemoryError
        try:
            case.call()
        finally:
            gc.enable()
        case.check()
        if (seconds := time.monotonic() - began) > LATE:
            raise Fault(f"late: it took {seconds:.0f} s, which is a wait for a time-out")
    case.close()
    print("done", file=told, flush=True)


def child(name: str, servers: str, failures: int, places: range, told: int, said: int) -> None:
    os.dup2(said, 1)
    os.dup2(said, 2)
    gc.freeze()  # a collection then looks at few objects
    faulthandler.enable()
    faulthandler.dump_traceback_later(2 * PATIENCE, repeat=True)
    try:
        work(CASES[name](servers, failures), places, os.fdopen(told, "w"))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def run(name: str, servers: str, failures: int, places: range) -> tuple[int | None, str]:
    """Run a child. Returns the n of its fault, and what it was; None: there was none."""
    with tempfile.TemporaryFile("w+") as said:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            child(name, servers, failures, places, writer, said.fileno())
        os.close(writer)
        last, hung = _last_line(reader)
        if hung:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(reader)
        said.seek(0)
        text = said.read()
    if last == "done" and status == 0:
        return None, ""
    ended = "hung" if hung else f"ended with {os.waitstatus_to_exitcode(status)}"
    return int(last or places.start) if last != "done" else places.stop, f"{ended}\n{text[-6000:]}"


def _last_line(reader: int) -> tuple[str, bool]:
    """The last line that the child has written, and whether the child has then written none for too long."""
    last, rest = "", b""
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        while True:
            if not selector.select(5 * PATIENCE):
                return last, True
            read = os.read(reader, 4096)
            if not read:
                return last, False
            *lines, rest = (rest + read).split(b"\n")
            last = lines[-1].decode() if lines else last


def sweep(
    names: list[str], most: int, failures: list[int], say: Callable[[str], object] = print, step: int = 1
) -> list[str]:
    """Every case for every k, and n from 0 to `most`. Returns the faults. The process must have one thread."""
    faults: list[str] = []
    broker = subprocess.Popen([sys.executable, "-c", BROKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert broker.stdin is not None
    assert broker.stdout is not None
    try:
        servers = broker.stdout.readline().strip()
        for name in names:
            began, count = time.monotonic(), len(faults)
            for k in failures:
                first = 0
                while first <= most:
                    place, what = run(name, servers, k, range(first, most + 1, step))
                    if place is None:
                        break
                    faults.append(f"{name}, n = {place}, k = {k}: {what}")
                    say(f"no memory: FAULT: {faults[-1]}")
                    first = place + step
            say(f"no memory: {name}: {len(faults) - count} faults, {time.monotonic() - began:.0f} s")
    finally:
        broker.stdin.close()
        broker.wait(PATIENCE)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.no_memory", description=__doc__)
    parser.add_argument("--most", type=int, default=200, help="n goes from 0 to this (default %(default)s)")
    parser.add_argument("--failures", type=int, nargs="+", default=list(range(1, 9)), help="k (default 1 to 8)")
    parser.add_argument("--step", type=int, default=1, help="between one n and the next (default %(default)s)")
    parser.add_argument("--calls", nargs="+", choices=CASES, default=list(CASES), help="the cases (default all)")
    arguments = parser.parse_args()
    if memory_hooks() is None:
        print("no memory: NOT RUN: this interpreter has no _testcapi.set_nomemory, which makes allocations fail")
        return 2
    faults = sweep(arguments.calls, arguments.most, arguments.failures, step=arguments.step)
    print(f"no memory: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    from tests.hostile.no_memory_aio import main_with_loops  # adds cases to those of the module that it imports

    sys.exit(main_with_loops())
