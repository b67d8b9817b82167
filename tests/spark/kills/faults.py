"""In Spark's Python workers: the steps of the sink, at which the process may have to die, or somebody else.

`install` wraps the functions of kafkabuf that a step begins or ends with; the rest of the sink is as users have it.
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
from kafkabuf.spark.atomic import Atomic
from kafkabuf.spark.kept_report import _jvm_above
from kafkabuf.spark.place import TaskAttempt
from kafkabuf.spark.task import Task
from tests.spark.kills.job import AT_RANDOM, Folder, Kill, Victim

# EndTxn is answered in about this time, in seconds: the process dies at some moment within it.
_END_TXN = 0.004


def at(step: str) -> None:
    """The process has come to `step`. It does not return if this is where it dies."""
    kill = _claimed(step)
    if kill is not None:
        _kill(kill.victim)


@cache
def install() -> None:
    """Wrap the functions at each step, in this process; once, however often it is called."""
    _around(KafkaProducer, "init_transactions", "before init", "after init")
    _around(KafkaProducer, "send_offsets_to_transaction", "before marker", None)
    _around(Atomic, "begin", "before begin", "after begin")
    send_all, commit = Task.send_all, KafkaProducer.commit_transaction

    def sending(task: Task, batches: Iterator[pa.RecordBatch]) -> None:
        at("before produce")
        send_all(task, _watched(task, batches))
        at("after produce")

    def committing(producer: KafkaProducer) -> None:
        at("after marker")
        kill = _claimed("amid EndTxn")
        if kill is None:
            commit(producer)
        else:
            _amid(lambda: commit(producer), kill.victim)
        at("after EndTxn")

    _replace(Task, "send_all", sending)
    _replace(KafkaProducer, "commit_transaction", committing)


def _around(owner: Any, name: str, before: str, after: str | None) -> None:
    real = getattr(owner, name)

    def wrapped(*given: Any, **named: Any) -> Any:
        at(before)
        result = real(*given, **named)
        if after is not None:
            at(after)
        return result

    _replace(owner, name, wrapped)


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def _watched(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches. Mid-produce a part of the task's rows is certainly in Kafka, and another certainly not."""
    doom = _claimed(AT_RANDOM)
    for number, batch in enumerate(batches):
        if number == 1 and task._producer is not None and (kill := _claimed("mid-produce")):
            task._producer.flush()
            _kill(kill.victim)
        if doom is not None and number == doom.arrow_batch:
            threading.Timer(doom.delay, _kill, [doom.victim]).start()
        yield batch


def _amid(commit: Callable[[], None], victim: Victim) -> None:
    """Nobody knows whether the request has been sent, received or answered when the victim dies."""
    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    time.sleep(random.uniform(0, _END_TXN))
    _kill(victim)
    thread.join()


def _claimed(step: str) -> Kill | None:
    folder, attempt = Folder.here(), TaskAttempt.current()
    batch = folder.newest_batch() if attempt.micro_batch is None else attempt.micro_batch.number
    kill = folder.claim(batch, step)
    if kill is not None:
        folder.tell(
            "kill", step=step, victim=kill.victim, partition=attempt.partition, attempt=attempt.attempt, at=batch
        )
    return kill


def _kill(victim: Victim) -> None:
    driver = json.loads((Folder.here().root / "driver.json").read_text())
    jvm = _jvm_above(os.getpid())
    if victim in (Victim.DRIVER, Victim.ORPHAN):
        _end(driver["python"])
        _end(driver["jvm"])
    elif victim is Victim.EXECUTOR and jvm is not None:
        _end(jvm)
    # A task goes on when its driver is gone: the executor notices later.
    if victim in (Victim.WORKER, Victim.EXECUTOR) or (victim is Victim.DRIVER and jvm == driver["jvm"]):
        _end(os.getpid())


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
