"""Runs of the fuzzer of requests, each in a process of its own, so that a request may crash its process or hang it.

A generation is up to a thousand requests to one world (worlds.py), drawn from the seed and the generation's
number. A worker runs one generation after the other, and ends at the first fault. The supervisor confirms the fault: it
runs the request again alone, and if that does no harm, all requests of the generation. A measurement must be too large
three times. Another process goes on with the next generation. Of two workers, one runs the even generations.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import random
import re
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.hostile.fuzz_requests import cases as fuzz_cases
from tests.hostile.fuzz_requests.cases import Cases
from tests.hostile.fuzz_requests.faults import MEASURED, Fault, Summary, describe
from tests.hostile.fuzz_requests.progress import Progress, Watch, Worker
from tests.hostile.fuzz_requests.target import GENERATION, Case, Target, corpus
from tests.hostile.fuzz_requests.worlds import KINDS, FuzzError
from tests.needs import SANITIZED

# Every second generation has no folder and one node.
WORLDS = ("memory", "folder", "memory", "three", "folder", "sasl")
# Some worlds with a folder restart early.
_SHORT = 40
# A process that has grown by more is not waited for.
_HUGE = 1 << 30
_POLL_SECONDS = 0.05
_SAY_SECONDS = 30.0
_ATTEMPTS = 3
_SHRINK_SECONDS = 15.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# In a replay, in the place of the number of the generation: the last request is served.
_LAST = 1
# The file with the requests of a replay.
_REPLAYED = "replayed"
_fork = multiprocessing.get_context("fork")


# ---- in the worker's process


def _fault_of(error: BaseException) -> tuple[str, str]:
    if isinstance(error, FuzzError):
        return error.kind, str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return "raises", f"{type(error).__name__} in {place}: {error}"


def _seeded_ids(seed: str) -> None:
    """The ids that the cluster gives out are the same in each run of a generation."""
    os.urandom = random.Random(seed).randbytes  # in a process that does nothing else


def _work(options: Options, first: int, until: int, progress: Progress, pipe: Connection) -> None:
    """Run every so-manieth generation until the requests or the seconds are spent. Sends a Summary for each, or a
    fault."""
    sent, number = 0, first
    while sent < until and time.monotonic() < options.deadline:
        summary = Summary()
        try:
            _run_generation(options, number, until - sent, progress, summary)
        except BaseException as error:
            pipe.send((summary, *_fault_of(error)))
            return
        pipe.send((summary, "", ""))
        sent, number = sent + summary.requests, number + options.workers


def _run_generation(options: Options, number: int, most: int, progress: Progress, summary: Summary) -> None:
    seed, kind = f"{options.seed}/{number}", options.world or WORLDS[number % len(WORLDS)]
    progress.begin(number)
    _seeded_ids(seed)
    cases, target = Cases(random.Random(seed), kind), Target(kind, progress.turn)
    target.begin()
    cases.producer = target.world.producer
    gc.collect()
    length = _SHORT if kind == "folder" and number % 4 == 1 else GENERATION
    for index in range(min(length, most)):
        if index % 20 == 0:
            cases.topic_ids = target.world.topic_ids()
        case = cases.next()
        progress.serve(number, case)
        try:
            summary.add(kind, case, *target.serve(case))
        except Exception as error:
            if Fault(kind, *_fault_of(error), [case]).signature not in options.known:
                raise
            summary.repeated += 1
        progress.rest(number)
        if target.old or time.monotonic() > options.deadline:
            break
    progress.end(number, target.things_at_end())
    target.finish(random.Random(seed))
    target.close()


def _replay(world: str, cases: list[Case], finish: str, progress: Progress, pipe: Connection) -> None:
    """Serve the cases again. Only the last may break a promise."""
    progress.begin(0)
    _seeded_ids(finish or "replay")
    target = Target(world, progress.turn)
    before = cases if finish else cases[:-1]
    for case in before:
        progress.serve(0, case)
        with suppress(Exception):
            target.serve(case)
    target.begin()
    try:
        if finish:
            progress.end(_LAST, target.things_at_end())
            target.finish(random.Random(finish))
        else:
            progress.serve(_LAST, cases[-1])
            target.serve(cases[-1])
    except BaseException as error:
        pipe.send(_fault_of(error))
        return
    pipe.send(("", ""))


# ---- in the supervisor's process


@dataclass
class Options:
    """`world`: the kind of all worlds, "" for each in turn. `requests` and `seconds`: the first that is reached ends
    the run. `workers` run at once. `folder` gets the faults. A worker passes over faults that are `known`."""

    folder: Path
    seed: int = 0
    world: str = ""
    requests: int = 10**12
    seconds: float = 1e9
    workers: int = 1
    say: Callable[[str], None] = lambda text: print(text, flush=True)
    deadline: float = field(init=False, default=0.0)
    known: set[tuple[str, ...]] = field(init=False, default_factory=set)


class Child:
    """A forked process that somebody watches. It writes its requests to the file `path`. The folders of its worlds go
    with it, however it ends."""

    def __init__(self, path: Path, function: Callable[..., None], *arguments: Any) -> None:
        self.progress = Progress(path)
        self.pipe, theirs = _fork.Pipe(duplex=False)
        self._place = tempfile.mkdtemp(prefix="kafkabuf-fuzz-")
        every = self._place, function, arguments, self.progress, theirs
        self.process = _fork.Process(target=_run_child, args=every, daemon=True)
        self.process.start()
        theirs.close()
        self._worker, self._watch = Worker(self.process.pid), Watch()
        # What the child shares with its parent is no growth: it may serve its first request before anybody looks again.
        self._size = self._worker.resident()

    def overdue(self) -> tuple[str, str] | None:
        """The fault of a process that hangs or grows, which is then killed."""
        seen, size = self.progress.get(), self._worker.resident()
        fault = None
        if hang := self._watch.look(seen, self._worker.spent()):
            fault = "hang", hang
        elif seen.task and size - self._size > _HUGE and not SANITIZED:
            fault = "memory", f"{size - self._size >> 20} MiB more, while it is served"
        elif not seen.task:
            self._size = size
        if fault is not None:
            self.kill()
        return fault

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Wait until the process has ended."""
        self.process.join()
        shutil.rmtree(self._place, ignore_errors=True)

    def died(self) -> tuple[str, str]:
        self.end()
        return "crash", f"the process ended with {self.process.exitcode}"


