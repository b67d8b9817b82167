"""Spark's side of a write, without Spark: the calls of its driver and tasks, in Spark's order, with its pickling.

    driver   writer() or streamWriter(), once for each df.write or micro-batch; Spark pickles the writer twice
    task     each attempt unpickles the writer and calls write(iterator of Arrow batches)
    driver   commit(messages): of the unpickled writer in df.write, of a writer made again in a stream
    driver   abort(messages), the same: where a task failed for the last time, or the commit failed

The processes are calls in this process. A process that dies raises `Died` in one of its calls of a producer. From then
on it ends no transaction and closes nothing; the rig then closes its sockets, as a kernel does. A straggler is a task
that waits in the middle of its rows, in a thread, and lives on after Spark has given the job up.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from kafkabuf import KafkaProducer
from kafkabuf.spark import preflight, workers
from kafkabuf.spark.place import MicroBatch, TaskAttempt
from kafkabuf.spark.source import KafkabufDataSource

PATIENCE = 60.0  # seconds
# The calls of a producer in which a process may die, or after which it may.
_STEPS = (
    "init_transactions",
    "begin_transaction",
    "send_arrow",
    "flush",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
)
_attempt_ids = itertools.count(1)

Task = Sequence[pa.RecordBatch]


class Died(BaseException):
    """The process is dead."""


class UpstreamError(Exception):
    """The plan above the sink failed in the middle of a task's rows."""


class JobError(Exception):
    """Spark gave the write up. The cause is the error that Spark shows."""


@dataclass(frozen=True)
class Death:
    """A process dies in the call number `step` of its calls of producers, before or after the call's work."""

    step: int
    after: bool


@dataclass(frozen=True)
class AttemptTrouble:
    """What goes wrong in one attempt of a task: its rows end with an error after `rows` Arrow batches, or it dies."""

    rows: int | None = None
    death: Death | None = None


@dataclass(frozen=True)
class Plan:
    """How one run of a write goes. `troubles` is by task and attempt. The task `straggler` waits after its first Arrow
    batch until the other tasks have ended, and until Spark has aborted if one of them failed; with
    `outlives_abort` it waits until `Application.release`. The driver may die while it pickles the writer, before the
    commit, in the commit, and after it: then Spark has not noted the commit and repeats the micro-batch."""

    troubles: Mapping[tuple[int, int], AttemptTrouble] = field(default_factory=dict)
    max_failures: int = 1
    reverse: bool = False
    straggler: int | None = None
    outlives_abort: bool = False
    dies_in_begin: Death | None = None
    dies_before_commit: bool = False
    dies_in_commit: Death | None = None
    dies_after_commit: bool = False


@dataclass
class _Straggler:
    thread: threading.Thread
    may_go_on: threading.Event
    result: list[Any]


class Application:
    """A Spark application that writes to the sink with `options`. `restart` begins a new run of the same query."""

    def __init__(self, options: Mapping[str, str], schema: StructType, query_id: str = "query") -> None:
        self._source = KafkabufDataSource({name.lower(): value for name, value in options.items()})
        self._schema = schema
        self._query_id = query_id
        self._runs = itertools.count()
        self._stragglers: list[_Straggler] = []
        self.restart()

    def restart(self) -> None:
        """End all processes of the application, and start the query again from its checkpoint."""
        end_processes()
        self._run_id = f"run-{next(self._runs)}"

    def micro_batch(
        self, number: int, tasks: Sequence[Task], plan: Plan = Plan(), begun: Callable[[], None] = lambda: None
    ) -> None:
        """Write a micro-batch. Calls `begun` before the first task. Raises JobError, or Died for the driver."""
        place = MicroBatch(number, self._query_id, self._run_id)

        def call(_: bytes, method: str, messages: list[Any]) -> None:
            getattr(self._source.streamWriter(self._schema, False), method)(messages, number)

        self._run(self._source.streamWriter(self._schema, False), tasks, plan, place, begun, call)

    def write(self, tasks: Sequence[Task], plan: Plan = Plan(), begun: Callable[[], None] = lambda: None) -> None:
        """One `df.write`. Raises as `micro_batch`."""

        def call(pickled: bytes, method: str, messages: list[Any]) -> None:
            getattr(pickle.loads(pickled), method)(messages)

        self._run(self._source.writer(self._schema, False), tasks, plan, None, begun, call)

    def release(self) -> None:
        """Let every straggler go on, and wait until it has ended."""
        for straggler in self._stragglers:
            straggler.may_go_on.set()
            straggler.thread.join(PATIENCE)
            assert not straggler.thread.is_alive(), "a straggler hangs"
        self._stragglers.clear()

    def _run(
        self,
        writer: Any,
        tasks: Sequence[Task],
        plan: Plan,
        place: MicroBatch | None,
        begun: Callable[[], None],
        call: Callable[[bytes, str, list[Any]], None],
    ) -> None:
        with _dying(plan.dies_in_begin):
            pickled = _pickled(writer)
        begun()
        messages: list[Any] = [None] * len(tasks)
        try:
            self._run_tasks(pickled, tasks, plan, place, messages)
            if plan.dies_before_commit:
                raise Died
            with _dying(plan.dies_in_commit):
                call(pickled, "commit", messages)
        except Exception as error:
            call(pickled, "abort", messages)
            raise JobError(f"{type(error).__name__}: {error}") from error
        finally:
            if not plan.outlives_abort:
                self.release()
        if plan.dies_after_commit:
            raise Died

    def _run_tasks(
        self, pickled: bytes, tasks: Sequence[Task], plan: Plan, place: MicroBatch | None, messages: list[Any]
    ) -> None:
        numbers = [number for number in range(len(tasks)) if number != plan.straggler]
        straggler = None
        if plan.straggler is not None and plan.straggler < len(tasks):
            straggler = self._start_straggler(pickled, tasks[plan.straggler], plan.straggler, place)
        for number in reversed(numbers) if plan.reverse else numbers:
            messages[number] = _run_task(pickled, tasks[number], number, plan, place)
        if straggler is not None:
            straggler.may_go_on.set()
            straggler.thread.join(PATIENCE)
            [outcome] = straggler.result
            if isinstance(outcome, BaseException):
                raise outcome
            messages[plan.straggler or 0] = outcome

    def _start_straggler(self, pickled: bytes, rows: Task, number: int, place: MicroBatch | None) -> _Straggler:
        waits, result = threading.Event(), list[Any]()
        may_go_on = threading.Event()

        def watched() -> Iterator[pa.RecordBatch]:
            for index, batch in enumerate(rows):
                if index == 1:
                    waits.set()
                    may_go_on.wait(PATIENCE)
                yield batch

        def run() -> None:
            try:
                result.append(_attempt(pickled, watched(), TaskAttempt(number, 0, place, next(_attempt_ids))))
            except BaseException as error:
                result.append(error)
            waits.set()

        straggler = _Straggler(threading.Thread(target=run, daemon=True), may_go_on, result)
        self._stragglers.append(straggler)
        straggler.thread.start()
        assert waits.wait(PATIENCE), "the straggler never got its rows"
        return straggler


