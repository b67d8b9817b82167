"""`kafkabuf consume`: prints the records of a topic of any cluster. topic_reader.py says which client reads and why."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from kafkabuf.cli.connection import config_of, connection_options, errors_explained, require_topic, servers_of
from kafkabuf.cli.output import safe_output
from kafkabuf.process._time import monotonic

if TYPE_CHECKING:
    from kafkabuf.broker.log.decoding import ConsumerRecord
    from kafkabuf.cli.record_format import Format
    from kafkabuf.cli.topic_reader import TopicReader

_POLL_SECONDS = 1.0


@click.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest record, not with the next that arrives.")
@click.option("-n", "--max-messages", type=click.IntRange(1), metavar="N", help="End after this many records.")
@click.option("-e", "--exit-at-end", is_flag=True, help="End at the last record that there is at the start.")
@click.option(
    "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="End when no record has come for this long."
)
@click.option(
    "-p", "--partition", "partitions", multiple=True, type=click.IntRange(0), help="Default: all. Repeatable."
)
@click.option(
    "-f",
    "--format",
    "output_format",
    default="value",
    show_default=True,
    help="value, key-value (with a tab between), json, or a template with kcat's tokens: %k key, %s value, %h headers, "
    "%t topic, %p partition, %o offset, %T timestamp, %K and %S lengths; \\n and \\t.",
)
@click.option(
    "--isolation-level",
    default="read_committed",
    show_default=True,
    type=click.Choice(["read_committed", "read_uncommitted"]),
    help="Whether to leave out the records of open and aborted transactions.",
)
@connection_options
def consume(
    topic: str,
    from_beginning: bool,
    max_messages: int | None,
    exit_at_end: bool,
    timeout: float | None,
    partitions: tuple[int, ...],
    output_format: str,
    isolation_level: str,
    bootstrap_servers: str | None,
    config_file: Path | None,
    properties: tuple[str, ...],
) -> None:
    """Print the records of TOPIC, as they arrive, until Ctrl-C.

    It joins no group, commits no offset and creates no topic. The records of a partition come in their order. A
    terminal gets control characters of records as escapes; a pipe or a file gets every byte as it is. Exit status: 0
    done; 1 Kafka said no, or fewer records came than -n asks for; 2 an option or setting is wrong.

    \b
    kafkabuf consume orders --bootstrap-servers localhost:9092
    kafkabuf consume orders --from-beginning -n 10 -f json --bootstrap-servers localhost:9092 | jq .value
    kafkabuf consume orders --from-beginning -e -f '%p %o %k=%s\\n' --bootstrap-servers localhost:9092
    """
    from kafkabuf.cli.record_format import formatter
    from kafkabuf.cli.topic_reader import TopicReader

    require_topic(topic)
    if timeout is not None and math.isnan(timeout):
        raise click.BadParameter("a number of seconds is needed, found nan", param_hint="--timeout")
    if sys.stdout is None:
        raise click.ClickException("the output cannot be written: it is closed")
    config = config_of(bootstrap_servers, config_file, properties)
    servers = servers_of(config)
    try:
        output = _Output(formatter(output_format, visible=sys.stdout.isatty()), max_messages)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from None
    with errors_explained(servers), safe_output():
        try:
            with TopicReader(config, topic, committed=isolation_level == "read_committed") as reader:
                reader.open(partitions, from_beginning=from_beginning)
                _copy(reader, output, timeout, reader.ends() if exit_at_end else None)
        except KeyboardInterrupt:
            pass  # the end, unless -n asks for more
    if max_messages is not None and output.count < max_messages:
        raise click.ClickException(f"{output.count} of {max_messages} records came")


class _Output:
    """Standard output in bytes. `count` records were printed, of `limit` at most."""

    def __init__(self, format_record: Format, limit: int | None) -> None:
        self.count = 0
        self._format = format_record
        self._limit = limit
        self._out: BinaryIO = sys.stdout.buffer

    @property
    def full(self) -> bool:
        return self._limit is not None and self.count >= self._limit

    def write(self, records: Iterable[ConsumerRecord]) -> None:
        """Prints the records at once: the reader of a pipe waits for them."""
        for record in records:
            if self.full:
                break
            self._out.write(self._format(record))
            self.count += 1
        self._out.flush()


def _copy(reader: TopicReader, output: _Output, timeout: float | None, ends: dict[int, int] | None) -> None:
    """Prints until the output is full, the ends are reached or no record comes for `timeout` seconds."""
    last = monotonic()
    while not output.full and not _ended(reader.offsets, ends):
        left = _POLL_SECONDS if timeout is None else min(last + timeout - monotonic(), _POLL_SECONDS)
        records = reader.poll(max(left, 0.0))
        for note in reader.notes:
            click.echo(f"Note: {note}.", err=True)
        reader.notes.clear()
        if ends is not None:
            records = [record for record in records if record.offset < ends[record.partition]]
        if records:
            output.write(records)
            last = monotonic()
        elif timeout is not None and monotonic() - last >= timeout:
            return


def _ended(offsets: dict[int, int], ends: dict[int, int] | None) -> bool:
    return ends is not None and all(offsets[number] >= end for number, end in ends.items())
