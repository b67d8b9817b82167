"""The tables that `kafkabuf broker` shows on a terminal: the busiest topics, and the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kafkabuf.broker.overview import GroupNumbers, TopicNumbers
from kafkabuf.cli.units import nbytes
from kafkabuf.errors import printable

# The lines of a table besides its rows: a blank line, the header, and the number of rows that are left out.
_AROUND = 3
_EMPTY = Text()


@dataclass(frozen=True, slots=True)
class Overview:
    """The numbers of one moment. `before` has the sums of end offsets by topic, from `seconds` ago."""

    topics: Sequence[TopicNumbers]
    groups: Sequence[GroupNumbers]
    before: Mapping[str, int]
    seconds: float

    def rate(self, topic: TopicNumbers) -> float:
        """Records per second. A new topic counts from its first record, and a topic that was made again too."""
        before = self.before.get(topic.name, 0)
        return max(topic.end_offsets - (before if before <= topic.end_offsets else 0), 0) / self.seconds


def overview_below(line: str, overview: Overview, height: int) -> RenderableType:
    """The line, and below it the tables as far as a terminal of this height has room."""
    room = height - 1
    groups = _rows(len(overview.groups), room // 3)
    topics = _rows(len(overview.topics), room - (groups + _AROUND if groups else 0))
    parts: list[RenderableType] = [Text(line, no_wrap=True, overflow="ellipsis")]
    if topics:
        parts += [_EMPTY, _topics(overview, topics), *_left_out(len(overview.topics) - topics, "topics")]
    if groups:
        parts += [_EMPTY, _groups(overview, groups), *_left_out(len(overview.groups) - groups, "groups")]
    return Group(*parts)


def _rows(count: int, room: int) -> int:
    """The rows of a table that fits into `room` lines."""
    return max(min(count, room - _AROUND), 0)


def _topics(overview: Overview, rows: int) -> Table:
    """The busiest topics first, then the others by name."""
    table = _table("Topic", "Partitions", "Records", "Records/s", "Size")
    for topic in sorted(overview.topics, key=lambda topic: (-overview.rate(topic), topic.name))[:rows]:
        table.add_row(
            Text(topic.name),
            f"{topic.partitions:,}",
            f"{topic.records:,}",
            f"{overview.rate(topic):,.0f}",
            nbytes(topic.nbytes),
            _trouble(topic),
        )
    return table


def _groups(overview: Overview, rows: int) -> Table:
    table = _table("Group", "Partitions", "Members", "Lag")
    for group in overview.groups[:rows]:
        numbers = (f"{number:,}" for number in (group.partitions, group.members, group.lag))
        table.add_row(Text(printable(group.name)), *numbers, Text(group.state))
    return table


def _trouble(topic: TopicNumbers) -> Text:
    parts = []
    if topic.leaderless:
        parts.append(f"{topic.leaderless:,} without a leader")
    if topic.lagging:
        parts.append(f"{topic.lagging:,} with a replica not in sync")
    return Text(", ".join(parts), style="red")


def _table(name: str, *numbers: str) -> Table:
    """A table of a name, numbers and a last column without a title."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(name, overflow="ellipsis", no_wrap=True, min_width=20, max_width=50)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    return table


def _left_out(count: int, what: str) -> list[Text]:
    return [Text(f"... and {count:,} more {what}")] if count > 0 else []
