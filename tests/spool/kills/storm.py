"""The child: a producer with a buffer's file, which does everything that a producer can until it is killed."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import AbortableTransactionError, KafkaError, PurgedError, TimeoutError
from kafkabuf.formats import Json
from tests.spool.kills import faces
from tests.spool.kills.ledger import Ledger, Mark, Phase
from tests.spool.kills.plan import Life, Plan, Record, end_of_topic, first_number
from tests.spool.kills.reports import Report

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("headers", _HEADERS),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
    ]
)
_PLAIN = _SCHEMA.append(pa.field("value", pa.binary()))
_OBJECTS = _SCHEMA.append(pa.field("number", pa.int64())).append(pa.field("text", pa.string()))
_ABORTED = 0.2  # of the transactions
_LONGEST_CHILD = 5  # seconds


def main(plan: Plan, life: int, folder: Path, bootstrap_servers: str) -> None:
    """Runs in a process of its own."""
    with (folder / f"errors-{life}").open("w") as errors, redirect_stderr(errors):
        faulthandler.register(signal.SIGUSR1, errors, all_threads=True)
        logging.basicConfig(stream=errors, level=logging.INFO, format="%(created).4f %(threadName)s %(message)s")
        try:
            live(plan, life, folder, bootstrap_servers)
        except BaseException:
            traceback.print_exc(file=errors)
            errors.flush()
            raise


def live(plan: Plan, life: int, folder: Path, bootstrap_servers: str) -> None:
    own = plan.lives[life]
    with Ledger(folder / "ledger", len(plan.lives)) as ledger:
        settings = {"bootstrap_servers": bootstrap_servers, "buffer_path": str(folder / "buffer"), **own.settings}
        producer = faces.opened(own, settings, list(plan.topics))
        ledger.enter(life, Phase.OPENED)
        assert producer.recovered is not None
        for damage in producer.recovered.damaged:
            logging.error("damaged: %s", damage)
        storms = [Storm(plan, own, producer, ledger, first_number(life, thread)) for thread in range(own.threads)]
        threads = [threading.Thread(target=storm.run, daemon=True) for storm in storms[1:]]
        for thread in threads:
            thread.start()
        storms[0].run()
        for thread in threads:
            thread.join()
        ledger.enter(life, Phase.CLOSING)
        producer.close(own.close_timeout)
        ledger.enter(life, Phase.CLOSED)
        (folder / f"report-{life}").write_text(Report.of(producer.recovered).to_json())


class Storm:
    """The calls of one thread, over the numbers from `first` on."""

    def __init__(self, plan: Plan, life: Life, producer: Any, ledger: Ledger, first: int) -> None:
        self._plan = plan
        self._life = life
        self._producer = producer
        self._ledger = ledger
        self._draw = Random(plan.seed + first)
        self._first = self._number = first
        self._end = first + life.records
        self._until = self._end  # the end of the transaction
        self._settled = first  # the outcomes of the numbers before are known
        self._futures: dict[int, RecordFuture] = {}

    def run(self) -> None:
        if not self._plan.transaction:
            self._send_all()
            return
        self._producer.init_transactions()
        while self._number < self._end:
            self._transact()

    def _send_all(self) -> None:
        steps = [self._send_some] * 8 + [self._rest] * 3 + [self._flush]
        if self._life.face != "confluent":  # whose face has no such calls
            steps += [self._send_many] * 2 + ([] if self._life.serializes else [self._send_arrow] * 2)
        steps += [self._purge] if self._life.purges else []
        steps += [self._fork] if self._life.forks else []
        while self._number < self._until:
            self._draw.choice(steps)()

    def _transact(self) -> None:
        first, end = self._plan.transaction_of(self._number)
        self._until = min(end, self._end)
        self._producer.begin_transaction()
        self._send_all()
        if self._draw.random() < _ABORTED:
            self._abort(first, Mark.OPEN)
            return
        self._ledger.replace(first, end, Mark.OPEN, Mark.COMMITTING)
        try:
            self._producer.commit_transaction()
        except AbortableTransactionError as error:
            logging.info("transaction %d is aborted: %r", first, error)
            self._abort(first, Mark.COMMITTING)
            return
        self._ledger.replace(first, end, Mark.COMMITTING, Mark.RETURNED)

    def _abort(self, first: int, mark: Mark) -> None:
        self._producer.abort_transaction()
        self._ledger.replace(first, self._until, mark, Mark.REFUSED)

    # ---- one record at a time

    def _send_some(self) -> None:
        for _ in range(self._draw.choice((1, 1, 3, 20))):
            if self._number == self._until:
                return
            number, self._number = self._number, self._number + 1
            self._send(number)

    def _send(self, number: int) -> None:
        record = self._plan.record(number)
        self._ledger.mark(number, self._under_way)
        try:
            future = self._producer.send(
                record.topic,
                self._given(record),
                key=record.key,
                headers=list(record.headers) or None,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
        except KafkaError as error:
            logging.info("record %d is refused: %r", number, error)
            self._ledger.mark(number, Mark.REFUSED)
            return
        self._ledger.mark(number, self._returned)
        if self._life.purges:
            self._futures[number] = future

    @property
    def _under_way(self) -> Mark:
        return Mark.OPEN if self._plan.transaction else Mark.UNDER_WAY

    @property
    def _returned(self) -> Mark:
        return Mark.OPEN if self._plan.transaction else Mark.RETURNED

    def _given(self, record: Record) -> Any:
        """The value as the producer takes it."""
        return json.loads(record.value) if self._life.serializes else record.value

    # ---- many at a time

    def _send_many(self) -> None:
        numbers = self._next(end_of_topic(self._number))
        records = [self._plan.record(number) for number in numbers]
        call = partial(
            self._producer.send_many,
            records[0].topic,
            [self._given(record) for record in records],
            keys=[record.key for record in records],
            headers=[list(record.headers) for record in records] if self._plan.magic == 2 else None,
            partitions=[record.partition for record in records],
        )
        timestamps = [record.timestamp_ms for record in records]
        self._queue(numbers, partial(call, timestamps_ms=timestamps))

    def _send_arrow(self) -> None:
        numbers = self._next(self._until)
        rows: list[dict[str, Any]] = [
            {
                "topic": record.topic,
                "partition": record.partition,
                "key": record.key,
                "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
                "timestamp": record.timestamp_ms,
                **(json.loads(record.value) if self._plan.json else {"value": record.value}),
            }
            for record in map(self._plan.record, numbers)
        ]
        table = pa.RecordBatch.from_pylist(rows, schema=_OBJECTS if self._plan.json else _PLAIN)
        send = partial(self._producer.send_arrow, table)
        self._queue(numbers, partial(send, value_format=Json()) if self._plan.json else send)

    def _next(self, end: int) -> range:
        count = self._draw.choice((1, 5, 30, 150))
        numbers = range(self._number, min(self._number + count, end, self._until))
        self._number = numbers.stop
        return numbers

    def _queue(self, numbers: range, call: Callable[[], object]) -> None:
        self._ledger.mark_all(numbers.start, numbers.stop, self._under_way)
        try:
            call()
        except KafkaError as error:
            queued = int(getattr(error, "rows_queued", 0))
            logging.info("%d rows of %s are queued: %r", queued, numbers, error)
            self._ledger.mark_all(numbers.start + queued, numbers.stop, Mark.REFUSED)
            self._ledger.mark_all(numbers.start, numbers.start + queued, self._returned)
            return
        self._ledger.mark_all(numbers.start, numbers.stop, self._returned)

    # ---- calls without records

    def _fork(self) -> None:
        """The child leaves the file to this process. It may outlive it, and does not keep the lock."""
        if os.fork():
            return
        try:
            signal.alarm(_LONGEST_CHILD)  # a fork may copy a lock that somebody holds
            if self._draw.random() < 0.5 and not self._plan.transaction:
                self._producer.flush(1.0)
            gc.collect()
            time.sleep(self._draw.choice((0.0, 0.02, 0.1)))
        finally:
            os._exit(0)

    def _rest(self) -> None:
        time.sleep(self._draw.choice((0.0, 0.0003, 0.002)))

    def _flush(self) -> None:
        number = self._number
        try:
            self._producer.flush(self._draw.choice((0.001, 0.05)))
        except TimeoutError:
            return
        self._settle(number)

    def _purge(self) -> None:
        """Those that are not purged, although it was called, keep their promise. It purges recovered records too."""
        in_flight = self._draw.random() < 0.5
        self._ledger.replace(0, self._first, Mark.RETURNED, Mark.PERHAPS)
        self._ledger.replace(self._settled, self._number, Mark.RETURNED, Mark.PERHAPS)
        self._producer.purge(in_flight=in_flight)
        try:
            self._producer.flush(0.2)
        except TimeoutError:
            return
        for number, future in self._futures.items():
            error = future.exception(0)
            if error is None:
                self._ledger.mark(number, Mark.RETURNED)
            elif isinstance(error, PurgedError) and not in_flight:
                self._ledger.mark(number, Mark.PURGED)
        self._settle(self._number)

    def _settle(self, number: int) -> None:
        self._settled = number
        self._futures.clear()