def _run_child(place: str, function: Callable[..., None], arguments: tuple[Any, ...], *more: Any) -> None:
    tempfile.tempdir = place
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # While objects are frozen, the broker leaves the collector to the user (broker/waiting/slices.py).
    gc.unfreeze()
    _give_memory_back()
    function(*arguments, *more)


def _give_memory_back() -> None:
    """Let glibc's malloc keep no freed memory for later: a request that uses such memory would seem to need none.

    The parent may have freed some before the fork: malloc_trim() gives that back.
    """
    library = ctypes.CDLL(None)
    for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        library.mallopt(parameter, 1 << 20)
    library.malloc_trim(0)


class _Worker:
    """A process that runs generations, and after a fault another one."""

    def __init__(self, options: Options, number: int) -> None:
        self._options = options
        self.path = options.folder / f"running-{number}"
        self._next = number
        self._left = options.requests // options.workers + (number < options.requests % options.workers)
        self.child: Child | None = None
        self.start()

    def start(self) -> None:
        """Go on with the next generation, if requests and time are left."""
        self.child = None
        if self._left > 0 and time.monotonic() < self._options.deadline:
            self.child = Child(self.path, _work, self._options, self._next, self._left)

    def stop(self) -> None:
        """End the process, if the run was interrupted."""
        if self.child is not None and self.child.process.is_alive():
            self.child.kill()

    def look(self, summary: Summary) -> Fault | None:
        """Take what the process reports. Returns the fault that ended it. Without a child it has ended well."""
        child = self.child
        assert child is not None
        try:
            while child.pipe.poll():
                report, kind, text = child.pipe.recv()
                self._count(summary, report)
                if kind:
                    child.end()
                    return self._fault(child, kind, text)
            overdue = child.overdue()
        except EOFError:
            overdue = child.died()
            if child.process.exitcode == 0:
                self.child = None
                return None
        if overdue is None:
            return None
        fault = self._fault(child, *overdue)
        self._count(summary, Summary(len(fault.cases)))
        return fault

    def _count(self, summary: Summary, report: Summary) -> None:
        summary.join(report)
        self._left -= report.requests

    def _fault(self, child: Child, kind: str, text: str) -> Fault:
        options = self._options
        seen = child.progress.get()
        self._next = seen.generation + options.workers
        world = options.world or WORLDS[seen.generation % len(WORLDS)]
        finish = f"{options.seed}/{seen.generation}" * seen.ending
        return Fault(world, kind, text, child.progress.cases(), finish)