def _pickled(writer: Any) -> bytes:
    """The writer as the tasks get it. Raises JobError where the driver refuses the write."""
    try:
        cloudpickle.dumps(writer)
        pickled: bytes = cloudpickle.dumps(writer)
    except Exception as error:
        raise JobError(f"{type(error).__name__}: {error}") from error
    return pickled


def _run_task(pickled: bytes, rows: Task, number: int, plan: Plan, place: MicroBatch | None) -> Any:
    """The message of the first attempt that succeeds. Raises the error of the last attempt."""
    for attempt in range(plan.max_failures):
        trouble = plan.troubles.get((number, attempt), AttemptTrouble())
        try:
            with _dying(trouble.death):
                here = TaskAttempt(number, attempt, place, next(_attempt_ids))
                return _attempt(pickled, _failing(rows, trouble.rows), here)
        except (Exception, Died) as error:
            last: BaseException = error
    raise last if isinstance(last, Exception) else JobError(f"the executor of task {number} died")


def _attempt(pickled: bytes, rows: Iterator[pa.RecordBatch], here: TaskAttempt) -> Any:
    _here.attempt = here
    try:
        return pickle.loads(pickle.dumps(pickle.loads(pickled).write(rows)))
    finally:
        _here.attempt = _NOWHERE


def _failing(rows: Task, after: int | None) -> Iterator[pa.RecordBatch]:
    for index, batch in enumerate(rows):
        if index == after:
            raise UpstreamError(f"after {index} Arrow batches")
        yield batch
    if after is not None and after >= len(rows):
        raise UpstreamError("after the last row")


# ---- processes -------------------------------------------------------------------------------------------------------


_NOWHERE = TaskAttempt(-1, -1, None)


class _Here(threading.local):
    """The task attempt that this thread runs."""

    attempt = _NOWHERE

    @staticmethod
    def current() -> TaskAttempt:
        return _here.attempt


_here = _Here()


@contextmanager
def simulation() -> Iterator[None]:
    """Let the sink find the attempts of this rig in place of Spark's, until the block ends."""
    with mock.patch.object(TaskAttempt, "current", _Here.current):
        try:
            yield
        finally:
            end_processes()


def end_processes() -> None:
    """Forget what the Python workers of Spark keep from call to call."""
    while workers._producers:
        workers._producers.popitem()[1].close(timeout=0)
    workers.task_settings.cache_clear()
    preflight._passed.clear()


@contextmanager
def _dying(death: Death | None) -> Iterator[None]:
    """Let this thread's calls die as `death` says. A dead process does nothing more: its producers stay as they are."""
    if death is None:
        yield
        return
    thread, calls, left_open = threading.get_ident(), itertools.count(), list[KafkaProducer]()
    dead = False

    def stepping(method: Any) -> Any:
        def call(producer: KafkaProducer, *args: Any, **kwargs: Any) -> Any:
            nonlocal dead
            if threading.get_ident() != thread:
                return method(producer, *args, **kwargs)
            if not dead:
                dies = next(calls) == death.step
                result = None if dies and not death.after else method(producer, *args, **kwargs)
                if not dies:
                    return result
                dead = True
            raise Died

        return call

    def close(producer: KafkaProducer, *args: Any, **kwargs: Any) -> None:
        if dead and threading.get_ident() == thread:
            left_open.append(producer)
        else:
            real_close(producer, *args, **kwargs)

    real_close = KafkaProducer.close
    patches = {name: stepping(getattr(KafkaProducer, name)) for name in _STEPS}
    try:
        with mock.patch.multiple(KafkaProducer, close=close, **patches):
            yield
    finally:
        for producer in left_open:
            producer.close(timeout=0)
