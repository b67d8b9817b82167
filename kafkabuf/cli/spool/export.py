"""`kafkabuf spool export`: copies a file's records to JSON lines, or to a table of Parquet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import click

from kafkabuf.broker.log.decoding import ConsumerRecord
from kafkabuf.cli.long_input import Show
from kafkabuf.cli.output import naming
from kafkabuf.cli.record_format import json_content, json_line
from kafkabuf.cli.spool.decoding import records_of
from kafkabuf.cli.units import counted
from kafkabuf.extras import needs
from kafkabuf.spool._entries import DamagedError
from kafkabuf.spool.reading import DamagedBatch, HeldBatch, SpoolReader

_GROUP_BYTES = 32 << 20  # keys and values that a row group has, about


class Sink(Protocol):
    def write(self, records: Sequence[ConsumerRecord], *, may_be_in_cluster: bool) -> None: ...


class Export:
    """Writes the batches of these topics, or of all. `damaged` has what is left out, and why."""

    def __init__(self, sink: Sink, topics: Sequence[str]) -> None:
        self.damaged: list[str] = []
        self._sink = sink
        self._topics = topics
        self._records = self._may_be_in_cluster = self._uncommitted = 0

    def copy(self, reader: SpoolReader, show: Show) -> None:
        nbytes = 0
        for batch in reader.batches(with_data=True):
            try:
                self._write(batch)
            except DamagedError as error:
                self.damaged.append(f"batch {batch.place} is damaged and left out: {error}")
            nbytes += batch.nbytes if isinstance(batch, HeldBatch) else 0
            show(nbytes, self._records)

    def _write(self, batch: HeldBatch | DamagedBatch) -> None:
        if isinstance(batch, DamagedBatch):
            raise DamagedError(batch.reason)
        if self._topics and batch.topic not in self._topics:
            return
        if batch.transactional:
            self._uncommitted += batch.records
            return
        self._sink.write(records_of(batch), may_be_in_cluster=batch.may_be_in_cluster)
        self._records += batch.records
        self._may_be_in_cluster += batch.records if batch.may_be_in_cluster else 0

    def notes(self) -> Iterator[str]:
        """What the user has to know of the copy."""
        yield from self.damaged
        if self._uncommitted:
            left_out = counted(self._uncommitted, "record")
            yield f"{left_out} of a transaction that is not committed: left out, as the next producer leaves it out"
        may_be = f", {self._may_be_in_cluster:,} of which may be in the cluster" if self._may_be_in_cluster else ""
        yield f"{counted(self._records, 'record')} written{may_be}"


class JsonLines:
    """One object a record. Text that is not UTF-8 is written as `kafkabuf consume -f json` writes it."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def write(self, records: Sequence[ConsumerRecord], *, may_be_in_cluster: bool) -> None:
        for record in records:
            fields = {
                "topic": record.topic,
                "partition": record.partition,
                "timestamp": record.timestamp,
                **json_content(record),
                "may_be_in_cluster": may_be_in_cluster,
            }
            self._out.write(json_line(fields))


class Parquet:
    """A row a record, with the columns that `kafkabuf produce` reads. `close` writes the directory."""

    def __init__(self, out: BinaryIO) -> None:
        with needs("spark", "--format parquet"):
            import pyarrow as pa
            from pyarrow import parquet

        header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
        self._schema = pa.schema(
            [
                pa.field("topic", pa.string(), nullable=False),
                pa.field("partition", pa.int32(), nullable=False),
                pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
                pa.field("key", pa.binary()),
                pa.field("value", pa.binary()),
                pa.field("headers", pa.list_(header), nullable=False),
                pa.field("may_be_in_cluster", pa.bool_(), nullable=False),
            ]
        )
        self._pa = pa
        self._writer = parquet.ParquetWriter(out, self._schema, compression="zstd")
        self._empty()

    def _empty(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in self._schema.names}
        self._nbytes = 0

    def write(self, records: Sequence[ConsumerRecord], *, may_be_in_cluster: bool) -> None:
        columns = self._columns
        for record in records:
            columns["topic"].append(record.topic)
            columns["partition"].append(record.partition)
            columns["timestamp"].append(record.timestamp)
            columns["key"].append(record.key)
            columns["value"].append(record.value)
            columns["headers"].append([{"key": name, "value": value} for name, value in record.headers])
            columns["may_be_in_cluster"].append(may_be_in_cluster)
            self._nbytes += 100 + len(record.key or b"") + len(record.value or b"")
        if self._nbytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._pa.table(self._columns, self._schema))
        self._empty()

    def close(self) -> None:
        if self._columns["topic"]:
            self._flush()
        self._writer.close()


@contextmanager
def sink_of(output_format: str, output: Path | None) -> Iterator[Sink]:
    """The sink of a format. A named file is new, for the eyes of this user only, and whole or absent at the end."""
    if output_format == "jsonl" and output is None:
        if sys.stdout is None:
            raise click.ClickException("the output cannot be written: it is closed")
        yield JsonLines(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    assert output is not None
    with naming(str(output)), _new_file(output) as out:
        if output_format == "jsonl":
            yield JsonLines(out)
        else:
            table = Parquet(out)
            yield table
            table.close()


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """The records are as secret as the file that they come from. An error removes the file again."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise click.BadParameter(f"{path} exists already: name another file", param_hint="--output") from None
    file = os.fdopen(descriptor, "wb")
    try:
        yield file
        file.flush()
        os.fsync(descriptor)  # the user may delete what was exported
        file.close()
    except BaseException:
        with suppress(OSError):
            path.unlink()
        with suppress(OSError):
            file.close()
        raise
