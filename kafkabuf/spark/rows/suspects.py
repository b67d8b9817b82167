"""Rows that look like a row that a broker has refused. A task holds them back, and sends them in batches of their own.

A refused row costs its whole Kafka batch a second way, and those behind it in flight. The task learns limits from such
a row: the same that the driver reads from the topic's configs where it may (limits.py). A row outside of them may still
be good. So the broker judges it, but no longer at the cost of other rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kafkabuf.errors import InvalidRecordError, InvalidTimestampError, KafkaError, RecordTooLargeError
from kafkabuf.process._time import time_ms
from kafkabuf.shown import raw
from kafkabuf.spark.rows.numbered import NumberedRows, joined
from kafkabuf.spark.worker.limits import CLOCKS_DIFFER_MS, TopicLimits

# A task holds back no more rows, or no more bytes of rows.
MAX_SUSPECTS = 10_000
MAX_SUSPECT_BYTES = 1 << 22


class Suspects:
    """The suspects of one task attempt."""

    def __init__(self) -> None:
        self._innocent = TopicLimits("")
        """No row within these limits is suspect."""
        self._held: list[NumberedRows] = []
        self._rows = self._bytes = 0

    def learn(self, rows: NumberedRows, place: int, error: KafkaError) -> None:
        """Note the row that a broker has refused: rows like it are suspects from now on."""
        row, timestamp = rows.batch.slice(place, 1), rows.milliseconds(place)
        if isinstance(error, InvalidRecordError) and ("key" not in row.schema.names or row.column("key").null_count):
            self._innocent = replace(self._innocent, needs_key=True)
        elif isinstance(error, InvalidTimestampError) and timestamp is not None:
            self._learn_time(timestamp)
        elif isinstance(error, RecordTooLargeError):
            sizes = [raw(row.column(name)[0]) or b"" for name in ("key", "value") if name in row.schema.names]
            self._innocent = replace(self._innocent, max_bytes=max(sum(map(len, sizes)) - 1, 0))

    def _learn_time(self, refused_ms: int) -> None:
        """Suspect every time that is at least half as far from the present."""
        ahead = refused_ms - time_ms()
        limit = abs(ahead) // 2 - CLOCKS_DIFFER_MS
        if ahead > 0:
            self._innocent = replace(self._innocent, after_max_ms=limit)
        else:
            self._innocent = replace(self._innocent, before_max_ms=limit)

    def hold_back(self, rows: NumberedRows) -> NumberedRows:
        """Keep the suspects among new rows, and return the others."""
        places = self._innocent.places_outside(rows.batch)
        if not places:
            return rows
        suspects = rows.take(np.array(places))
        self._held.append(suspects)
        self._rows += len(suspects)
        self._bytes += suspects.batch.nbytes
        return rows.without(places) if len(places) < len(rows) else rows.slice(0, 0)

    @property
    def is_full(self) -> bool:
        return self._rows >= MAX_SUSPECTS or self._bytes >= MAX_SUSPECT_BYTES

    def take(self) -> NumberedRows | None:
        """The rows that were held back; None: there are no such rows."""
        held, self._held = self._held, []
        self._rows = self._bytes = 0
        return joined(held) if held else None

    def acquit(self) -> None:
        """A broker took all suspects: no row is suspect any more."""
        self._innocent = TopicLimits("")
