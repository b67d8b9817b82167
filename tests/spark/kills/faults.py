"""The steps of the sink in Spark's Python workers. At a step this process kills itself or another process.

`install` wraps the functions of kafkabuf with which a step begins or ends. It leaves the rest of the sink unchanged.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pyarrow as pa

from kafkabuf.producer import KafkaProducer
from kafkabuf.spark.guarantees.atomic import Atomic
from kafkabuf.spark.guarantees.exactly_once import ExactlyOnce
from kafkabuf.spark.rows.task import Task
from kafkabuf.spark.worker.place import TaskAttempt
from tests.spark.kills.job import AT_RANDOM, Folder, Kill, Victim
from tests.spark.kills.processes import executors, jvm_above

# Seconds: a coordinator answers EndTxn in about this time. The process dies at a random moment within it.
_END_TXN = 0.004


def at(step: str) -> None:
    """The process has reached `step`. The call kills the victim, if a kill is planned here; then it may not return."""
    kill = _claim(step)
    if kill is not None:
        _kill(kill.victim)


@cache
def install() -> None:
    """Wrap the functions at each step in this process. Further calls do nothing."""
    # A warm task goes on with the producer id and epoch of the last task, and does not initialise them.
    _wrap(ExactlyOnce, "_take_over", "before take-over", "after take-over")
    _wrap(KafkaProducer, "send_offsets_to_transaction", "before marker", None)
    _wrap(Atomic, "begin", "before begin", "after begin")
    send_all, commit = Task.send_all, KafkaProducer.commit_transaction

    def send_all_with_steps(task: Task, batches: Iterator[pa.RecordBatch]) -> None:
        at("before produce")
        send_all(task, _watched(task, batches))
        at("after produce")

    def commit_with_steps(producer: KafkaProducer) -> None:
        at("after marker")
        kill = _claim("during EndTxn")
        if kill is None:
            commit(producer)
        else:
            _kill_during(lambda: commit(producer), kill.victim)
        at("after EndTxn")

    _replace(Task, "send_all", send_all_with_steps)
    _replace(KafkaProducer, "commit_transaction", commit_with_steps)


def _wrap(owner: Any, name: str, before: str, after: str | None) -> None:
    real = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        at(before)
        result = real(*args, **kwargs)
        if after is not None:
            at(after)
        return result

    _replace(owner, name, wrapped)


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def _watched(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and kill before one of them where the plan says so.

    At "mid-produce" Kafka certainly has a part of the task's rows, and certainly lacks another part.
    """
    random_kill = _claim(AT_RANDOM)
    for number, batch in enumerate(batches):
        if number == 1 and task._producer is not None and (kill := _claim("mid-produce")):
            task._producer.flush()
            _kill(kill.victim)
        if random_kill is not None and number == random_kill.arrow_batch:
            if random_kill.victim is Victim.NOBODY:
                time.sleep(random_kill.delay)
            else:
                threading.Timer(random_kill.delay, _kill, [random_kill.victim]).start()
        yield batch


def _kill_during(commit: Callable[[], None], victim: Victim) -> None:
    """Kill the victim at a random moment: before or after the request is sent, received or answered."""
    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    time.sleep(random.uniform(0, _END_TXN))
    _kill(victim)
    thread.join()


def _claim(step: str) -> Kill | None:
    """The kill that the plan has for this step and micro-batch, if no other process has claimed it."""
    folder, attempt = Folder.here(), TaskAttempt.current()
    batch = folder.newest_batch() if attempt.micro_batch is None else attempt.micro_batch.number
    kill = folder.claim(batch, step)
    if kill is not None:
        folder.record(
            "kill", step=step, victim=kill.victim, partition=attempt.partition, attempt=attempt.attempt, at=batch
        )
    return kill


def _kill(victim: Victim) -> None:
    driver = json.loads((Folder.here().root / "driver.json").read_text())
    jvm = jvm_above(os.getpid())
    is_driver = os.getpid() == driver["python"]  # in foreach_batch() the user's process commits
    if victim in (Victim.DRIVER, Victim.ORPHAN):
        if not is_driver:
            _end(driver["python"])
        _end(driver["jvm"])
    elif victim is Victim.EXECUTORS:
        for executor in executors(Folder.here()):
            _end(executor)
    elif victim in (Victim.EXECUTOR, Victim.JVM) and jvm is not None:
        _end(jvm)
    # A task in an executor continues after its driver has died: the executor notices later.
    is_worker = victim in (Victim.WORKER, Victim.EXECUTOR)
    if is_worker or is_driver or (victim is Victim.DRIVER and jvm == driver["jvm"]):
        _end(os.getpid())


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
