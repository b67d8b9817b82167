"""`kafkabuf produce`: each line of a file or pipe becomes a record. delivery.py says what becomes of faulty lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kafkabuf.cli.connection import (
    OF_SENDING,
    config_of,
    connection_options,
    errors_explained,
    require_topic,
    servers_of,
)
from kafkabuf.cli.long_input import Interrupt, interruptible, progress_of
from kafkabuf.cli.resume import Resume

if TYPE_CHECKING:
    from kafkabuf.cli.delivery import Delivery, Refusals
    from kafkabuf.cli.input_records import Columns, Parse
    from kafkabuf.config import ProducerConfig
    from kafkabuf.formats import Avro, Json
    from kafkabuf.producer import KafkaProducer

    Sender = Callable[["_Run", KafkaProducer[Any, Any], Delivery, Interrupt], None]

_SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow",
}  # fmt: skip
_TABLES = ("csv", "parquet", "arrow")
_ALL = 1 << 30
_COLUMNS = ("key", "headers", "timestamp", "partition", "value")


@click.command()
@click.argument("topic")
@click.argument("file", default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "-f",
    "--format",
    "input_format",
    type=click.Choice(["lines", "jsonl", *_TABLES]),
    help="Default: by the suffix of FILE, else lines. csv, parquet and arrow need a FILE and pyarrow.",
)
@click.option("--key-separator", metavar="SEP", help="lines: what stands between key and value, such as : or \\t.")
@click.option("--key", metavar="COL", help="The column for the record's key.")
@click.option("--headers", metavar="COL", help="The column for the headers, an object.")
@click.option("--timestamp", metavar="COL", help="The column for the time, in milliseconds or as ISO-8601 text.")
@click.option("--partition", metavar="COL", help="The column for the partition.")
@click.option("--value", metavar="COL", help="The column for the value; default: see --value-format.")
@click.option(
    "--value-format",
    type=click.Choice(["raw", "json", "avro"]),
    help="raw: the line as it is, or the text of the column; json, avro: the columns without those of other options. "
    "Default: raw for lines and jsonl, else json.",
)
@click.option(
    "--value-schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The schema for avro; default: that of the file's columns.",
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
@click.option(
    "--resume",
    is_flag=True,
    help="Keep in FILE.kafkabuf-resume how far FILE is acknowledged, and go on there. Each line arrives at least once.",
)
@click.option(
    "--resume-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="STATE",
    help="As --resume, in this file.",
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
    value_format: str | None,
    value_schema: Path | None,
    on_error: str,
    dead_letter_file: Path | None,
    resume: bool,
    resume_file: Path | None,
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
    from kafkabuf.cli.delivery import Refusals
    from kafkabuf.cli.input_records import Columns

    require_topic(topic)
    columns = Columns(key, headers, timestamp, partition, value)
    kind = input_format or _SUFFIXES.get(Path(file).suffix.lower(), "lines")
    value_format = value_format or ("json" if kind in _TABLES else "raw")
    _check_options(kind, columns, key_separator, value_format)
    if kind in _TABLES and file == "-":
        raise click.UsageError(f"{kind} needs a FILE")
    if value_schema is not None and value_format != "avro":
        raise click.UsageError("--value-schema is for --value-format avro")
    if (on_error == "dead-letter") != (dead_letter_file is not None):
        raise click.UsageError("--on-error dead-letter and --dead-letter-file FILE belong together")
    if resume and resume_file is None:
        resume_file = Path(f"{file}.kafkabuf-resume")
    if resume_file is not None and file == "-":
        raise click.UsageError("--resume needs a FILE")
    config = config_of(bootstrap_servers, command_config, properties, OF_SENDING)
    if config.transactional_id:
        raise click.UsageError("this command has no transactions: leave transactional.id out")
    servers = servers_of(config)
    with errors_explained(servers), _files_explained(), ExitStack() as stack:
        letters = None if dead_letter_file is None else stack.enter_context(dead_letter_file.open("ab"))
        state = None if resume_file is None else Resume(resume_file, file, topic, kind)
        if kind in _TABLES:
            table = stack.enter_context(open(file, "rb"))
            run = _Run(config, topic, Refusals(on_error, letters, "row"), state)
            run.copy(_table_sender(table, kind, columns, _format(value_format, value_schema)))
            return
        encode = _encoder(value_format, value_schema, config)
        run = _Run(config, topic, Refusals(on_error, letters), state)
        run.copy(_line_sender(_opened(stack, file), _parser(kind, columns, key_separator, encode)))


def _check_options(kind: str, columns: Columns, separator: str | None, value_format: str) -> None:
    if kind != "lines":
        if separator is not None:
            raise click.UsageError(f"--key-separator is for --format lines; {kind} has --key COL")
        return
    for name, column in zip(_COLUMNS, columns, strict=True):
        if column is not None:
            raise click.UsageError(f"lines have no columns, which --{name} needs: give --format jsonl")
    if value_format != "raw":
        raise click.UsageError(f"lines have no columns, which --value-format {value_format} needs")
    if separator == "":
        raise click.UsageError("--key-separator needs at least one character")


def _format(name: str, schema: Path | None) -> Avro | Json | None:
    """What makes values; None for raw. Raises ConfigError for a file that is no schema."""
    if name == "raw":
        return None
    from kafkabuf.formats import Avro, Json

    return Json() if name == "json" else Avro(None if schema is None else schema.read_text("utf-8"))


def _encoder(name: str, schema: Path | None, config: ProducerConfig) -> Callable[[Any], bytes] | None:
    """What makes a value of an object of JSON; None for raw."""
    from kafkabuf.cli.input_records import compact
    from kafkabuf.errors import SerializationError

    if name != "avro":
        return compact if name == "json" else None
    if schema is None:
        raise click.UsageError("avro of jsonl needs --value-schema FILE")
    if config.given_to_schema_registry():
        raise click.UsageError("a Schema Registry needs --format csv, parquet or arrow")
    made = _format(name, schema)

    def encode(value: Any) -> bytes:
        assert made is not None
        try:
            return bytes(made.encode_object(value))  # type: ignore[arg-type]  # None only for None
        except SerializationError as error:
            raise ValueError(str(error)) from error

    return encode


def _parser(
    kind: str, columns: Columns, separator: str | None, encode: Callable[[Any], bytes] | None
) -> Callable[[int], Parse]:
    """What parses lines for a topic with so many partitions."""
    from kafkabuf.cli import input_records as records

    if kind == "lines":
        found = None if separator is None else separator.replace("\\t", "\t").encode(errors="surrogateescape")
        return lambda partitions: records.plain_lines if found is None else records.separated_lines(found)
    if encode is None and not any(columns):
        return lambda partitions: records.whole_json_lines
    return lambda partitions: records.JsonLines(columns, partitions, encode)


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

    def __init__(self, config: ProducerConfig, topic: str, refusals: Refusals, state: Resume | None) -> None:
        self.state = state
        self.config = config
        self.topic = topic
        self.refusals = refusals

    def copy(self, send: Sender) -> None:
        """Raises click.ClickException if a line or Ctrl-C ended the run, and KafkaError if Kafka did."""
        from kafkabuf.cli.delivery import Delivery, StoppedError
        from kafkabuf.errors import KafkaError
        from kafkabuf.producer import KafkaProducer

        with KafkaProducer(self.config) as producer:
            delivery = Delivery(
                lambda records: producer.send_many(self.topic, *records.columns), self.refusals, self._settled
            )
            why = None
            with interruptible() as interrupt:
                try:
                    send(self, producer, delivery, interrupt)
                    delivery.settle(0)
                    why = "interrupted" if interrupt.seen else None
                except (StoppedError, click.ClickException) as error:
                    why = str(error)
                    delivery.give_up()
                except (KafkaError, KeyboardInterrupt) as error:
                    producer.close(0)
                    delivery.give_up(getattr(error, "report", None))
                    if isinstance(error, KafkaError):
                        click.echo(self._summary(delivery), err=True)
                        raise
                    why = "interrupted twice"
                finally:
                    if self.state is not None:
                        self.state.save()
        if why is not None:
            raise click.ClickException(f"{why}; {self._summary(delivery)}")
        click.echo(self._summary(delivery), err=True)

    def _settled(self, offset: int, count: int) -> None:
        if self.state is not None:
            self.state.settled(offset, count)

    def _summary(self, delivery: Delivery) -> str:
        left_out = f", {self.refusals.count:,} {self.refusals.unit}s left out" if self.refusals.count else ""
        return f"{delivery.acknowledged:,} records acknowledged{left_out}"


def _line_sender(source: int, parser: Callable[[int], Parse]) -> Sender:
    """Sends the lines of a descriptor."""

    def send(run: _Run, producer: KafkaProducer[Any, Any], delivery: Delivery, interrupt: Interrupt) -> None:
        from kafkabuf.cli.input_lines import LineReader

        limit = run.config.max_request_size
        parse = parser(len(producer.partitions_for(run.topic).partitions))
        idle = lambda: interrupt.whole(lambda: delivery.settle(_ALL))  # noqa: E731
        offset, count = (0, 0) if run.state is None else (run.state.offset, run.state.count)
        if offset:
            os.lseek(source, offset, os.SEEK_SET)
        reader = LineReader(source, limit, spill=run.refusals.spill, idle=idle, offset=offset, line=count + 1)
        with progress_of(source) as show:
            for block in interrupt.watched(reader.blocks()):
                delivery.add(parse(block), block.end, block.first + len(block.lines) - 1)
                if block.overlong:
                    delivery.add_overlong(block.first, f"it is longer than max.request.size ({limit} bytes)")
                show(block.end, delivery.acknowledged)

    return send


def _table_sender(file: BinaryIO, kind: str, columns: Columns, value_format: Avro | Json | None) -> Sender:
    """Sends the rows of a file."""
    from kafkabuf.cli.input_tables import RowsAsJson, Shaper, batches

    shaped = Shaper(columns, raw=value_format is None)

    def send(run: _Run, producer: KafkaProducer[Any, Any], delivery: Delivery, interrupt: Interrupt) -> None:
        first = 1
        done = 0 if run.state is None else run.state.count
        with progress_of(file.fileno()) as show:
            for batch in interrupt.watched(batches(file, kind, columns)):
                skipped = min(max(done + 1 - first, 0), batch.num_rows)
                first += skipped
                batch = batch.slice(skipped)
                if not batch.num_rows:
                    continue
                rows = shaped(batch)
                delivery.add_rows(
                    lambda: producer.send_arrow(rows, run.topic, value_format=value_format),  # noqa: B023  # called now
                    first,
                    batch.num_rows,
                    RowsAsJson(batch),
                )
                first += batch.num_rows
                show(0 if file.closed else file.tell(), delivery.acknowledged)

    return send
