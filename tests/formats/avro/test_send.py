"""send_arrow() with formats: what arrives at the broker, what is refused, and which rows are queued then."""

from __future__ import annotations

import decimal
import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kafkabuf.errors import ConfigError, RecordTooLargeError, SerializationError
from kafkabuf.formats import Avro, Raw
from kafkabuf.formats.rows.format import Format, ResolvedFormat
from kafkabuf.partitioner import murmur2
from rigs.producer import TOPIC, Rig, assert_whole
from tests.append.arrow_support import stored, turning
from tests.formats.avro.support import written

PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
ROWS: list[dict[str, Any]] = [{"id": 1, "name": "Ada"}, {"id": 2, "name": None}, {"id": 3, "name": "é" * 50}]
TABLE = pa.table({"id": [row["id"] for row in ROWS], "name": [row["name"] for row in ROWS]})
VALUES = [written(PERSON, row) for row in ROWS]
OWN = {
    "partition": pa.array([0] * 3, pa.int32()),
    "timestamp": pa.array([5, 6, 7], pa.timestamp("ms")),
    "headers": pa.array([[("h", b"v")], None, []], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    "topic": pa.array([TOPIC] * 3),
    "key": pa.array([b"k", None, b""]),
}


def test_value_is_a_record_of_the_columns_that_are_not_the_records_own() -> None:
    rig = Rig()
    table = TABLE
    for name, column in OWN.items():
        table = table.append_column(name, column)
    records = stored(rig, rig.producer.send_arrow(table, value_format=Avro(PERSON)))
    assert [record.value for record in records] == VALUES
    assert [record.key for record in records] == [b"k", None, b""]
    assert [record.timestamp for record in records] == [5, 6, 7]
    assert [list(record.headers) for record in records] == [[("h", b"v")], [], []]


def test_struct_column_value_is_the_record_and_its_null_is_kafkas() -> None:
    rig = Rig()
    struct = pa.array([ROWS[0], None, ROWS[2]], pa.struct([("id", pa.int64()), ("name", pa.string())]))
    table = pa.table({"value": struct, "more": [1, 2, 3]})
    records = stored(rig, rig.producer.send_arrow(table, TOPIC, value_format=Avro(PERSON, prefix=b"\0\0\0\0\7")))
    assert [record.value for record in records] == [b"\0\0\0\0\7" + VALUES[0], None, b"\0\0\0\0\7" + VALUES[2]]


def test_plain_column_value_is_written_as_its_type() -> None:
    rig = Rig()
    table = pa.table({"value": pa.array([1, None, -300], pa.int16())})
    records = stored(rig, rig.producer.send_arrow(table, TOPIC, value_format=Avro("long")))
    assert [record.value for record in records] == [b"\2", None, written("long", -300)]


def test_schema_is_derived_from_the_columns() -> None:
    rig = Rig()
    schema = json.loads(Avro().schema_for(TABLE))
    assert [field["name"] for field in schema["fields"]] == ["id", "name"]
    records = stored(rig, rig.producer.send_arrow(TABLE, TOPIC, value_format=Avro()))
    parsed = fastavro.parse_schema(schema)
    assert [fastavro.schemaless_reader(io.BytesIO(record.value or b""), parsed, None) for record in records] == ROWS


def test_key_names_a_column_that_stays_in_the_value() -> None:
    rig = Rig([1] * 7)
    report = rig.producer.send_arrow(TABLE.slice(0, 1), TOPIC, value_format=Avro(PERSON), key="name")
    (record,) = stored(rig, report)
    assert (record.key, record.value) == (b"Ada", VALUES[0])


@pytest.mark.parametrize("key", ["id", ["id"], ["name", "id"]])
def test_key_format_makes_the_key_and_the_key_chooses_the_partition(key: str | list[str]) -> None:
    rig = Rig([1] * 7)
    key_format = Avro("long") if isinstance(key, str) else Avro()
    report = rig.producer.send_arrow(TABLE, TOPIC, value_format=Avro(PERSON), key_format=key_format, key=key)
    partitions = report_partitions(rig, report)
    if isinstance(key, str):
        keys: list[Any] = [written("long", row["id"]) for row in ROWS]
    else:
        schema = json.loads(Avro().schema_for(TABLE.select(key)))
        keys = [written(schema, {name: row[name] for name in key}) for row in ROWS]
    assert partitions == [(murmur2(encoded) & 0x7FFFFFFF) % 7 for encoded in keys]
    found = [record.key or b"" for partition in range(7) for record in rig.log.get((TOPIC, partition), [])]
    assert sorted(found) == sorted(keys)


def report_partitions(rig: Rig, report: Any) -> list[int]:
    rig.ack_all()
    partitions: list[int] = report.result(0).partition.tolist()
    return partitions


def test_column_partition_takes_precedence_over_an_encoded_key() -> None:
    rig = Rig([1] * 3)
    table = TABLE.append_column("partition", pa.array([2, 0, 2], pa.int32()))
    report = rig.producer.send_arrow(table, TOPIC, value_format=Avro(PERSON), key_format=Avro(), key="id")
    assert report_partitions(rig, report) == [2, 0, 2]


def test_key_format_alone_leaves_the_value_as_it_is() -> None:
    rig = Rig()
    table = pa.table({"value": ["v", None], "key": pa.array([7, None], pa.int32())})
    records = stored(rig, rig.producer.send_arrow(table, TOPIC, key_format=Avro("int")))
    assert [(record.key, record.value) for record in records] == [(b"\x0e", b"v"), (None, None)]


def test_rows_of_many_batches_and_topics_arrive_whole() -> None:
    """Rows that meet a full batch, or another topic, are encoded again."""
    rig = turning(batch_size=600, slabs=4)
    rig.accumulator.topic_queues("other", [1])
    topics = [TOPIC, "other", "other"] * 100
    table = pa.table({"n": range(300), "text": ["x" * (n % 90) for n in range(300)], "topic": topics})
    schema = json.loads(Avro().schema_for(table.drop_columns(["topic"])))
    report = rig.producer.send_arrow(table, value_format=Avro(), key_format=Avro("long"), key="n")
    records = stored(rig, report, topics)
    assert [record.key for record in records] == [written("long", n) for n in range(300)]
    assert [record.value for record in records] == [
        written(schema, {"n": n, "text": "x" * (n % 90)}) for n in range(300)
    ]


def test_row_that_encodes_to_more_than_max_request_size_is_left_out() -> None:
    rig = Rig(max_request_size=1000)
    table = pa.table({"id": [1, 2, 3], "name": ["a", "b" * 2000, "c"]})
    report = rig.producer.send_arrow(table, TOPIC, value_format=Avro(PERSON))
    rig.ack_all()
    result = report.result(0, errors="return")
    assert result.error_code.tolist() == [0, 10, 0]
    assert isinstance(report.exception(0), RecordTooLargeError)
    assert "row 1" in str(report.exception(0))
    assert_whole(rig.pool)


def test_rows_before_a_faulty_row_are_queued() -> None:
    rig = Rig()
    table = pa.table({"id": [1, 2, None, 4], "name": ["a"] * 4})
    with pytest.raises(
        SerializationError, match=r"row 2: column 'id' of type int64 is null, and Avro's long"
    ) as raised:
        rig.producer.send_arrow(
            pa.Table.from_batches(table.to_batches(max_chunksize=1)), TOPIC, value_format=Avro(PERSON)
        )
    assert raised.value.rows_queued == 2
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [written(PERSON, {"id": n, "name": "a"}) for n in (1, 2)]
    assert_whole(rig.pool)


def test_faulty_key_is_told_from_a_faulty_value() -> None:
    rig = Rig()
    table = pa.table({"id": [1, 2**40]})
    with pytest.raises(SerializationError, match=r"row 1: column 'id' .* 1099511627776, which is out of .* Avro's int"):
        rig.producer.send_arrow(table, TOPIC, value_format=Avro(), key_format=Avro("int"), key="id")
    rig.ack_all()
    assert_whole(rig.pool)


REFUSED: dict[str, tuple[pa.Table, dict[str, Any], str]] = {
    "extra column": (TABLE.append_column("age", [[1, 2, 3]]), {"value_format": Avro(PERSON)}, "no field for 'age'"),
    "missing column": (TABLE.select(["name"]), {"value_format": Avro(PERSON)}, "there is no column 'id'"),
    "wrong type": (
        pa.table({"id": ["x"], "name": ["y"]}), {"value_format": Avro(PERSON)},
        "column 'id' has the type string, which does not fit Avro's long",
    ),
    "no columns": (pa.table({"key": ["k"]}), {"value_format": Avro()}, "no column for the value"),
    "no such key": (TABLE, {"value_format": Avro(PERSON), "key": "nobody"}, "no column 'nobody'"),
    "key of another type": (
        TABLE, {"value_format": Avro(PERSON), "key": "id"}, "column 'id' has the type int64; allowed"
    ),
    "two keys": (
        TABLE.append_column("key", [["k"] * 3]), {"value_format": Avro(PERSON), "key": "name"}, "has a column 'key'"
    ),
    "no key column": (TABLE, {"value_format": Avro(PERSON), "key_format": Avro()}, "no column 'key'"),
    "no value column": (TABLE, {"key": "name"}, "column 'value' is missing"),
    "two columns": (
        pa.Table.from_arrays([pa.array([1])] * 2, names=["id", "id"]), {"value_format": Avro()}, "defined|two"
    ),
    "no record": (TABLE, {"value_format": Avro("long")}, "several columns make a record"),
    "name": (pa.table({"a b": [1]}), {"value_format": Avro()}, "column 'a b': an Avro name has"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_data_that_does_not_fit_is_refused_before_a_row_is_read(name: str) -> None:
    table, arguments, message = REFUSED[name]
    rig = Rig()
    with pytest.raises((SerializationError, ConfigError), match=message):
        rig.producer.send_arrow(table, TOPIC, **arguments)
    assert not rig.accumulator.incomplete
    assert_whole(rig.pool)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value_format": "avro"}, "value_format must be a format such as kafkabuf.formats.Avro\\(\\), found str"),
        ({"key_format": PERSON}, "key_format must be"),
        ({"value_format": ResolvedFormat(Avro(), ("k",))}, "the header of value_format must be a pair"),  # type: ignore[arg-type]
        ({"key_format": ResolvedFormat(Avro(), ("k", "v"))}, "the header of key_format must be a pair"),  # type: ignore[arg-type]
        ({"value_format": ResolvedFormat(Avro(), (5, b"v"))}, "the header of value_format must be a pair"),  # type: ignore[arg-type]
        ({"key": 5}, "key must be a column's name or a list"),
        ({"key": ["a", 5]}, "key must be a column's name or a list"),
        ({"key": ["a"]}, "needs a key_format"),
        ({"key": [], "key_format": Avro()}, "key has no column"),
        ({"key": "topic"}, "key cannot be the column 'topic'"),
    ],
)
def test_argument_of_a_wrong_type_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Rig().producer.send_arrow(TABLE, TOPIC, **arguments)


def test_extra_columns_are_left_out_on_demand() -> None:
    rig = Rig()
    table = TABLE.append_column("age", [[1, 2, 3]])
    report = rig.producer.send_arrow(table, TOPIC, value_format=Avro(PERSON, extra_columns="ignore"))
    assert [record.value for record in stored(rig, report)] == VALUES


def test_no_format_of_another_package_brings_a_program() -> None:
    with pytest.raises(TypeError, match="only kafkabuf has formats"):
        type("Mine", (Format,), {})


def test_fixed_of_gibibytes_is_refused_at_once() -> None:
    schema = {"type": "fixed", "name": "F", "size": 2**30, "logicalType": "decimal", "precision": 2, "scale": 0}
    rig = Rig()
    table = pa.table({"value": pa.array([decimal.Decimal(1)], pa.decimal128(2, 0))})
    report = rig.producer.send_arrow(table, TOPIC, value_format=Avro(schema))
    with pytest.raises(RecordTooLargeError):
        report.result(0)


def test_raw_sends_the_bytes_of_the_columns() -> None:
    rig = Rig()
    table = pa.table({"id": [b"1", b"2"], "value": [b"v", None], "topic": [TOPIC] * 2})
    report = rig.producer.send_arrow(table.select(["id", "value", "topic"]), value_format=Raw(), key="id")
    assert [(record.key, record.value) for record in stored(rig, report)] == [(b"1", b"v"), (b"2", None)]
    assert Rig(value_serializer=Raw()).producer.prepare(TOPIC, None, b"v", None, None)[1] == b"v"
