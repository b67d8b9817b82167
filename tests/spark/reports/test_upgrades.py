"""What a query leaves in Kafka for the next version of kafkabuf: its markers, and the checksums of rows in them.

A query may start again with another version in the middle of a micro-batch. That version reads the markers, and
compares the rows of the replay with them. So these texts and numbers stay as they are.
"""

from __future__ import annotations

import pyarrow as pa

from kafkabuf.arrow._columns import digest
from kafkabuf.spark.reports.marker import Marker, WriteMarker, transactional_id_for, write_group_for
from kafkabuf.spark.worker.place import MicroBatch
from kafkabuf.transactions.groups import OffsetAndMetadata

MARKER = Marker(MicroBatch(7, "query", "run"), rows=3, checksum=255, before=2)
LEFT = OffsetAndMetadata(8, '{"query":"query","run":"run","before":2,"rows":3,"checksum":"00000000000000ff"}')
WRITE = WriteMarker("daily", rows=3, checksum=255)
WRITE_LEFT = OffsetAndMetadata(1, '{"write":"daily","rows":3,"checksum":"00000000000000ff"}')
CHECKSUM, OF_VALUES = 0x2A7EA0E88046E1C8, 0x36C73A539D6CA315
ROWS = pa.record_batch(
    {
        "key": pa.array([b"a", None, b""], pa.binary()),
        "value": pa.array(["x", "grüße", None]),
        "partition": pa.array([0, None, 2], pa.int32()),
        "timestamp": pa.array([1_700_000_000_000_000, None, 0], pa.timestamp("us", "UTC")),
        "headers": pa.array(
            [[("h", b"v"), ("h", None)], None, []],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
)


def test_marker_of_a_micro_batch_is_that_of_earlier_versions() -> None:
    assert MARKER.offset() == LEFT
    assert Marker.parse("g", LEFT) == MARKER


def test_marker_of_a_write_is_that_of_earlier_versions() -> None:
    assert WRITE.offset() == WRITE_LEFT
    assert WriteMarker.parse("g", WRITE_LEFT) == WRITE


def test_names_of_markers_are_those_of_earlier_versions() -> None:
    assert [transactional_id_for("s"), transactional_id_for("s", 4)] == ["kafkabuf-sink.s", "kafkabuf-sink.s:4"]
    assert [write_group_for("s", None), write_group_for("s", "w")] == [
        "kafkabuf-sink.s:write",
        "kafkabuf-sink.s:write:w",
    ]


def test_checksum_of_rows_is_that_of_earlier_versions() -> None:
    assert digest(ROWS) == CHECKSUM
    assert digest(ROWS.select(["value"])) == OF_VALUES
