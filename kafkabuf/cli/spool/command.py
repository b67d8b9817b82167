"""`kafkabuf spool`: looks into the file of `kafkabuf.buffer.path`, checks and exports it, without the application."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkabuf.cli.connection import (
    OF_SENDING,
    Finite,
    config_of,
    connection_options,
    errors_explained,
    require_topic,
    servers_of,
)
from kafkabuf.cli.long_input import interruptible, progress_of
from kafkabuf.cli.output import StoppedBySignalError
from kafkabuf.cli.units import counted

if TYPE_CHECKING:
    from kafkabuf.spool.reading import SpoolReader

_path = click.argument("path", type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="For programs; docs/command-line.md names the keys.")


@click.group()
def spool() -> None:
    """See what the file of kafkabuf.buffer.path holds, and get its records out without the application.

    Exit status: 0 done; 1 as the command says; 2 an option is wrong, or PATH is no whole file of a buffer.
    """


@spool.command()
@_path
@click.option("--batches", is_flag=True, help="Each batch, too.")
@_json
def inspect(path: Path, batches: bool, as_json: bool) -> None:
    """Show the records that wait in PATH: how many of which partitions, since when, and what may be in the cluster.

    It needs no broker, changes nothing, and works while a process has the file open. Then each batch is shown as it was
    at the moment when it was read.

    \b
    kafkabuf spool inspect /var/spool/app/buffer
    kafkabuf spool inspect /var/spool/app/buffer --batches
    kafkabuf spool inspect /var/spool/app/buffer --json | jq .records
    """
    from dataclasses import asdict

    from kafkabuf.cli.output import console
    from kafkabuf.cli.spool.summary import summary_of
    from kafkabuf.cli.spool.tables import show

    with _reading(path) as reader, progress_of(reader.nbytes) as progress:
        summary = summary_of(reader, progress, with_batches=batches)
    if as_json:
        shown = asdict(summary)
        if not batches:
            del shown["batches"]
        click.echo(json.dumps(shown, indent=2, default=str))
    else:
        show(summary, console(), with_batches=batches)


@spool.command()
@_path
@_json
def check(path: Path, as_json: bool) -> None:
    """Read every entry and record of PATH as the next producer would, and unpack what is compressed.

    It needs no broker and changes nothing. Exit status: 0 all is whole; 1 something is damaged, and has a line.

    \b
    kafkabuf spool check /var/spool/app/buffer
    kafkabuf spool check /var/spool/app/buffer --json | jq .damaged
    """
    from kafkabuf.cli.spool.decoding import unpacked
    from kafkabuf.spool.reading import DamagedBatch

    damaged = []
    batches = records = read = 0
    with _reading(path) as reader, progress_of(reader.nbytes) as progress:
        for batch in map(unpacked, reader.batches(with_data=True)):
            if isinstance(batch, DamagedBatch):
                damaged.append({"place": batch.place, "reason": batch.reason})
            else:
                batches, records, read = batches + 1, records + batch.records, read + batch.nbytes
                progress(read, records)
    if as_json:
        outcome = {"path": str(path), "batches": batches, "records": records, "damaged": damaged}
        click.echo(json.dumps(outcome, indent=2))
    else:
        for each in damaged:
            click.echo(f"batch {each['place']} is damaged: {each['reason']}")
        click.echo(f"{counted(records, 'record')} in {batches:,} whole batches, {len(damaged):,} damaged")
    if damaged:
        raise click.exceptions.Exit(1)


@spool.command()
@_path
@click.option(
    "-f",
    "--format",
    "output_format",
    default="jsonl",
    show_default=True,
    type=click.Choice(["jsonl", "parquet"]),
    help="parquet needs pyarrow, and --output.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A new file, which only this user may read. Default: standard output.",
)
@click.option("--topic", "topics", multiple=True, help="Only the records of this topic; repeatable.")
def export(path: Path, output_format: str, output: Path | None, topics: tuple[str, ...]) -> None:
    """Write the records in PATH as JSON lines or Parquet, in the order in which their batches were opened.

    Each has topic, partition, timestamp, key, value, headers, and may_be_in_cluster: whether its batch has numbers, so
    that a broker may have taken it already. The records of a transaction that is not committed are left out. PATH stays
    as it is. Exit status: 0 done; 1 a damaged batch was left out, or the output failed; 2 an option is wrong.

    \b
    kafkabuf spool export /var/spool/app/buffer | jq .value
    kafkabuf spool export /var/spool/app/buffer --topic orders --output orders.jsonl
    kafkabuf spool export /var/spool/app/buffer --format parquet --output records.parquet
    """
    from kafkabuf.cli.spool.export import Export, sink_of

    for topic in topics:
        require_topic(topic)
    if output_format == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE: its directory is at its end")
    with _reading(path) as reader:
        if reader.holder is not None:
            click.echo(f"Note: process {reader.holder} has the file open, and goes on sending its records.", err=True)
        with sink_of(output_format, output) as sink, progress_of(reader.nbytes) as progress:
            written = Export(sink, topics)
            written.copy(reader, progress)
    for note in written.notes():
        click.echo(note, err=True)
    if written.damaged:
        raise click.exceptions.Exit(1)


@spool.command()
@_path
@click.option(
    "--timeout",
    type=Finite(0),
    metavar="SECONDS",
    help="End after this time, and leave the rest in PATH. Default: wait until each record has an outcome.",
)
@_json
@connection_options
def drain(
    path: Path,
    timeout: float | None,
    as_json: bool,
    bootstrap_servers: str | None,
    config_file: Path | None,
    properties: tuple[str, ...],
) -> None:
    """Deliver the records in PATH to the cluster without the application, in order, as its next start would.

    It asks the cluster which of the records it has already, and sends the others. buffer.memory and batch.size are
    those of the file. What belongs to a transaction that was not committed is dropped. Ctrl-C and SIGTERM end it, and
    leave the rest in PATH. Exit status: 0 the cluster has all records; 1 records remain in PATH, are damaged, or were
    refused; 2 an option or setting is wrong; 130 Ctrl-C; 143 SIGTERM.

    \b
    kafkabuf spool drain /var/spool/app/buffer -b localhost:9092
    kafkabuf spool drain /var/spool/app/buffer --config client.properties -X kafkabuf.buffer.unproven=keep
    kafkabuf spool drain /var/spool/app/buffer --timeout 60 --json -b localhost:9092 | jq .remaining
    """
    from kafkabuf.cli.spool.drain import drain, lines_of, settings_of

    with _reading(path) as reader:
        fixed, nbytes = settings_of(reader), reader.nbytes
    config = config_of(bootstrap_servers, config_file, properties, (*OF_SENDING, "kafkabuf."), fixed)
    if config.transactional_id:
        raise click.UsageError("this command has no transactions: leave transactional.id out")
    if fixed is None:
        click.echo(f"{path} holds no record that waits", err=True)
        return
    with errors_explained(servers_of(config)), interruptible() as interrupt, progress_of(nbytes) as progress:
        drained = drain(config, interrupt, timeout, nbytes, progress)
    *notes, end = lines_of(drained)
    for note in notes:
        click.echo(note, err=True)
    if as_json:
        click.echo(json.dumps(drained.as_json(), indent=2))
    if interrupt.seen:
        raise StoppedBySignalError(f"interrupted; {end}", interrupt.number)
    click.echo(end, err=True)
    if not drained.whole:
        raise click.exceptions.Exit(1)


@contextmanager
def _reading(path: Path) -> Iterator[SpoolReader]:
    from kafkabuf.spool.reading import SpoolReader, UnreadableError

    try:
        with SpoolReader(path) as reader:
            yield reader
    except UnreadableError as error:
        raise click.BadParameter(str(error), param_hint="PATH") from error
