"""The loop of `kafkabuf produce`: it reads the inputs in turn, and ends with the last acknowledgement."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from kafkabuf.cli.long_input import Interrupt, interruptible, progress_of
from kafkabuf.cli.output import StoppedBySignalError, file_error, naming
from kafkabuf.cli.produce.delivery import Delivery, Faults, StoppedError
from kafkabuf.cli.produce.inputs.block import Reader, Target
from kafkabuf.cli.produce.inputs.bytes import InputBytes
from kafkabuf.cli.produce.inputs.source import Source
from kafkabuf.cli.units import counted
from kafkabuf.errors import KafkaError
from kafkabuf.process._time import monotonic
from kafkabuf.producer import KafkaProducer

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig

_ALL = 1 << 30


class InputLoop:
    """Sends the inputs to a topic."""

    def __init__(self, config: ProducerConfig, topic: str, faults: Faults, reader: Reader) -> None:
        self._config = config
        self._topic = topic
        self._faults = faults
        self._reader = reader

    def copy(self, sources: Sequence[Source]) -> None:
        """Raises click.ClickException if a line or Ctrl-C ended the run, and KafkaError if Kafka did."""
        began = monotonic()
        why, wish = None, "interrupted"
        with KafkaProducer(self._config) as producer, interruptible() as interrupt:
            delivery = Delivery(self._faults)
            try:
                _save(sources)  # what is sent without a state would be sent again
                self._read(sources, producer, delivery, interrupt)
                delivery.settle(0)
                self._faults.flush()
            except (KafkaError, KeyboardInterrupt) as error:
                producer.close(0)
                delivery.give_up(getattr(error, "report", None))
                if isinstance(error, KafkaError):
                    click.echo(self._summary(delivery, began), err=True)
                    raise
                wish = "interrupted twice"
            except (StoppedError, click.ClickException, OSError) as error:
                why = file_error(error) if isinstance(error, OSError) else str(error)
                delivery.give_up()
            finally:
                unsaved = _unsaved(sources)
                if unsaved is not None and unsaved != why:
                    click.echo(unsaved, err=True)
        summary = self._summary(delivery, began)
        if why is not None:
            raise click.ClickException(f"{why}; {summary}")
        if interrupt.seen:
            raise StoppedBySignalError(f"{wish}; {summary}", interrupt.number)
        if unsaved is not None:
            raise click.ClickException(summary)
        click.echo(summary, err=True)

    def _read(
        self, sources: Sequence[Source], producer: KafkaProducer[Any, Any], delivery: Delivery, interrupt: Interrupt
    ) -> None:
        # Now: a file may be gone when all of it is sent.
        sizes = [source.nbytes for source in sources]
        with progress_of(sum(sizes)) as show:
            partitions = interrupt.cut(lambda: len(producer.partitions_for(self._topic).partitions))
            if partitions is None:
                return
            target = Target(producer, self._topic, partitions, self._config.max_request_size)
            before = 0
            for source, nbytes in zip(sources, sizes, strict=True):
                delivery.source = source
                with naming(source.file), _opened(source, delivery, interrupt) as opened:
                    blocks = self._reader(opened, source, target, self._faults.spill)
                    for block in interrupt.watched(blocks):
                        delivery.add(block)
                        show(before + opened.consumed, delivery.acknowledged)
                if interrupt.seen:
                    return
                before += nbytes

    def _summary(self, delivery: Delivery, began: float) -> str:
        seconds = monotonic() - began
        left_out = f", {counted(self._faults.count, self._faults.unit)} left out" if self._faults.count else ""
        rate = f" in {seconds:.1f} s ({delivery.acknowledged / max(seconds, 1e-9):,.0f}/s)"
        return f"{counted(delivery.acknowledged, 'record')} acknowledged{rate}{left_out}"


@contextmanager
def _opened(source: Source, delivery: Delivery, interrupt: Interrupt) -> Iterator[InputBytes]:
    """The bytes of an input: none where Ctrl-C ends the wait for a pipe's writer. While a pipe has nothing, the
    outcomes that there are are taken. Raises StoppedError behind a file that has become shorter."""
    idle = lambda: interrupt.whole(lambda: delivery.settle(_ALL))  # noqa: E731
    with interrupt.cut(source.open) or open(os.devnull, "rb", buffering=0) as file:
        nbytes = os.fstat(file.fileno()).st_size
        opened = InputBytes(file.fileno(), idle)
        yield opened
        if interrupt.seen:
            return
        if not (nbytes or opened.consumed):
            click.echo(f"{source.name} is empty", err=True)
        if os.fstat(file.fileno()).st_size < nbytes:
            delivery.settle(0)
            raise StoppedError(f"{source.file} has become shorter while it was read: some of its lines are not sent")


def _save(sources: Sequence[Source]) -> None:
    """Raises click.ClickException if a state cannot be saved."""
    for source in sources:
        if source.state is not None:
            source.state.save()


def _unsaved(sources: Sequence[Source]) -> str | None:
    """Saves the states of the inputs. The text says why one cannot be saved."""
    try:
        _save(sources)
    except click.ClickException as error:
        return str(error)
    return None
