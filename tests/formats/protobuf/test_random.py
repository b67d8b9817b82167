"""Drawn messages and tables: the bytes of Protobuf.encode() are google.protobuf's, but for the order of map entries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.formats import Protobuf
from tests.effort import effort
from tests.formats.protobuf.support import has_map, reread, tables


@given(tables(), st.data())
@settings(max_examples=effort(200), deadline=None)
def test_any_table_becomes_the_bytes_that_protobuf_writes(
    drawn: tuple[Any, list[bytes], pa.RecordBatch], data: st.DataObject
) -> None:
    message, expected, batch = drawn
    encoded = [row or b"" for row in Protobuf(message).encode(batch)]
    assert list(map(len, encoded)) == list(map(len, expected))
    assert [reread(message, row) for row in encoded] == expected
    if not has_map(batch.schema):
        assert encoded == expected
    begin = data.draw(st.integers(0, len(expected)))
    end = data.draw(st.integers(begin, len(expected)))
    assert Protobuf(message).encode(batch.slice(begin, end - begin)) == encoded[begin:end]
    table = pa.Table.from_batches([batch, batch.slice(begin), batch])
    assert Protobuf(message, prefix=b"\0id").encode(table) == [
        b"\0id" + row for row in [*encoded, *encoded[begin:], *encoded]
    ]
