"""The child: a producer with a buffer's file, which does everything that a producer can until it is killed."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from kafkabuf import KafkaProducer
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import KafkaError, PurgedError, TimeoutError
from tests.spool.kills.ledger import Ledger, Mark, Phase
from tests.spool.kills.plan import Life, Plan, end_of_topic, first_number

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
    ]
)


def main(plan: Plan, life: int, folder: Path, bootstrap_servers: str) -> None:
    """Runs in a process of its own."""
    with (folder / f"errors-{life}").open("w") as errors:
        sys.stderr = errors
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
        producer = KafkaProducer(settings)
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
        self._settled = first  # the outcomes of the numbers before are known
        self._futures: dict[int, RecordFuture] = {}

    def run(self) -> None:
        steps = [self._send_some] * 8 + [self._send_many, self._send_arrow] * 2 + [self._rest] * 3 + [self._flush]
        steps += [self._purge] if self._life.purges else []
        while self._number < self._end:
            self._draw.choice(steps)()

    # ---- one record at a time

    def _send_some(self) -> None:
        for _ in range(self._draw.choice((1, 1, 3, 20))):
            if self._number == self._end:
                return
            number, self._number = self._number, self._number + 1
            self._send(number)

    def _send(self, number: int) -> None:
        record = self._plan.record(number)
        self._ledger.mark(number, Mark.UNDER_WAY)
        try:
            future = self._producer.send(
                record.topic,
                record.value,
                key=record.key,
                headers=list(record.headers) or None,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
        except KafkaError as error:
            logging.info("record %d is refused: %r", number, error)
            self._ledger.mark(number, Mark.REFUSED)
            return
        self._ledger.mark(number, Mark.RETURNED)
        if self._life.purges:
            self._futures[number] = future

    # ---- many at a time

    def _send_many(self) -> None:
        numbers = self._next(end_of_topic(self._number))
        records = [self._plan.record(number) for number in numbers]
        call = partial(
            self._producer.send_many,
            records[0].topic,
            [record.value for record in records],
            keys=[record.key for record in records],
            headers=[list(record.headers) for record in records] if self._plan.magic == 2 else None,
            partitions=[record.partition for record in records],
        )
        timestamps = [record.timestamp_ms for record in records]
        self._queue(numbers, partial(call, timestamps_ms=timestamps))

    def _send_arrow(self) -> None:
        numbers = self._next(self._end)
        rows = [
            {
                "topic": record.topic,
                "partition": record.partition,
                "key": record.key,
                "value": record.value,
                "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
                "timestamp": record.timestamp_ms,
            }
            for record in map(self._plan.record, numbers)
        ]
        self._queue(numbers, partial(self._producer.send_arrow, pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)))

    def _next(self, end: int) -> range:
        count = self._draw.choice((1, 5, 30, 150))
        numbers = range(self._number, min(self._number + count, end, self._end))
        self._number = numbers.stop
        return numbers

    def _queue(self, numbers: range, call: Callable[[], object]) -> None:
        self._ledger.mark_all(numbers.start, numbers.stop, Mark.UNDER_WAY)
        try:
            call()
        except KafkaError as error:
            queued = int(getattr(error, "rows_queued", 0))
            logging.info("%d rows of %s are queued: %r", queued, numbers, error)
            self._ledger.mark_all(numbers.start + queued, numbers.stop, Mark.REFUSED)
            self._ledger.mark_all(numbers.start, numbers.start + queued, Mark.RETURNED)
            return
        self._ledger.mark_all(numbers.start, numbers.stop, Mark.RETURNED)

    # ---- calls without records

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
