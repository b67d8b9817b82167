"""`kafkabuf spark status` for people: a table of markers, one of open transactions, one of readers that wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table

from kafkabuf.cli.spark.state import HeldBack, Marker, OpenTransaction, Partition, Sink, Status
from kafkabuf.cli.spark.texts import UNKNOWN, printable, when

_NAMED = 4  # partitions that a cell names


def show(status: Status, console: Console) -> None:
    """Print the tables that have rows, then what could not be asked."""
    for sink in status.sinks:
        name = printable(sink.sink_id)
        if sink.markers:
            console.print(_markers(sink))
        else:
            console.print(f"Sink {name} has no marker{_visible(status, 'markers')}.")
        if sink.transactions:
            console.print(_transactions(sink))
        else:
            console.print(f"Sink {name} has no open transaction{_visible(status, 'transactions')}.")
    if not status.sinks:
        seen = _visible(status, "markers", "transactions")
        console.print(f"No sink has a marker or a transactional id here{seen}.")
    if status.held_back:
        console.print(_held_back(status.held_back))
    elif not status.topics:
        console.print("No topic was asked whether its readers wait: --topic names topics.")
    else:
        wait = "is known to wait" if "held_back" in status.incomplete else "has to wait"
        console.print(f"No reader of these topics {wait}: {printable(', '.join(status.topics))}.", soft_wrap=True)
    for warning in status.warnings:
        console.print(f"Note: {printable(warning)}.", soft_wrap=True)


def _visible(status: Status, *parts: str) -> str:
    return " that this user may see" if set(parts) & set(status.incomplete) else ""


def _markers(sink: Sink) -> Table:
    """A row for each micro-batch, run and write: a micro-batch of exactly_once has a marker for each partition."""
    table = _table(
        f"Sink {printable(sink.sink_id)}: markers", "Of", "Batch", "Rows", "Written", "Expires after", "Query, run"
    )
    alike: dict[tuple[object, ...], list[Marker]] = {}
    for marker in sink.markers:
        kind = (marker.partition is None, marker.write_id)
        alike.setdefault((kind, marker.micro_batch, marker.query_id, marker.run_id), []).append(marker)
    for markers in alike.values():
        first = markers[0]
        table.add_row(
            _of(markers),
            _text(first.micro_batch),
            _text(_sum(marker.rows for marker in markers)),
            when(_oldest(marker.written_ms for marker in markers), "\n"),
            when(_oldest(marker.expires_ms for marker in markers), "\n"),
            f"{printable(first.query_id)}\n{printable(f'{first.run_id}')}" if first.query_id else "",
        )
    return table


def _of(markers: list[Marker]) -> str:
    first = markers[0]
    if first.write_id is not None:
        return f"write {printable(first.write_id)}" if first.write_id else "the newest write"
    return "the stream" if first.partition is None else f"partitions {_ranges(markers)}"


def _ranges(markers: list[Marker]) -> str:
    """The partitions as "0-5, 7"."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(marker.partition for marker in markers if marker.partition is not None):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _oldest(times: Iterable[int | None]) -> int | None:
    return min((time_ms for time_ms in times if time_ms is not None), default=None)


def _transactions(sink: Sink) -> Table:
    title = f"Sink {printable(sink.sink_id)}: open transactions"
    table = _table(title, "Transactional id", "State", "Since", "Ends by itself", "Producer", "In")
    for each in sink.transactions:
        table.add_row(*_cells(each), _places(each.partitions))
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
            table.add_row(*place, *[UNKNOWN] * 5)
    return table


def _cells(each: OpenTransaction) -> Iterator[str]:
    yield printable(each.transactional_id) if each.transactional_id else "no name known"
    yield each.state or UNKNOWN
    yield when(each.started_ms, "\n")
    yield "is being ended" if each.is_ending else when(each.ends_ms, "\n")
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
    return UNKNOWN if value is None else f"{value}"
