"""`kafkabuf produce`: each line of a file or pipe becomes a record. delivery.py says what becomes of faulty lines."""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from kafkabuf.cli.connection import (
    OF_SENDING,
    config_of,
    connection_options,
    errors_explained,
    require_topic,
    servers_of,
)
from kafkabuf.cli.output import naming
from kafkabuf.cli.produce.checks import (
    TABLES,
    check_files,
    check_options,
    check_topic,
    check_written,
    delimiter_of,
    kind_of,
)
from kafkabuf.cli.produce.value_formats import ValueOptions, encoder_of, format_of

if TYPE_CHECKING:
    from kafkabuf.cli.produce.inputs.block import Columns, Reader
    from kafkabuf.cli.produce.inputs.source import Source
    from kafkabuf.config import ProducerConfig


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "-f",
    "--format",
    "input_format",
    type=click.Choice(["lines", "jsonl", *TABLES]),
    help="Default: by the suffix of the FILES (.jsonl, .ndjson, .csv, .tsv, .parquet, .arrow, .feather; .gz and .zst "
    "may follow), else lines. csv, parquet and arrow need pyarrow; parquet needs a FILE.",
)
@click.option("--key-separator", metavar="SEP", help="lines: what stands between key and value, such as : or \\t.")
@click.option("--delimiter", metavar="CHAR", help="csv: what stands between two fields. Default: a comma; \\t in .tsv.")
@click.option(
    "--types",
    multiple=True,
    metavar="COL=TYPE,...",
    help="csv: the types of columns, such as n=int64,price=double; infer guesses those of the others. Default: those "
    "of --value-schema, else text.",
)
@click.option("--key", metavar="COL", help="The column for the record's key.")
@click.option("--headers", metavar="COL", help="The column for the headers, an object.")
@click.option("--timestamp", metavar="COL", help="The column for the time, in milliseconds or as ISO-8601 text.")
@click.option("--partition", metavar="COL", help="The column for the partition.")
@click.option("--value", metavar="COL", help="The column for the value; default: see --value-format.")
@click.option(
    "--value-format",
    type=click.Choice(["raw", "json", "avro", "protobuf"]),
    help="raw: the line as it is, or the text of the column; the others: the columns without those of other options. "
    "Default: raw for lines and jsonl, else json.",
)
@click.option(
    "--hex",
    "digits",
    is_flag=True,
    help='jsonl: a key or raw value {"hex": "00ff"} is these bytes, as `kafkabuf consume -f json` prints them.',
)
@click.option(
    "--value-schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The schema for avro; default: that of the file's columns. For protobuf what `protoc --include_imports "
    "--descriptor_set_out=FILE` writes.",
)
@click.option("--value-message", metavar="NAME", help="The full name of the message for protobuf.")
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
    files: tuple[str, ...],
    input_format: str | None,
    key_separator: str | None,
    delimiter: str | None,
    types: tuple[str, ...],
    key: str | None,
    headers: str | None,
    timestamp: str | None,
    partition: str | None,
    value: str | None,
    value_format: str | None,
    digits: bool,
    value_schema: Path | None,
    value_message: str | None,
    on_error: str,
    dead_letter_file: Path | None,
    resume: bool,
    resume_file: Path | None,
    bootstrap_servers: str | None,
    config_file: Path | None,
    properties: tuple[str, ...],
) -> None:
    """Send each line of the FILES to TOPIC as a record. Without FILES, or with -, the lines come from a pipe.

    Lines are sent as they come, and end with a line feed. In jsonl blank lines are left out, and a line is parsed only
    if an option needs its columns. The fields of csv are text, unless --types or --value-schema says otherwise. What
    gzip and zstd have compressed is unpacked. Ctrl-C ends the reading; what was read is sent. Exit status: 0 all lines
    are acknowledged or left out as --on-error says; 1 a line or Kafka said no; 2 an option or setting is wrong; 130
    Ctrl-C; 143 SIGTERM, which ends the reading too.

    \b
    kafkabuf produce orders orders.jsonl --key id --bootstrap-servers localhost:9092
    tail -f log | kafkabuf produce logs --bootstrap-servers localhost:9092
    kafkabuf produce users users.txt --key-separator : -X compression.type=zstd -b localhost:9092
    """
    from kafkabuf.cli.produce.delivery import Faults
    from kafkabuf.cli.produce.inputs.block import Columns
    from kafkabuf.cli.produce.loop import InputLoop

    check_topic(topic, files)
    require_topic(topic)
    files = files or ("-",)
    columns = Columns(key, headers, timestamp, partition, value)
    kind = input_format or kind_of(files)
    made_as = ValueOptions(value_format or ("json" if kind in TABLES else "raw"), value_schema, value_message)
    delimiter = delimiter_of(kind, delimiter, types)
    check_options(kind, columns, key_separator, made_as.name, digits)
    made_as.check()
    if (on_error == "dead-letter") != (dead_letter_file is not None):
        raise click.UsageError("--on-error dead-letter and --dead-letter-file FILE belong together")
    check_files(files, kind, resume, resume_file)
    check_written(files, dead_letter_file, resume_file)
    config = config_of(bootstrap_servers, config_file, properties, OF_SENDING)
    if config.transactional_id:
        raise click.UsageError("this command has no transactions: leave transactional.id out")
    with errors_explained(servers_of(config)), ExitStack() as stack:
        letters = None if dead_letter_file is None else stack.enter_context(_appended(dead_letter_file))
        if kind in TABLES:
            reader = _row_reader(kind, columns, delimiter, types, made_as, config)
        else:
            reader = _line_reader(kind, columns, key_separator, made_as, digits, config)
        loop = InputLoop(config, topic, Faults(on_error, letters, "row" if kind in TABLES else "line"), reader)
        loop.copy([_source(file, files, topic, kind, resume, resume_file) for file in files])


