"""Spark's side of a write, without Spark: the calls of its driver and tasks, in Spark's order, with its pickling.

    driver   writer() or streamWriter(), once for each df.write or micro-batch; Spark pickles the writer twice
    task     each attempt unpickles the writer and calls write(iterator of Arrow batches)
    driver   commit(messages): of the unpickled writer in df.write, of a writer made again in a stream
    driver   abort(messages), the same: where a task failed for the last time, or the commit failed

The processes are calls in this process. Each has its own pid, with the producers that the sink keeps for it, and the
folder of its JVM for the notes of the sink. A process that dies raises `Died` in one of its calls of a producer. From
then on it ends no transaction and closes nothing; the rig then closes its sockets, as a kernel does. A straggler is a
task that waits in the middle of its rows, in a thread, and lives on after Spark has given the job up.
"""

from __future__ import annotations

import itertools
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from kafkabuf import KafkaProducer
from kafkabuf.spark.guarantees import preflight
from kafkabuf.spark.source import KafkabufDataSource
from kafkabuf.spark.worker import notes, workers
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt

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
_pids = itertools.count(1_000_000)

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
    """A Spark application that writes to the sink with `options`. `restart` begins a new run of the same query.

    The tasks run in the Python workers of `executors` JVMs, of the driver's JVM if `executors` is 0.
    """

    def __init__(
        self, options: Mapping[str, str], schema: StructType, executors: int = 0, query_id: str = "query"
    ) -> None:
        self._source = KafkabufDataSource({name.lower(): value for name, value in options.items()})
        self._schema = schema
        self._executors = executors
        self._query_id = query_id
        self._runs = itertools.count()
        self._stragglers: list[_Straggler] = []
        self._processes: dict[tuple[str, int], _Process] = {}
        self.restart()

    def restart(self, *, new_jvm: bool = True) -> None:
        """Start the query again from its checkpoint, in new JVMs or in those that run."""
        self._run_id = f"run-{next(self._runs)}"
        if new_jvm:
            end_processes()
            self._folders = Path(tempfile.mkdtemp(dir=_folder()))
            self._processes.clear()

    @contextmanager
    def _process(self, jvm: str, death: Death | None = None, worker: int = 1) -> Iterator[None]:
        """A Python worker of a JVM does what the calling thread does. It dies as `death` says."""
        key = jvm, worker
        if key not in self._processes:
            (self._folders / jvm).mkdir(exist_ok=True)
            self._processes[key] = _Process(next(_pids), self._folders / jvm)
        before, _here.process = _here.process, self._processes[key]
        try:
            with _dying(death):
                yield
        except Died:
            end_process(self._processes.pop(key).pid)
            raise
        finally:
            _here.process = before

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
        with self._process("driver", plan.dies_in_begin):
            pickled = _pickled(writer)
        begun()
        messages: list[Any] = [None] * len(tasks)
        try:
            self._run_tasks(pickled, tasks, plan, place, messages)
            if plan.dies_before_commit:
                raise Died
            with self._process("driver", plan.dies_in_commit):
                call(pickled, "commit", messages)
        except Exception as error:
            with self._process("driver"):
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
            messages[number] = self._run_task(pickled, tasks[number], number, plan, place)
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
                result.append(self._attempt(pickled, watched(), TaskAttempt(number, 0, place, next(_attempt_ids)), 2))
            except BaseException as error:
                result.append(error)
            waits.set()

        straggler = _Straggler(threading.Thread(target=run, daemon=True), may_go_on, result)
        self._stragglers.append(straggler)
        straggler.thread.start()
        assert waits.wait(PATIENCE), "the straggler never got its rows"
        return straggler

    def _run_task(self, pickled: bytes, rows: Task, number: int, plan: Plan, place: MicroBatch | None) -> Any:
        """The message of the first attempt that succeeds. Raises the error of the last attempt."""
        for attempt in range(plan.max_failures):
            trouble = plan.troubles.get((number, attempt), AttemptTrouble())
            here = TaskAttempt(number, attempt, place, next(_attempt_ids))
            try:
                return self._attempt(pickled, _failing(rows, trouble.rows), here, 1, trouble.death)
            except (Exception, Died) as error:
                last: BaseException = error
        raise last if isinstance(last, Exception) else JobError(f"the executor of task {number} died")

    def _attempt(
        self,
        pickled: bytes,
        rows: Iterator[pa.RecordBatch],
        here: TaskAttempt,
        worker: int,
        death: Death | None = None,
    ) -> Any:
        """`worker` tells the Python workers of a JVM apart, which run tasks side by side."""
        jvm = f"executor-{here.attempt_id % self._executors}" if self._executors else "driver"
        _here.attempt = here
        try:
            with self._process(jvm, death, worker):
                return pickle.loads(pickle.dumps(pickle.loads(pickled).write(rows)))
        finally:
            _here.attempt = _NOWHERE


def _pickled(writer: Any) -> bytes:
    """The writer as the tasks get it. Raises JobError where the driver refuses the write."""
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    try:
        dumps(writer)
        pickled: bytes = dumps(writer)
    except Exception as error:
        raise JobError(f"{type(error).__name__}: {error}") from error
    return pickled


def _failing(rows: Task, after: int | None) -> Iterator[pa.RecordBatch]:
    for index, batch in enumerate(rows):
        if index == after:
            raise UpstreamError(f"after {index} Arrow batches")
        yield batch
    if after is not None and after >= len(rows):
        raise UpstreamError("after the last row")


# ---- processes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Process:
    """A Python worker. `folder` is that of its JVM."""

    pid: int
    folder: Path


_NOWHERE = TaskAttempt(-1, -1, None)


class _Here(threading.local):
    """The task attempt that this thread runs, and the process that this thread stands for."""

    attempt = _NOWHERE
    process: _Process | None = None


_here = _Here()
_root: list[Path] = []


def _folder() -> Path:
    assert _root, "an Application lives within a simulation()"
    return _root[-1]


def _attempt_here() -> TaskAttempt:
    return _here.attempt


def _pid_here() -> int:
    return 0 if _here.process is None else _here.process.pid


def _folder_here(_: int) -> Path | None:
    return None if _here.process is None else _here.process.folder


@contextmanager
def simulation() -> Iterator[None]:
    """Let the sink find the attempts and processes of this rig in place of Spark's, until the block ends."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(TaskAttempt, "current", _attempt_here),
        mock.patch.object(workers, "os", SimpleNamespace(getpid=_pid_here)),
        mock.patch.object(notes, "folder_of", _folder_here),
    ):
        _root.append(Path(folder))
        try:
            yield
        finally:
            end_processes()
            _root.pop()


def end_processes() -> None:
    """End every Python worker: its sockets are closed, and what it knew is forgotten."""
    for pid in {key[0] for key in workers._idle}:
        end_process(pid)
    workers.task_settings.cache_clear()
    preflight._passed.clear()


def end_process(pid: int) -> None:
    for key in [key for key in workers._idle if key[0] == pid]:
        for idle in workers._idle.pop(key):
            workers.close_after_failure(idle.client, 0.0)


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
