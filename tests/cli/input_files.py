"""Large inputs for `kafkabuf produce`, written quickly, and a run of the command that tells its peak of memory."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc, parquet

MIB = 1 << 20
# `parquet` has a row group each 64 MiB. An Arrow table has a batch each 8 MiB.
KINDS = ("lines", "jsonl", "csv", "parquet", "parquet of one row group", "arrow stream", "arrow file")
_GROUP, _BATCH = 64 * MIB, 8 * MIB
_DIGITS = 10
_ROWS_AT_ONCE = 8 * MIB  # bytes
# The command, which tells at its end the most memory that its process had, and how much of it are pages of files. These
# are the code of Python and of pyarrow, which processes share: how many of them the kernel maps depends on the machine.
_PROGRAM = """
import atexit, sys
from kafkabuf.__main__ import main
def tell():
    with open("/proc/self/status") as status:
        print(*(line for line in status if line.startswith(("VmHWM", "RssFile"))), file=sys.stderr)
atexit.register(tell)
main()
"""
_MEMORY = re.compile(r"(VmHWM|RssFile):\s*(\d+) kB")


def format_of(kind: str) -> str:
    """What --format takes."""
    return kind.partition(" ")[0]


def write(path: Path, kind: str, nbytes: int, row_bytes: int) -> int:
    """A file of some `nbytes`, whose rows have a number and a text of `row_bytes` together. Returns the rows."""
    rows = nbytes // row_bytes
    if format_of(kind) in ("lines", "jsonl", "csv"):
        _write_text(path, kind, rows, row_bytes)
    else:
        _write_table(path, kind, rows, row_bytes)
    return rows


def _write_text(path: Path, kind: str, rows: int, row_bytes: int) -> None:
    before, behind = (b'{"id":"', b'","text":"%b"}\n') if kind == "jsonl" else (b"", b",%b\n")
    fill = b"x" * (row_bytes - len(before) - _DIGITS - len(behind) + len(b"%b"))
    line = np.frombuffer(before + b"0" * _DIGITS + behind % fill, np.uint8)
    with path.open("wb") as file:
        if kind == "csv":
            file.write(b"id,text\n")
        for digits in _numbers(rows, row_bytes):
            block = np.tile(line, (len(digits), 1))
            block[:, len(before) : len(before) + _DIGITS] = digits
            file.write(block.tobytes())


def _write_table(path: Path, kind: str, rows: int, row_bytes: int) -> None:
    """Without dictionaries and compression, so that the file is as large as its rows."""
    tables = map(lambda digits: _table(digits, row_bytes), _numbers(rows, row_bytes))  # noqa: C417
    schema = _table(np.empty((0, _DIGITS), np.uint8), row_bytes).schema
    if not kind.startswith("parquet"):
        make = ipc.new_stream if kind == "arrow stream" else ipc.new_file
        with make(str(path), schema) as writer:
            for table in tables:
                writer.write_table(table, _BATCH // row_bytes)
        return
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        if kind == "parquet":
            per_group = _GROUP // _ROWS_AT_ONCE
            whole = [*tables]
            for first in range(0, len(whole), per_group):
                writer.write_table(pa.concat_tables(whole[first : first + per_group]), row_group_size=rows)
        else:
            writer.write_table(pa.concat_tables(tables), row_group_size=rows)


def _table(digits: NDArray[np.uint8], row_bytes: int) -> Any:
    rows, length = len(digits), row_bytes - 8
    text = np.full((rows, length), ord("x"), np.uint8)
    text[:, :_DIGITS] = digits
    offsets = (np.arange(rows + 1) * length).astype(np.int32)
    texts = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text))
    return pa.table({"id": np.arange(rows, dtype=np.int64), "text": texts})


def _numbers(rows: int, row_bytes: int) -> Iterator[NDArray[np.uint8]]:
    """The digits of the numbers from 0, some rows at once."""
    step = max(_ROWS_AT_ONCE // row_bytes, 1)
    powers = 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64)
    for first in range(0, rows, step):
        numbers = np.arange(first, min(first + step, rows), dtype=np.int64)
        yield (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def produce(arguments: Sequence[str], source: Path | None = None) -> tuple[int, str, int]:
    """The status of `kafkabuf produce`, what it wrote to standard error, and its peak of memory of its own in bytes.
    `source` goes to its standard input."""
    with closing((source or Path("/dev/null")).open("rb")) as stdin:
        command = [sys.executable, "-c", _PROGRAM, "produce", *arguments]
        done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False, timeout=600)
    told = {name: int(kilobytes) << 10 for name, kilobytes in _MEMORY.findall(done.stderr)}
    assert len(told) == 2, done.stderr
    return done.returncode, _MEMORY.sub("", done.stderr), told["VmHWM"] - told["RssFile"]
