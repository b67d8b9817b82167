"""`kafkabuf spool inspect` for people: what the file is, and tables of partitions, transactions and batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kafkabuf.cli.spool.summary import Batch, PartitionSummary, Summary
from kafkabuf.cli.units import counted, nbytes, span
from kafkabuf.errors import printable
from kafkabuf.process import _time


def show(summary: Summary, console: Console, *, with_batches: bool) -> None:
    """Print the header, the tables that have rows, and the sum."""
    for line in _header(summary):
        console.print(line, soft_wrap=True)
    waiting = [partition for partition in summary.partitions if partition.records]
    if waiting:
        console.print(_partitions(waiting))
    if with_batches and summary.batches:
        console.print(_batches(summary.batches))
    if summary.transactions:
        console.print(_transactions(summary))
    for damage in summary.damaged:
        console.print(Text(f"Batch {damage.place} is damaged: {damage.reason}.", style="red"), soft_wrap=True)
    console.print(_sum(summary, len(waiting)), soft_wrap=True)


def _header(summary: Summary) -> Iterator[str]:
    yield (
        f"{summary.path}: format {summary.format}, buffer.memory={summary.buffer_memory}, "
        f"batch.size={summary.batch_size}, {nbytes(summary.file_bytes)} on the disk"
    )
    if summary.held_by is not None:
        yield f"Process {summary.held_by} has it open: each batch is shown as it was when it was read."
    elif summary.last_opened_by is None:
        yield "No process has it open."
    else:
        since = "" if summary.of_this_boot else ", before the machine was started anew"
        yield f"No process has it open. Process {summary.last_opened_by} had it last{since}."
    if summary.cluster_id:
        yield f"Its records are for the cluster {summary.cluster_id}."
    if summary.commit is not None:
        yield printable(f"It tells of {summary.commit}.")


def _partitions(partitions: Iterable[PartitionSummary]) -> Table:
    table = _table("Records that wait", "Partition")
    for column in ("Records", "Bytes", "Batches", "Oldest", "May be in the cluster"):
        table.add_column(column, justify="right")
    table.add_column("Last acknowledged", overflow="fold")
    for each in partitions:
        table.add_row(
            f"{each.topic}-{each.partition}",
            f"{each.records:,}",
            nbytes(each.bytes),
            f"{each.batches:,}",
            _age(each.oldest_ms),
            f"{each.may_be_in_cluster:,}",
            _last_acknowledged(each),
        )
    return table


def _last_acknowledged(each: PartitionSummary) -> str:
    parts = []
    if each.last_acknowledged_offset >= 0:
        parts.append(f"offset {each.last_acknowledged_offset}")
    if each.last_acknowledged_sequence >= 0:
        parts.append(f"sequence {each.last_acknowledged_sequence} of producer {each.producer_id}")
    return ", ".join(parts) or "nothing"


def _transactions(summary: Summary) -> Table:
    table = _table("Transactions that are not committed", "Partition", "Records", "Bytes", "Producer")
    for each in summary.transactions:
        producer = "not sent" if each.producer_id < 0 else f"{each.producer_id}, epoch {each.producer_epoch}"
        table.add_row(f"{each.topic}-{each.partition}", f"{each.records:,}", nbytes(each.bytes), producer)
    return table


def _batches(batches: Iterable[Batch]) -> Table:
    table = _table("Batches", "Place", "Partition", "Records", "Bytes", "Age", "Format", "Numbers")
    for batch in batches:
        table.add_row(
            f"{batch.place}",
            f"{batch.topic}-{batch.partition}",
            f"{batch.records:,}",
            nbytes(batch.bytes),
            _age(batch.opened_ms),
            f"magic {batch.magic}" + (f", {batch.compression}" if batch.compression != "none" else ""),
            _numbers(batch) + (", of a transaction" if batch.transactional else ""),
        )
    return table


def _numbers(batch: Batch) -> str:
    if batch.base_sequence < 0:
        return "none"
    return f"producer {batch.producer_id}, epoch {batch.producer_epoch}, from {batch.base_sequence} on"


def _sum(summary: Summary, partitions: int) -> str:
    if not summary.records:
        return "No record waits."
    records = f"{counted(summary.records, 'record')} ({nbytes(summary.bytes)})"
    verb = "waits" if summary.records == 1 else "wait"
    return f"{records} of {counted(partitions, 'partition')} {verb}, the oldest for {_age(summary.oldest_ms)}."


def _age(opened_ms: int | None) -> str:
    return "?" if opened_ms is None else span(max((_time.time_ms() - opened_ms) / 1000, 0))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