def _source(file: str, files: tuple[str, ...], topic: str, kind: str, resume: bool, resume_file: Path | None) -> Source:
    from kafkabuf.cli.produce.inputs.resume import Resume
    from kafkabuf.cli.produce.inputs.source import Source

    if resume and resume_file is None:
        resume_file = Path(f"{file}.kafkabuf-resume")
    state = None if resume_file is None else Resume(resume_file, file, topic, kind)
    return Source(file, file if len(files) > 1 else "", state)


def _row_reader(
    kind: str,
    columns: Columns,
    delimiter: str | None,
    types: tuple[str, ...],
    made_as: ValueOptions,
    config: ProducerConfig,
) -> Reader:
    from kafkabuf.cli.produce.inputs.column_types import parse
    from kafkabuf.cli.produce.inputs.csv import Choices
    from kafkabuf.cli.produce.inputs.row_blocks import row_reader
    from kafkabuf.cli.produce.schema_types import types_by_schema

    made = format_of(made_as)
    choices = Choices(delimiter, parse(types), types_by_schema(made, columns.value)) if kind == "csv" else Choices()
    derived = made_as.name == "avro" and made_as.schema is None and not config.given_to_schema_registry()
    return row_reader(kind, columns, made, choices, one_type=derived)


def _line_reader(
    kind: str, columns: Columns, separator: str | None, made_as: ValueOptions, digits: bool, config: ProducerConfig
) -> Reader:
    from kafkabuf.cli.produce.inputs import json_lines, lines

    if kind == "lines":
        if separator is None:
            return lines.line_reader(lines.plain_lines)
        return lines.line_reader(lines.keyed_lines(separator.replace("\\t", "\t").encode(errors="surrogateescape")))
    encode = encoder_of(made_as, config)
    if encode is None and not any(columns):
        return lines.line_reader(lines.whole_json_lines, mark=BOM_UTF8)
    parser = lambda target: json_lines.json_parser(columns, target.partitions, encode, digits=digits)  # noqa: E731
    return lines.line_reader(lines.parsed_lines(parser), mark=BOM_UTF8)


@contextmanager
def _appended(path: Path) -> Iterator[BinaryIO]:
    """The file, open at its end. Behind an error its close() is silent: it would tell of the same full disk again."""
    with naming(str(path)), path.open("ab") as file:
        try:
            if _is_torn(path):
                file.write(b"\n")
            yield file
        except BaseException:
            with suppress(OSError):
                file.close()
            raise


def _is_torn(path: Path) -> bool:
    """Whether the last line has no end: a run was killed while it wrote that line."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
