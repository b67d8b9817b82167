"""What the options of `kafkabuf produce` must be, before it opens a producer. Each check raises click.UsageError."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkabuf.cli.produce.inputs.bytes import DECODED
from kafkabuf.cli.produce.inputs.names import format_of_name

if TYPE_CHECKING:
    from kafkabuf.cli.produce.inputs.block import Columns

TABLES = ("csv", "parquet", "arrow")
# The first bytes of files that have no lines.
_COMPRESSED = {**DECODED, "bzip2": b"BZh", "xz": b"\xfd7zXZ"}
_BINARY_TABLES = {"parquet": b"PAR1", "arrow": b"ARROW1"}
_COLUMNS = ("key", "headers", "timestamp", "partition", "value")


def check_topic(topic: str, files: Sequence[str]) -> None:
    """A file that stands where the topic belongs is none: the command would wait for a pipe, and the file's name be a
    topic. Behind FILES that are named, a topic may have the name of a file without a suffix; with `-`, any name."""
    forgotten = os.path.isfile(topic) and Path(topic).suffix if files else _is_file_or_looks_like_it(topic)
    if "-" in files or not forgotten:
        return
    name, seems = shlex.quote(topic), "is" if os.path.isfile(topic) else "looks like"
    raise click.UsageError(
        f"the first argument is the topic, and {topic} {seems} a file: kafkabuf produce TOPIC "
        f"{' '.join((name, *map(shlex.quote, files)))}. If it is the topic, name the input -: kafkabuf produce {name} -"
    )


def _is_file_or_looks_like_it(topic: str) -> bool:
    return os.path.isfile(topic) or format_of_name(topic) is not None


def kind_of(files: Sequence[str]) -> str:
    """The format that the names of the files say."""
    kinds = {format_of_name(file) or "lines" for file in files}
    if len(kinds) > 1:
        raise click.UsageError(f"the files are of several formats, {', '.join(sorted(kinds))}: give --format")
    return kinds.pop()


def check_files(files: Sequence[str], kind: str, resume: bool, resume_file: Path | None) -> None:
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
    for file in files:
        _check_content(file, kind, again)


def _check_content(file: str, kind: str, again: bool) -> None:
    head = _head(file)
    for program, magic in _COMPRESSED.items():
        if head.startswith(magic):
            _check_compressed(file, kind, program, again)
    for table, magic in _BINARY_TABLES.items():
        if head.startswith(magic) and kind not in _BINARY_TABLES:
            raise click.UsageError(f"{file} is a table: give --format {table}")


def _check_compressed(file: str, kind: str, program: str, again: bool) -> None:
    fact = f"{file} is compressed with {program}"
    unpack = f"{program} -dc {shlex.quote(file)}"
    if kind == "parquet":
        raise click.UsageError(f"{fact}, and parquet is read from its end: {unpack} > FILE.parquet")
    if program not in DECODED:
        raise click.UsageError(f"{fact}: {unpack} | kafkabuf produce TOPIC --format {kind}")
    if again and kind not in TABLES:
        raise click.UsageError(f"{fact}, and --resume goes on in the midst of a file: {unpack} > FILE, and send FILE")


def check_written(files: Sequence[str], *written: Path | None) -> None:
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


def check_options(kind: str, columns: Columns, separator: str | None, value_format: str, digits: bool) -> None:
    if digits and kind != "jsonl":
        raise click.UsageError(f"--hex is for --format jsonl, and not for {kind}")
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


def delimiter_of(kind: str, delimiter: str | None, types: Sequence[str]) -> str | None:
    """The character that --delimiter names."""
    for name, given in (("--delimiter", delimiter is not None), ("--types", bool(types))):
        if given and kind != "csv":
            raise click.UsageError(f"{name} is for --format csv")
    character = "\t" if delimiter == "\\t" else delimiter
    if character is not None and (
        len(character) != 1 or character in '"\r\n' or not (character.isprintable() or character == "\t")
        or not character.isascii()
    ):  # fmt: skip
        raise click.UsageError(
            f"--delimiter is one ASCII character such as ; or \\t, and no quote: found {delimiter!r}"
        )
    return character
