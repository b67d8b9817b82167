"""One run of `kafkabuf produce`: it reads the inputs in turn, and ends with the last acknowledgement."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import RawIOBase
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from kafkabuf.append._bulk_lines import append_lines
from kafkabuf.append.report import BulkReport
from kafkabuf.cli.long_input import Interrupt, Show, interruptible, progress_of
from kafkabuf.cli.output import StoppedBySignalError, file_error, naming
from kafkabuf.cli.produce.delivery import Delivery, Refusals, Source, StoppedError
from kafkabuf.cli.produce.inputs.bytes import InputBytes
from kafkabuf.cli.produce.inputs.lines import LineReader
from kafkabuf.cli.units import counted
from kafkabuf.clock import SystemClock
from kafkabuf.errors import KafkaError
from kafkabuf.process._time import monotonic
from kafkabuf.producer import KafkaProducer

if TYPE_CHECKING:
    from kafkabuf.cli.produce.inputs.csv import Choices
    from kafkabuf.cli.produce.inputs.records import Columns, Parse, Records
    from kafkabuf.cli.produce.inputs.tables import Shaper
    from kafkabuf.cli.produce.resume import Resume
    from kafkabuf.config import ProducerConfig
    from kafkabuf.formats import Avro, Json, Protobuf

_ALL = 1 << 30
_CLOCK = SystemClock()


class Input(NamedTuple):
    """A file, or - for the standard input. With a `state` the reading goes on where that says."""

    file: str
    state: Resume | None

    @property
    def name(self) -> str:
        return self.file if self.file != "-" else "the standard input"

    @property
    def nbytes(self) -> int:
        """0 for a pipe."""
        return os.path.getsize(self.file) if self.file != "-" else 0

    def open(self) -> RawIOBase:
        """Waits for the writer of a named pipe."""
        if self.file != "-":
            return open(self.file, "rb", buffering=0)
        if sys.stdin is None:
            raise click.ClickException("the input cannot be read: it is closed")
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


class Reading(NamedTuple):
    """What the reading of one input needs. `show` gets bytes of this input and all acknowledged records."""

    producer: KafkaProducer[Any, Any]
    delivery: Delivery
    interrupt: Interrupt
    show: Show
    partitions: int


class Send(Protocol):
    """Sends the records of an input. Raises StoppedError, click.ClickException and KafkaError."""

    def __call__(self, run: Run, source: Input, reading: Reading, /) -> None: ...


class Run:
    """Sends the inputs to a topic."""

    def __init__(self, config: ProducerConfig, topic: str, refusals: Refusals, send: Send) -> None:
        self.config = config
        self.topic = topic
        self.refusals = refusals
        self._send = send

    def copy(self, inputs: Sequence[Input]) -> None:
        """Raises click.ClickException if a line or Ctrl-C ended the run, and KafkaError if Kafka did."""
        began = monotonic()
        why, wish = None, "interrupted"
        with KafkaProducer(self.config) as producer, interruptible() as interrupt:
            delivery = Delivery(lambda records: self._sent(producer, records), self.refusals)
            try:
                _save_all(inputs)  # what is sent without a state would be sent again
                self._read(inputs, producer, delivery, interrupt)
                delivery.settle(0)
                self.refusals.flush()
            except (StoppedError, click.ClickException) as error:
                why = str(error)
                delivery.give_up()
            except (KafkaError, KeyboardInterrupt) as error:
                producer.close(0)
                delivery.give_up(getattr(error, "report", None))
                if isinstance(error, KafkaError):
                    click.echo(self._summary(delivery, began), err=True)
                    raise
                wish = "interrupted twice"
            except OSError as error:
                why = file_error(error)
                delivery.give_up()
            finally:
                unsaved = _unsaved(inputs)
                if unsaved is not None and unsaved != why:
                    click.echo(unsaved, err=True)
        if why is not None:
            raise click.ClickException(f"{why}; {self._summary(delivery, began)}")
        if interrupt.seen:
            raise StoppedBySignalError(f"{wish}; {self._summary(delivery, began)}", interrupt.number)
        if unsaved is not None:
            raise click.ClickException(self._summary(delivery, began))
        click.echo(self._summary(delivery, began), err=True)

    def _sent(self, producer: KafkaProducer[Any, Any], records: Records) -> BulkReport:
        if records.text is None:
            return producer.send_many(self.topic, *records.columns)
        report = BulkReport(_CLOCK)
        append_lines(producer, report, self.topic, records.text)
        return report

    def _read(
        self, inputs: Sequence[Input], producer: KafkaProducer[Any, Any], delivery: Delivery, interrupt: Interrupt
    ) -> None:
        before = 0
        # Now: a file may be gone when all of it is sent.
        sizes = [source.nbytes for source in inputs]
        with progress_of(sum(sizes)) as show:
            for source, nbytes in zip(inputs, sizes, strict=True):
                if interrupt.seen:
                    return
                name = source.file if len(inputs) > 1 else ""
                delivery.source = Source(name) if source.state is None else Source(name, source.state.settled)

                def show_all(nbytes: int, records: int, before: int = before) -> None:
                    show(before + nbytes, records)

                partitions = interrupt.cut(lambda: len(producer.partitions_for(self.topic).partitions))
                if partitions is not None:
                    with naming(source.file):
                        self._send(self, source, Reading(producer, delivery, interrupt, show_all, partitions))
                before += nbytes

    def _summary(self, delivery: Delivery, began: float) -> str:
        seconds = monotonic() - began
        left_out = f", {counted(self.refusals.count, self.refusals.unit)} left out" if self.refusals.count else ""
        rate = f" in {seconds:.1f} s ({delivery.acknowledged / max(seconds, 1e-9):,.0f}/s)"
        return f"{counted(delivery.acknowledged, 'record')} acknowledged{rate}{left_out}"


def _save_all(inputs: Sequence[Input]) -> None:
    """Raises click.ClickException if a state cannot be saved."""
    for source in inputs:
        if source.state is not None:
            source.state.save()


def _unsaved(inputs: Sequence[Input]) -> str | None:
    """Saves the states of the inputs. The text says why one cannot be saved."""
    try:
        _save_all(inputs)
    except click.ClickException as error:
        return str(error)
    return None


def line_sender(parser: Callable[[int], Parse]) -> Send:
    """Sends the lines of an input. `parser` makes what parses lines for a topic with so many partitions."""

    def send(run: Run, source: Input, reading: Reading) -> None:
        delivery, limit = reading.delivery, run.config.max_request_size
        parse = parser(reading.partitions)
        offset, count = (0, 0) if source.state is None else (source.state.offset, source.state.count)
        with _opened(source, reading, offset) as opened:
            reader = LineReader(opened, limit, spill=run.refusals.spill, line=count + 1)
            for block in reading.interrupt.watched(reader.blocks()):
                delivery.add(parse(block), block.end, block.first + block.line_count - 1)
                if block.overlong:
                    delivery.add_overlong(block.first, f"it is longer than max.request.size ({limit} bytes)")
                reading.show(opened.consumed, delivery.acknowledged)

    return send


def row_sender(
    kind: str,
    columns: Columns,
    value_format: Avro | Json | Protobuf | None,
    choices: Choices | None = None,
    *,
    one_type: bool = False,
) -> Send:
    """Sends the rows of an input. `choices` are those of CSV; `one_type`: see Shaper."""
    from kafkabuf.cli.produce.inputs.checks import checked
    from kafkabuf.cli.produce.inputs.faults import RowsAsJson
    from kafkabuf.cli.produce.inputs.tables import Shaper, rows_of

    shaped = Shaper(columns, raw=value_format is None, one_type=one_type)

    def send(run: Run, source: Input, reading: Reading) -> None:
        delivery = reading.delivery
        done = 0 if source.state is None else source.state.count
        with _opened(source, reading) as opened:
            for block in reading.interrupt.watched(rows_of(source.file, opened, kind, columns, choices)):
                rows = checked(block.behind(done), columns, reading.partitions)
                if run.refusals.stops:
                    rows = rows.before_refused()
                send_rows = _sending(rows.batch, shaped, reading.producer, run.topic, value_format)
                delivery.add_rows(send_rows, rows.numbers, RowsAsJson(rows.batch), rows.refused)
                reading.show(rows.end, delivery.acknowledged)

    return send


def _sending(
    batch: Any,
    shaped: Shaper,
    producer: KafkaProducer[Any, Any],
    topic: str,
    value_format: Avro | Json | Protobuf | None,
) -> Callable[[int], BulkReport]:
    """What sends the rows of a batch from a place on."""
    made: list[Any] = []

    def send(first: int) -> BulkReport:
        if not made:
            made.append(shaped(batch))
        return producer.send_arrow(made[0].slice(first), topic, value_format=value_format)

    return send


@contextmanager
def _opened(source: Input, reading: Reading, offset: int = 0) -> Iterator[InputBytes]:
    """The bytes of an input from there on: none where Ctrl-C ends the wait for a pipe's writer. While a pipe has
    nothing, the outcomes that there are are taken. Raises StoppedError behind a file that has become shorter."""
    delivery, interrupt = reading.delivery, reading.interrupt
    idle = lambda: interrupt.whole(lambda: delivery.settle(_ALL))  # noqa: E731
    with interrupt.cut(source.open) or open(os.devnull, "rb", buffering=0) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if offset:
            file.seek(offset)
        opened = InputBytes(file.fileno(), idle, offset=offset)
        yield opened
        if not (nbytes or opened.consumed or interrupt.seen):
            click.echo(f"{source.name} is empty", err=True)
        if os.fstat(file.fileno()).st_size < nbytes and not interrupt.seen:
            delivery.settle(0)
            raise StoppedError(f"{source.file} has become shorter while it was read: some of its lines are not sent")
