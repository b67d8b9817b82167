"""`kafkabuf produce`: each line of a file or pipe becomes a record. delivery.py says what becomes of faulty lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from kafkabuf.cli.connection import OF_SENDING, config_of, connection_options, errors_explained
from kafkabuf.cli.long_input import Interrupt, interruptible, progress_of

if TYPE_CHECKING:
    from kafkabuf.cli.delivery import Delivery
    from kafkabuf.cli.input_records import Parse
    from kafkabuf.config import ProducerConfig

_JSON_SUFFIXES = (".jsonl", ".ndjson")
_ALL = 1 << 30
_COLUMNS = ("key", "headers", "timestamp", "partition", "value")


@click.command()
@click.argument("topic")
@click.argument("file", default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "-f",
    "--format",
    "input_format",
    type=click.Choice(["lines", "jsonl"]),
    help="Default: jsonl for a file *.jsonl or *.ndjson, else lines.",
)
@click.option("--key-separator", metavar="SEP", help="lines: what stands between key and value, such as : or \\t.")
@click.option("--key", metavar="COL", help="jsonl: the column for the record's key.")
@click.option("--headers", metavar="COL", help="jsonl: the column for the headers, an object.")
@click.option("--timestamp", metavar="COL", help="jsonl: the column for the time, in milliseconds or as ISO-8601 text.")
@click.option("--partition", metavar="COL", help="jsonl: the column for the partition.")
@click.option("--value", metavar="COL", help="jsonl: the column for the value; default: see --value-format.")
@click.option(
    "--value-format",
    default="raw",
    show_default=True,
    type=click.Choice(["raw", "json"]),
    help="raw: the line as it is, or the text of the column; json: the columns without those of other options.",
)
@click.option(
    "--on-error",
    default="stop",
    show_default=True,
    type=click.Choice(["stop", "skip", "dead-letter"]),
    help="What becomes of a line that is no record, or that Kafka refuses.",
)
@click.option(
    "--dead-letter-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where --on-error dead-letter appends the lines.",
)
@connection_options
def produce(
    topic: str,
    file: str,
    input_format: str | None,
    key_separator: str | None,
    key: str | None,
    headers: str | None,
    timestamp: str | None,
    partition: str | None,
    value: str | None,
    value_format: str,
    on_error: str,
    dead_letter_file: Path | None,
    bootstrap_servers: str | None,
    command_config: Path | None,
    properties: tuple[str, ...],
) -> None:
    """Send each line of FILE to TOPIC as a record. Without FILE, or with -, the lines come from a pipe or terminal.

    Lines are sent as they come, and end with a line feed. In jsonl blank lines are left out, and a line is parsed only
    if an option needs its columns. Ctrl-C ends the reading; what was read is sent. Exit status: 0 all lines are
    acknowledged or left out as --on-error says; 1 a line or Kafka said no, or Ctrl-C; 2 an option or setting is wrong.

    \b
    kafkabuf produce orders orders.jsonl --key id --bootstrap-servers localhost:9092
    tail -f log | kafkabuf produce logs --bootstrap-servers localhost:9092
    kafkabuf produce users users.txt --key-separator : -X compression.type=zstd -b localhost:9092
    """
    from kafkabuf.cli.input_records import Columns
    from kafkabuf.metadata.snapshot import TOPIC_RULE, is_legal_topic

    if not is_legal_topic(topic):
        raise click.BadParameter(f"{topic!r} is no topic: {TOPIC_RULE}", param_hint="TOPIC")
    columns = Columns(key, headers, timestamp, partition, value)
    kind = input_format or ("jsonl" if file.endswith(_JSON_SUFFIXES) else "lines")
    _check_options(kind, columns, key_separator, value_format)
    if (on_error == "dead-letter") != (dead_letter_file is not None):
        raise click.UsageError("--on-error dead-letter and --dead-letter-file FILE belong together")
    config = config_of(bootstrap_servers, command_config, properties, OF_SENDING)
    if config.transactional_id:
        raise click.UsageError("this command has no transactions: leave transactional.id out")
    servers = ",".join(f"{host}:{port}" for host, port in config.bootstrap_servers)
    with errors_explained(servers), _files_explained(), ExitStack() as stack:
        source = _opened(stack, file)
        letters = None if dead_letter_file is None else stack.enter_context(dead_letter_file.open("ab"))
        _Run(config, topic, on_error, letters).copy(source, _parser(kind, columns, key_separator, value_format))


def _check_options(kind: str, columns: tuple[str | None, ...], separator: str | None, value_format: str) -> None:
    if kind == "jsonl":
        if separator is not None:
            raise click.UsageError("--key-separator is for --format lines; jsonl has --key COL")
        return
    for name, column in zip(_COLUMNS, columns, strict=True):
        if column is not None:
            raise click.UsageError(f"lines have no columns, which --{name} needs: give --format jsonl")
    if value_format != "raw":
        raise click.UsageError(f"lines have no columns, which --value-format {value_format} needs")
    if separator == "":
        raise click.UsageError("--key-separator needs at least one character")


def _parser(
    kind: str, columns: tuple[str | None, ...], separator: str | None, value_format: str
) -> Callable[[int], Parse]:
    """What parses lines for a topic with so many partitions."""
    from kafkabuf.cli import input_records as records

    if kind == "lines":
        found = None if separator is None else separator.replace("\\t", "\t").encode(errors="surrogateescape")
        return lambda partitions: records.plain_lines if found is None else records.separated_lines(found)
    if value_format == "raw" and not any(columns):
        return lambda partitions: records.whole_json_lines
    encode = records.compact if value_format == "json" else None
    return lambda partitions: records.JsonLines(records.Columns(*columns), partitions, encode)


def _opened(stack: ExitStack, file: str) -> int:
    """The descriptor of the input."""
    if file != "-":
        return stack.enter_context(open(file, "rb", buffering=0)).fileno()
    if sys.stdin is None:
        raise click.ClickException("the input cannot be read: it is closed")
    return sys.stdin.fileno()


@contextmanager
def _files_explained() -> Iterator[None]:
    from kafkabuf.errors import KafkaError

    try:
        yield
    except OSError as error:
        if isinstance(error, KafkaError):
            raise
        name = f" ({error.filename})" if error.filename else ""
        raise click.ClickException(f"a file cannot be read or written: {error.strerror or error}{name}") from error


class _Run:
    """One run of the command, from the first line to the last acknowledgement."""

    def __init__(self, config: ProducerConfig, topic: str, on_error: str, letters: BinaryIO | None) -> None:
        from kafkabuf.cli.delivery import Refusals

        self._config = config
        self._topic = topic
        self._refusals = Refusals(on_error, letters)

    def copy(self, source: int, parser: Callable[[int], Parse]) -> None:
        """Raises click.ClickException if a line or Ctrl-C ended the run, and KafkaError if Kafka did."""
        from kafkabuf.cli.delivery import Delivery, StoppedError
        from kafkabuf.errors import KafkaError
        from kafkabuf.producer import KafkaProducer

        with KafkaProducer(self._config) as producer:
            parse = parser(len(producer.partitions_for(self._topic).partitions))
            delivery = Delivery(lambda records: producer.send_many(self._topic, *records.columns), self._refusals)
            why = None
            with interruptible() as interrupt:
                try:
                    self._send(source, parse, delivery, interrupt)
                    why = "interrupted" if interrupt.seen else None
                except StoppedError as error:
                    why = str(error)
                    delivery.give_up()
                except (KafkaError, KeyboardInterrupt) as error:
                    producer.close(0)
                    delivery.give_up(getattr(error, "report", None))
                    if isinstance(error, KafkaError):
                        click.echo(self._summary(delivery), err=True)
                        raise
                    why = "interrupted twice"
        if why is not None:
            raise click.ClickException(f"{why}; {self._summary(delivery)}")
        click.echo(self._summary(delivery), err=True)

    def _send(self, source: int, parse: Parse, delivery: Delivery, interrupt: Interrupt) -> None:
        from kafkabuf.cli.input_lines import LineReader

        reader = LineReader(
            source,
            self._config.max_request_size,
            spill=self._refusals.spill,
            idle=lambda: interrupt.whole(lambda: delivery.settle(_ALL)),
        )
        with progress_of(source) as show:
            for block in interrupt.watched(reader.blocks()):
                delivery.add(parse(block), block.end)
                if block.overlong:
                    limit = self._config.max_request_size
                    delivery.add_overlong(block.first, f"it is longer than max.request.size ({limit} bytes)")
                show(block.end, delivery.acknowledged)
            delivery.settle(0)

    def _summary(self, delivery: Delivery) -> str:
        done = f"{delivery.acknowledged:,} records acknowledged"
        return done + (f", {self._refusals.count:,} lines left out" if self._refusals.count else "")
