"""Arrow memory that contradicts itself is refused by Json as by Avro, and so is the metadata of a hostile schema."""

from __future__ import annotations

import ctypes

import pyarrow as pa
import pytest

from kafkabuf.errors import RecordTooLargeError, SerializationError
from kafkabuf.formats import Json
from rigs.arrow_abi import ArrowArray, ArrowSchema, Lying, child, ints
from rigs.producer import TOPIC, Rig, assert_whole
from tests.formats.avro.test_lies import LIES, Schemed, batch


@pytest.mark.parametrize("name", LIES)
def test_malformed_column_is_refused_before_a_row_is_read(name: str) -> None:
    lie, message = LIES[name]
    rig = Rig()
    with Lying(batch(), lie) as data, pytest.raises(SerializationError, match=message) as raised:
        rig.producer.send_arrow(data, TOPIC, value_format=Json())
    assert raised.value.rows_queued == 0
    assert_whole(rig.pool)


def test_list_of_countless_nulls_is_too_large() -> None:
    def lie(array: ArrowArray) -> None:
        ints(child(array, 0), 1, ctypes.c_int64)[1] = 2**62
        child(array, 0, 0).length = 2**62

    rig = Rig()
    with Lying(pa.record_batch({"l": pa.array([[None]], pa.large_list(pa.null()))}), lie) as data:
        report = rig.producer.send_arrow(data, TOPIC, value_format=Json())
    assert isinstance(report.exception(0), RecordTooLargeError)
    assert_whole(rig.pool)


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.large_string()])
def test_bytes_of_countless_bytes_are_too_large(kind: pa.DataType) -> None:
    """Before any of them is read: there are none."""

    def lie(array: ArrowArray) -> None:
        ints(child(array, 0), 1, ctypes.c_int64)[1] = 2**63 - 1

    rig = Rig()
    with Lying(pa.record_batch({"b": pa.array([b"x"]).cast(kind)}), lie) as data:
        report = rig.producer.send_arrow(data, TOPIC, value_format=Json())
    assert isinstance(report.exception(0), RecordTooLargeError)
    assert_whole(rig.pool)


def test_decimal_of_a_scale_without_bounds_is_refused() -> None:
    held = b"d:9,2147483647"

    def lie(schema: ArrowSchema) -> None:
        schema.children[0].contents.format = held

    data = pa.record_batch({"d": pa.array([1]).cast(pa.decimal128(19, 0))})
    with Schemed(data, lie) as lying, pytest.raises(SerializationError, match="does not write as JSON"):
        Json().schema_for(lying)


@pytest.mark.parametrize("metadata", [[1, -1], [1, 20, -(2**31)], [2**31 - 1, -5]])
def test_metadata_of_a_negative_size_is_refused(metadata: list[int]) -> None:
    name = b"ARROW:extension:name"
    held = b"".join(
        number.to_bytes(4, "little", signed=True) + (name if number == len(name) else b"") for number in metadata
    )

    def lie(schema: ArrowSchema) -> None:
        schema.metadata = held

    with Schemed(pa.record_batch({"a": [1]}), lie) as lying, pytest.raises(SerializationError, match="metadata of -"):
        Json().schema_for(lying)


@pytest.mark.parametrize("count", [0, -1])
def test_metadata_without_entries_names_no_extension(count: int) -> None:
    held = count.to_bytes(4, "little", signed=True)

    def lie(schema: ArrowSchema) -> None:
        schema.metadata = held

    with Schemed(pa.record_batch({"a": [1]}), lie) as lying:
        assert Json().schema_for(lying) == Json().schema_for(pa.record_batch({"a": [1]}))