class Supervisor:
    """Runs workers until the options' end. `faults` are the confirmed faults, each with its file."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.summary = Summary()
        self.faults: dict[tuple[str, ...], Fault] = {}
        self.paths: dict[tuple[str, ...], Path] = {}
        self.found_after: dict[tuple[str, ...], float] = {}
        self.unconfirmed = 0

    def run(self) -> None:
        options = self._options
        options.folder.mkdir(parents=True, exist_ok=True)
        began = self._said = time.monotonic()
        options.deadline = began + options.seconds
        workers = [_Worker(options, number) for number in range(options.workers)]
        try:
            self._watch(workers, began)
        finally:
            for worker in workers:
                worker.stop()
            for path in (*(worker.path for worker in workers), options.folder / _REPLAYED):
                path.unlink(missing_ok=True)

    def _watch(self, workers: list[_Worker], began: float) -> None:
        while busy := [(worker, worker.child) for worker in workers if worker.child is not None]:
            wait([child.pipe for _, child in busy], _POLL_SECONDS)
            for worker, _ in busy:
                if (fault := worker.look(self.summary)) is not None:
                    self._judge(fault, time.monotonic() - began)
                    worker.start()
            self._report()

    def _judge(self, fault: Fault, seconds: float) -> None:
        if fault.signature in self.faults:
            self.summary.repeated += 1
            return
        confirmed = confirm(fault, self._options.folder)
        if confirmed is None:
            self.unconfirmed += 1
            return
        path = self._options.folder / f"{fault.kind}-{fault.api}-{len(self.faults) + 1}".replace(" ", "-")
        confirmed.write(path)
        self.faults[fault.signature], self.paths[fault.signature] = confirmed, path
        self.found_after[fault.signature] = seconds
        self._options.known.add(fault.signature)
        sent = confirmed.cases[0].origin if len(confirmed.cases) == 1 else f"{len(confirmed.cases)} requests"
        self._options.say(f"{path}: after {seconds:.0f} s, {fault.api} ({confirmed.world}, {sent}): {confirmed.text}")

    def _report(self) -> None:
        if time.monotonic() - self._said > _SAY_SECONDS:
            self._said = time.monotonic()
            self._options.say(describe(self.summary))


def warm() -> None:
    """Load what the first request of each API and version loads: that memory and time must not count for a request.
    The workers are forked from this process."""
    for kind in KINDS:
        target = Target(kind)
        for frame in corpus():
            with suppress(Exception):
                target.serve(Case(frame))
        target.close()
    fuzz_cases.warm()
    gc.collect()
    gc.freeze()
    ctypes.CDLL(None).malloc_trim(0)


def outcome(fault: Fault, cases: list[Case], folder: Path) -> tuple[str, str]:
    """(kind, text) of the fault that a new run of the cases shows; ("", "") if it shows none."""
    child = Child(folder / _REPLAYED, _replay, fault.world, cases, fault.finish)
    while True:
        try:
            if child.pipe.poll(_POLL_SECONDS):
                found: tuple[str, str] = child.pipe.recv()
                child.end()
                return found
        except EOFError:
            return child.died()
        if (overdue := child.overdue()) is not None:
            return overdue if child.progress.get().generation == _LAST else ("", "")


def confirm(fault: Fault, folder: Path) -> Fault | None:
    """The fault with as few requests as show it; None if a new run does not show it."""
    if not fault.finish and (text := _shown(fault, fault.cases[-1:], folder)):
        return replace(fault, cases=fault.cases[-1:], text=text)
    if (text := _shown(fault, fault.cases, folder)) is None:
        return None
    return replace(fault, cases=_shrunk(fault, folder), text=text)


def _shown(fault: Fault, cases: list[Case], folder: Path) -> str | None:
    """The text of the mildest of some runs."""
    texts = []
    for _ in range(_ATTEMPTS if fault.kind in MEASURED else 1):
        kind, text = outcome(fault, cases, folder)
        if not _alike(kind, fault.kind):
            return None
        texts.append(text)
    return min(texts, key=lambda text: [int(number) for number in re.findall(r"\d+", text)][:1])


def _alike(kind: str, wanted: str) -> bool:
    """A slow request may hang, too."""
    return kind == wanted or {kind, wanted} <= {"wait", "hang", "memory"}


def _shrunk(fault: Fault, folder: Path) -> list[Case]:
    """Leave out requests before the last, in large pieces and then in smaller ones, while there is time."""
    until = time.monotonic() + _SHRINK_SECONDS
    kept, tail = fault.cases[: len(fault.cases) - (not fault.finish)], fault.cases[-1:] if not fault.finish else []
    size = max(1, len(kept) // 2)
    while size and time.monotonic() < until:
        at = 0
        while at < len(kept) and time.monotonic() < until:
            fewer = kept[:at] + kept[at + size :]
            if _alike(outcome(fault, fewer + tail, folder)[0], fault.kind):
                kept = fewer
            else:
                at += size
        size //= 2
    return kept + tail
