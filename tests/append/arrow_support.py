"""Helpers of the send_arrow tests: a Rig whose Sender runs while rows wait, and the stored records of a report."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kafkabuf.append.report import BulkReport
from rigs.fake_client import Record
from rigs.producer import TOPIC, Rig, TurningClock, assert_whole

BYTES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TEXTS = ["a", None, "", "é" * 40, "z" * 300, None, "b"]


def as_bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def turning(**settings: Any) -> Rig:
    """A Rig whose Sender runs when send_arrow waits for memory."""
    clock = TurningClock()
    rig = Rig(clock=clock, **({"linger_ms": 0} | settings))

    def turn() -> None:
        rig.turn()
        rig.ack_under_way()

    clock.turn = turn
    return rig


def stored(rig: Rig, report: BulkReport, topics: list[str] | None = None) -> list[Record]:
    """The record of every row, at the offset that the report gives for it. The log may hold no other record."""
    rig.ack_all()
    result = report.result(0)
    assert not result.error_code.any()
    names = topics or [TOPIC] * report.rows
    places = list(zip(names, result.partition.tolist(), result.offset.tolist(), strict=True))
    assert len(set(places)) == len(places) == sum(map(len, rig.log.values()))
    found = [rig.log[name, partition][offset] for name, partition, offset in places]
    assert [record.timestamp for record in found] == result.timestamp.tolist()
    assert_whole(rig.pool)
    return found
