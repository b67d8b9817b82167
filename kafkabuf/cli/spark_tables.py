"""`kafkabuf spark status` for people: a table of markers, one of open transactions, one of readers that wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from rich.console import Console
from rich.table import Table

from kafkabuf.cli.spark_state import HeldBack, Marker, OpenTransaction, Partition, Sink, Status

_UNKNOWN = "?"
_NAMED = 4  # partitions that a cell names
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def show(status: Status, console: Console) -> None:
    """Print the tables that have rows, then what could not be asked."""
    markers = [(sink, marker) for sink in status.sinks for marker in sink.markers]
    opened = [(sink, each) for sink in status.sinks for each in sink.transactions]
    if markers:
        console.print(_markers(markers))
    else:
        console.print("No sink has a marker here.")
    if opened:
        console.print(_transactions(opened))
    else:
        console.print("No transaction of a sink is open.")
    if status.held_back:
        console.print(_held_back(status.held_back))
    else:
        console.print("No reader of these topics has to wait.")
    for warning in status.warnings:
        console.print(f"Note: {warning}.", soft_wrap=True)


def _markers(markers: list[tuple[Sink, Marker]]) -> Table:
    table = _table("Markers", "Sink", "Of", "Micro-batch", "Rows", "Written", "Expires after", "Query, run")
    for sink, marker in markers:
        table.add_row(
            sink.sink_id,
            _of(marker),
            _text(marker.micro_batch),
            _text(marker.rows),
            when(marker.written_ms, "\n"),
            when(marker.expires_ms, "\n"),
            f"{marker.query_id}\n{marker.run_id}" if marker.query_id else "",
        )
    return table


def _of(marker: Marker) -> str:
    if marker.write_id is not None:
        return f"write {marker.write_id}" if marker.write_id else "the newest write"
    return "the stream" if marker.partition is None else f"partition {marker.partition}"


def _transactions(opened: list[tuple[Sink, OpenTransaction]]) -> Table:
    table = _table(
        "Open transactions", "Sink", "Transactional id", "State", "Since", "Ends by itself", "Producer", "In"
    )
    for sink, each in opened:
        table.add_row(sink.sink_id, *_cells(each), _places(each.partitions))
    return table


def _held_back(held_back: list[HeldBack]) -> Table:
    table = _table(
        "Readers with read_committed wait",
        "Partition",
        "At",
        "Of",
        "For",
        "State",
        "Since",
        "Ends by itself",
        "Producer",
    )
    for held in held_back:
        place = (f"{held.topic}-{held.partition}", str(held.last_stable_offset), str(held.high_watermark))
        for each in held.transactions:
            table.add_row(*place, *_cells(each))
            place = ("", "", "")
        if not held.transactions:
            table.add_row(*place, *[_UNKNOWN] * 5)
    return table


def _cells(each: OpenTransaction) -> Iterator[str]:
    yield each.transactional_id or "a producer without coordinator"
    yield each.state or _UNKNOWN
    yield when(each.started_ms, "\n")
    yield when(each.ends_ms, "\n")
    yield f"{each.producer_id}, epoch {each.producer_epoch}"


def _places(places: tuple[Partition, ...]) -> str:
    names = [f"{place.topic}-{place.partition}" for place in places[:_NAMED]]
    return ", ".join(names) + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _text(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value}"


def when(time_ms: int | None, between: str = " ") -> str:
    """The local time, and how far away it is."""
    if time_ms is None:
        return _UNKNOWN
    seconds = time.time() - time_ms / 1000
    distance = f"{_span(seconds)} ago" if seconds >= 0 else f"in {_span(-seconds)}"
    return f"{datetime.fromtimestamp(time_ms / 1000):%Y-%m-%d %H:%M:%S}{between}({distance})"


def _span(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
