"""`kafkabuf produce`: each line of a file or pipe becomes a record. delivery.py says what becomes of faulty lines."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from kafkabuf.cli.output import file_error

if TYPE_CHECKING:
    from kafkabuf.cli.copying import Input
    from kafkabuf.cli.input_records import Columns, Parse

_SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow",
}  # fmt: skip
_TABLES = ("csv", "parquet", "arrow")
# Files that have no lines, by their first bytes, and how to send them.
_COMPRESSED = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_BINARY_TABLES = {b"PAR1": "parquet", b"ARROW1": "arrow"}
_COLUMNS = ("key", "headers", "timestamp", "partition", "value")


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "-f",
    "--format",
    "input_format",
    type=click.Choice(["lines", "jsonl", *_TABLES]),
    help="Default: by the suffix of the FILES, else lines. csv, parquet and arrow need pyarrow; parquet needs a FILE.",
)
@click.option("--key-separator", metavar="SEP", help="lines: what stands between key and value, such as : or \\t.")
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
    key: str | None,
    headers: str | None,
    timestamp: str | None,
    partition: str | None,
    value: str | None,
    value_format: str | None,
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
    if an option needs its columns. Ctrl-C ends the reading; what was read is sent. Exit status: 0 all lines are
    acknowledged or left out as --on-error says; 1 a line or Kafka said no; 2 an option or setting is wrong; 130 Ctrl-C;
    143 SIGTERM, which ends the reading too.

    \b
    kafkabuf produce orders orders.jsonl --key id --bootstrap-servers localhost:9092
    tail -f log | kafkabuf produce logs --bootstrap-servers localhost:9092
    kafkabuf produce users users.txt --key-separator : -X compression.type=zstd -b localhost:9092
    """
    from kafkabuf.cli.copying import Run, line_sender, row_sender
    from kafkabuf.cli.delivery import Refusals
    from kafkabuf.cli.input_records import Columns
    from kafkabuf.cli.value_formats import encoder_of, format_of

    require_topic(topic)
    files = files or ("-",)
    columns = Columns(key, headers, timestamp, partition, value)
    kind = input_format or _kind_of(files)
    value_format = value_format or ("json" if kind in _TABLES else "raw")
    _check_options(kind, columns, key_separator, value_format)
    _check_schema(value_format, value_schema, value_message)
    if (on_error == "dead-letter") != (dead_letter_file is not None):
        raise click.UsageError("--on-error dead-letter and --dead-letter-file FILE belong together")
    _check_files(files, kind, resume, resume_file)
    _check_written(files, dead_letter_file, resume_file)
    config = config_of(bootstrap_servers, config_file, properties, OF_SENDING)
    if config.transactional_id:
        raise click.UsageError("this command has no transactions: leave transactional.id out")
    with errors_explained(servers_of(config)), _files_explained(), ExitStack() as stack:
        letters = None if dead_letter_file is None else stack.enter_context(_appended(dead_letter_file))
        if kind in _TABLES:
            made = format_of(value_format, value_schema, value_message)
            derived = value_format == "avro" and value_schema is None and not config.given_to_schema_registry()
            send = row_sender(kind, columns, made, one_type=derived)
        else:
            encode = encoder_of(value_format, value_schema, value_message, config)
            send = line_sender(_parser(kind, columns, key_separator, encode))
        refusals = Refusals(on_error, letters, "row" if kind in _TABLES else "line")
        run = Run(config, topic, refusals, send)
        run.copy([_input(file, topic, kind, resume, resume_file) for file in files])


def _kind_of(files: Sequence[str]) -> str:
    kinds = {_SUFFIXES.get(Path(file).suffix.lower(), "lines") for file in files}
    if len(kinds) > 1:
        raise click.UsageError(f"the files are of several formats, {', '.join(sorted(kinds))}: give --format")
    return kinds.pop()


def _check_files(files: Sequence[str], kind: str, resume: bool, resume_file: Path | None) -> None:
    if len({*files}) < len(files):
        raise click.UsageError("a FILE is named twice")
    if "-" in files and (resume or resume_file):
        raise click.UsageError("--resume needs a FILE")
    if len(files) > 1 and resume_file is not None:
        raise click.UsageError("--resume-file is for one FILE: with several, --resume keeps a state beside each")
    again = resume or resume_file is not None
    needs = (
        "--resume needs a FILE that can be read again"
        if again
        else "parquet, whose directory is at its end, needs a FILE"
    )
    for file in files if again or kind == "parquet" else ():
        if not os.path.isfile(file):
            raise click.UsageError(f"{needs}: {file} is a pipe or a device")
    for file in files if kind not in _BINARY_TABLES.values() else ():
        _check_text(file, kind)


def _check_text(file: str, kind: str) -> None:
    head = _head(file)
    for magic, program in _COMPRESSED.items():
        if head.startswith(magic):
            raise click.UsageError(
                f"{file} is compressed with {program}: {program} -dc {shlex.quote(file)} | kafkabuf produce TOPIC "
                f"--format {kind}"
            )
    for magic, table in _BINARY_TABLES.items():
        if head.startswith(magic):
            raise click.UsageError(f"{file} is a table: give --format {table}")


def _check_written(files: Sequence[str], *written: Path | None) -> None:
    for file in files:
        for path in written:
            if path is not None and file != "-" and path.exists() and path.samefile(file):
                raise click.UsageError(f"{path} would be read and written at once: name another file")


def _head(file: str) -> bytes:
    """Only of a file: what is read of a pipe is gone. The reading explains a file that cannot be read."""
    if os.path.isfile(file):
        with suppress(OSError), open(file, "rb") as opened:
            return opened.read(8)
    return b""


def _input(file: str, topic: str, kind: str, resume: bool, resume_file: Path | None) -> Input:
    from kafkabuf.cli.copying import Input
    from kafkabuf.cli.resume import Resume

    if resume and resume_file is None:
        resume_file = Path(f"{file}.kafkabuf-resume")
    return Input(file, None if resume_file is None else Resume(resume_file, file, topic, kind))


def _check_schema(value_format: str, schema: Path | None, message: str | None) -> None:
    if schema is not None and value_format not in ("avro", "protobuf"):
        raise click.UsageError("--value-schema is for --value-format avro and protobuf")
    if (value_format == "protobuf") != (message is not None):
        raise click.UsageError("--value-format protobuf and --value-message NAME belong together")
    if value_format == "protobuf" and schema is None:
        raise click.UsageError("protobuf needs --value-schema FILE, which `protoc --descriptor_set_out` writes")


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


def _parser(
    kind: str, columns: Columns, separator: str | None, encode: Callable[[Any], bytes] | None
) -> Callable[[int], Parse]:
    """What parses lines for a topic with so many partitions."""
    from kafkabuf.cli import input_records as records

    if kind == "lines":
        found = None if separator is None else separator.replace("\\t", "\t").encode(errors="surrogateescape")
        return lambda partitions: records.plain_lines if found is None else records.separated_lines(found)
    if encode is None and not any(columns):
        return lambda partitions: records.without_mark(records.whole_json_lines)
    return lambda partitions: records.without_mark(records.JsonLines(columns, partitions, encode))


@contextmanager
def _files_explained() -> Iterator[None]:
    from kafkabuf.errors import KafkaError

    try:
        yield
    except OSError as error:
        if isinstance(error, KafkaError):
            raise
        raise click.ClickException(file_error(error)) from error


@contextmanager
def _appended(path: Path) -> Iterator[BinaryIO]:
    """The file, open at its end. Behind an error its close() is silent: it would tell of the same full disk again."""
    with path.open("ab") as file:
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
