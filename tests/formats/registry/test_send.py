"""send_arrow() with a Schema Registry: which bytes name the schema, what is asked, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kafkabuf.errors import ConfigError, KafkaError, NetworkError, SchemaRegistryError, SerializationError, TimeoutError
from kafkabuf.formats import Avro, Json
from kafkabuf.formats.registry import SchemaReference, SchemaRegistry
from kafkabuf.formats.rows.format import ResolvedFormat
from rigs.fake_client import Record
from rigs.producer import TOPIC, Rig, assert_whole
from tests.append.arrow_support import HEADERS, stored, turning
from tests.formats.avro.support import written
from tests.formats.registry.support import OTHER, RECORD, WIDER, FakeRegistry, running

OTHER_TOPIC = "payments"
TABLE = pa.table({"a": [1, 2, 3]})
VALUES = [written(json.loads(RECORD), {"a": number}) for number in (1, 2, 3)]
IN_HEADER = {"schema.id.framing": "header"}
LATEST = {"use.latest.version": "true"}


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as registry:
        yield registry


def rig_with(fake: FakeRegistry, settings: dict[str, str] | None = None, rig: Rig | None = None) -> Rig:
    """A Rig whose producer asks the registry. Pauses take no time: the clock moves by itself."""
    rig = rig or Rig()
    rig.accumulator.topic_queues(OTHER_TOPIC, [1])
    rig.producer.registry = SchemaRegistry({"schema.registry.url": fake.url} | (settings or {}), clock=rig.clock)
    return rig


def prefix(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def register(fake: FakeRegistry, subject: str, schema: str) -> int:
    return SchemaRegistry({"url": fake.url}).resolve(schema, subject=subject).id


def decoded(fake: FakeRegistry, records: list[Record], kind: str) -> list[tuple[Any, Any]]:
    """Keys and values as confluent-kafka's deserializers read them."""
    options = {"subject.name.strategy.type": "TOPIC"}
    with SchemaRegistryClient({"url": fake.url}) as client:
        read: Any = (
            AvroDeserializer(client, conf=options)
            if kind == "AVRO"
            else JSONDeserializer(None, schema_registry_client=client, conf=options)
        )
        found = []
        for record in records:
            headers: Any = list(record.headers)
            key = read(record.key, SerializationContext(TOPIC, MessageField.KEY, headers))
            found.append((key, read(record.value, SerializationContext(TOPIC, MessageField.VALUE, headers))))
        return found


# ---- the bytes -------------------------------------------------------------------------------------------------------


def test_value_has_the_prefix_of_the_schema_that_the_registry_registered(fake: FakeRegistry) -> None:
    rig = rig_with(fake)
    records = stored(rig, rig.producer.send_arrow(TABLE, TOPIC, value_format=Avro(RECORD)))
    assert [record.value for record in records] == [prefix(100) + value for value in VALUES]
    assert [json.loads(each["schema"]) for each in fake.subjects[f"{TOPIC}-value"]] == [json.loads(RECORD)]


@pytest.mark.parametrize("settings", [{}, IN_HEADER])
@pytest.mark.parametrize("format", [Avro(), Json()])
def test_confluent_kafka_reads_keys_and_values(
    fake: FakeRegistry, format: Avro | Json, settings: dict[str, str]
) -> None:
    rig = rig_with(fake, settings)
    # The deserializer refuses values of less than six bytes, also where the header names the schema.
    table = pa.table({"a": [2**50, 2**60], "text": ["enough", "bytes"]})
    report = rig.producer.send_arrow(table, TOPIC, value_format=format, key_format=format, key=["text"])
    rows = table.to_pylist()
    assert decoded(fake, stored(rig, report), format.kind) == [({"text": row["text"]}, row) for row in rows]
    kinds = {subject: version.get("schemaType", "AVRO") for subject, (version,) in fake.subjects.items()}
    assert kinds == {f"{TOPIC}-key": format.kind, f"{TOPIC}-value": format.kind}


def test_each_topic_of_a_column_has_its_own_schema_and_prefix(fake: FakeRegistry) -> None:
    for topic, schema in ((TOPIC, RECORD), (OTHER_TOPIC, WIDER)):
        register(fake, f"{topic}-value", schema)
    # Nothing is remembered from one request to the next: the call itself asks once for each topic.
    rig = rig_with(fake, LATEST | {"latest.cache.ttl.sec": "0"}, turning(batch_size=600, slabs=4))
    topics = [TOPIC, OTHER_TOPIC, OTHER_TOPIC, TOPIC] * 50
    table = pa.table({"a": range(200), "topic": topics})
    fake.seen.clear()
    report = rig.producer.send_arrow(pa.Table.from_batches(table.to_batches(max_chunksize=9)), value_format=Avro())
    expected = {
        TOPIC: lambda number: prefix(100) + written(json.loads(RECORD), {"a": number}),
        OTHER_TOPIC: lambda number: prefix(101) + written(json.loads(WIDER), {"a": number, "b": 0}),
    }
    found = stored(rig, report, topics)
    assert [record.value for record in found] == [expected[topic](number) for number, topic in enumerate(topics)]
    assert len(fake.seen) == 2


def test_header_that_names_the_schema_follows_the_rows_own_headers(fake: FakeRegistry) -> None:
    rig = rig_with(fake, IN_HEADER)
    own = [[("h", b"1")] * 40, None, [], [("h", None)]]
    struct = pa.array([{"a": 1}, {"a": 2}, None, {"a": 3}], pa.struct([("a", pa.int64())]))
    table = pa.table({"value": struct, "headers": pa.array(own, HEADERS), "key": ["k", None, None, None]})
    records = stored(rig, rig.producer.send_arrow(table, TOPIC, value_format=Avro(RECORD), key_format=Avro("string")))
    key_guid, value_guid = (UUID(fake.subjects[f"{TOPIC}-{field}"][0]["guid"]).bytes for field in ("key", "value"))
    assert [record.value for record in records] == [VALUES[0], VALUES[1], None, VALUES[2]]
    for record, headers in zip(records, own, strict=True):
        key_header = [("__key_schema_id", b"\1" + key_guid)] if record.key is not None else []
        value_header = [("__value_schema_id", b"\1" + value_guid)] if record.value is not None else []
        assert list(record.headers) == [*(headers or []), *key_header, *value_header]


def test_header_counts_for_the_size_of_a_record(fake: FakeRegistry) -> None:
    size = 900
    rig = rig_with(fake, IN_HEADER, Rig(max_request_size=1000))
    table = pa.table({"value": ["x" * size]})
    report = rig.producer.send_arrow(table, TOPIC, value_format=Avro("string"))
    rig.ack_all()
    assert report.result(0, errors="return").error_code.tolist() == [10]
    report = rig.producer.send_arrow(table, TOPIC, value_format=ResolvedFormat(Avro("string"), None))
    rig.ack_all()
    assert report.result(0, errors="return").error_code.tolist() == [0]
    assert_whole(rig.pool)


def test_format_that_is_resolved_already_is_taken_as_it_is(fake: FakeRegistry) -> None:
    rig = rig_with(fake)
    resolved = ResolvedFormat(Avro(RECORD, prefix=b"own"), ("name", b"bytes"))
    records = stored(rig, rig.producer.send_arrow(TABLE, TOPIC, value_format=resolved))
    assert [record.value for record in records] == [b"own" + value for value in VALUES]
    assert [list(record.headers) for record in records] == [[("name", b"bytes")]] * 3
    assert fake.seen == []


def test_resolved_format_of_something_else_is_refused() -> None:
    wrong: Any = "avro"
    with pytest.raises(ConfigError, match="value_format must be a format"):
        Rig().producer.send_arrow(TABLE, TOPIC, value_format=ResolvedFormat(wrong, None))


# ---- what is asked ---------------------------------------------------------------------------------------------------


def test_registry_is_asked_once_for_many_calls(fake: FakeRegistry) -> None:
    rig = rig_with(fake)
    for _ in range(5):
        rig.producer.send_arrow(TABLE, TOPIC, value_format=Avro(RECORD))
    assert len(fake.seen) == 1


def test_table_without_rows_asks_nobody(fake: FakeRegistry) -> None:
    rig = rig_with(fake)
    (batch,) = TABLE.append_column("topic", [[TOPIC] * 3]).to_batches()
    for topic in (TOPIC, None):
        assert rig.producer.send_arrow(batch.slice(0, 0), topic, value_format=Avro(RECORD)).rows == 0
    assert fake.seen == []


def test_latest_schema_serves_without_a_schema_of_ones_own(fake: FakeRegistry) -> None:
    number = register(fake, f"{TOPIC}-value", WIDER)
    rig = rig_with(fake, LATEST)
    records = stored(rig, rig.producer.send_arrow(TABLE, TOPIC, value_format=Avro()))
    expected = [prefix(number) + written(json.loads(WIDER), {"a": each, "b": 0}) for each in (1, 2, 3)]
    assert [record.value for record in records] == expected


def test_schema_that_refers_to_others_is_written_as_confluent_kafka_reads_it(fake: FakeRegistry) -> None:
    """The types are used by full and by short names, in other namespaces, more than once, and one by another."""
    colour = '{"type": "enum", "name": "Colour", "namespace": "art", "symbols": ["red", "green"]}'
    point = (
        '{"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "int"}, '
        '{"name": "colour", "type": ["null", "art.Colour"], "default": null}]}'
    )
    line = (
        '{"type": "record", "name": "Line", "namespace": "geo", "fields": [{"name": "b", "type": {"type": "array", '
        '"items": "Point"}}, {"name": "a", "type": "geo.Point"}, {"name": "colour", "type": "art.Colour"}]}'
    )
    registry = SchemaRegistry({"url": fake.url})
    registry.resolve(colour, subject="colour")
    on_colour, on_point = SchemaReference("art.Colour", "colour", 1), SchemaReference("geo.Point", "point", 1)
    registry.resolve(point, subject="point", references=[on_colour])
    registry.resolve(line, subject=f"{TOPIC}-value", references=[on_point, on_colour])
    rig = rig_with(fake, LATEST)
    rows = [{"a": {"x": 1, "colour": None}, "b": [{"x": 2, "colour": "green"}] * 3, "colour": "red"}]
    records = stored(rig, rig.producer.send_arrow(pa.Table.from_pylist(rows), TOPIC, value_format=Avro()))
    assert decoded(fake, records, "AVRO") == [(None, rows[0])]


def test_record_strategies_take_the_name_of_the_schema(fake: FakeRegistry) -> None:
    rig = rig_with(fake, {"subject.name.strategy": "topic_record", "key.subject.name.strategy": "record"})
    rig.producer.send_arrow(TABLE, TOPIC, value_format=Avro(RECORD), key_format=Avro(RECORD), key=["a"])
    assert fake.subjects.keys() == {f"{TOPIC}-n.R", "n.R"}


def test_threads_share_one_producer_and_its_registry(fake: FakeRegistry) -> None:
    rig = rig_with(fake)
    with ThreadPoolExecutor(8) as pool:
        reports = list(pool.map(lambda _: rig.producer.send_arrow(TABLE, TOPIC, value_format=Avro(RECORD)), range(16)))
    rig.ack_all()
    assert [report.rows for report in reports] == [3] * 16
    assert sorted(record.value or b"" for record in rig.log[TOPIC, 0]) == sorted(
        [prefix(100) + value for value in VALUES] * 16
    )
    assert_whole(rig.pool)


# ---- what is refused -------------------------------------------------------------------------------------------------


def refused(rig: Rig, table: pa.Table = TABLE, topic: str | None = TOPIC, **arguments: Any) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        rig.producer.send_arrow(table, topic, **({"value_format": Avro(RECORD)} | arguments))
    rig.ack_all()
    assert_whole(rig.pool)
    assert sum(map(len, rig.log.values())) == caught.value.rows_queued
    return caught.value


@pytest.mark.parametrize("chunk", [1, 2, 9])
def test_registry_that_is_down_fails_the_call_at_the_first_row_of_the_topic(fake: FakeRegistry, chunk: int) -> None:
    rig = rig_with(fake)
    fake.faults = [None, *["close"] * 50]
    table = pa.table({"a": range(5), "topic": [TOPIC, TOPIC, TOPIC, OTHER_TOPIC, TOPIC]})
    error = refused(rig, pa.Table.from_batches(table.to_batches(max_chunksize=chunk)), None)
    assert isinstance(error, NetworkError)
    assert fake.url in str(error)
    assert error.rows_queued == 3


def test_registry_that_is_down_lets_no_row_into_the_queue(fake: FakeRegistry) -> None:
    fake.faults = ["close"] * 50
    error = refused(rig_with(fake))
    assert isinstance(error, NetworkError)
    assert fake.url in str(error)
    assert error.rows_queued == 0


def test_refusal_is_in_the_registrys_own_words(fake: FakeRegistry) -> None:
    register(fake, f"{TOPIC}-value", OTHER)
    fake.compatible = False
    error = refused(rig_with(fake))
    assert isinstance(error, SchemaRegistryError)
    assert "Schema being registered is incompatible: TYPE_MISMATCH" in str(error)
    assert fake.url in str(error)


def test_silent_registry_takes_max_block_ms_and_no_more(fake: FakeRegistry) -> None:
    fake.faults = ["silent"] * 50
    rig = Rig(max_block_ms=300)
    rig.producer.registry = SchemaRegistry({"url": fake.url})  # its clock is the real one
    error = refused(rig)
    assert isinstance(error, TimeoutError)
    assert re.search(r"within 0\.(3|2\d+) s", str(error))
    assert fake.url in str(error)


def test_columns_that_do_not_fit_leave_nothing_in_the_registry(fake: FakeRegistry) -> None:
    error = refused(rig_with(fake), pa.table({"b": [1]}))
    assert isinstance(error, SerializationError)
    assert fake.seen == []


def test_columns_that_the_latest_schema_has_not_are_refused(fake: FakeRegistry) -> None:
    register(fake, f"{TOPIC}-value", RECORD)
    rig = rig_with(fake, LATEST)
    error = refused(rig, pa.table({"a": [1], "c": [1]}), value_format=Avro())
    assert isinstance(error, SerializationError)
    assert "no field for 'c'" in str(error)


def test_format_with_a_prefix_of_its_own_is_refused(fake: FakeRegistry) -> None:
    framed = Avro(RECORD, prefix=b"own")
    for arguments in ({"value_format": framed}, {"key_format": framed, "key": ["a"]}):
        error = refused(rig_with(fake), **arguments)
        assert isinstance(error, ConfigError)
        assert f"{next(iter(arguments))} has the prefix 6f776e" in str(error)


def test_header_needs_a_record_format_with_headers(fake: FakeRegistry) -> None:
    rig = rig_with(fake, IN_HEADER, Rig(record_magic=1, enable_idempotence=False))
    error = refused(rig)
    assert isinstance(error, ConfigError)
    assert "record.magic is 1" in str(error)


def test_registry_without_guids_and_framing_by_header_is_refused(fake: FakeRegistry) -> None:
    fake.guids = False
    error = refused(rig_with(fake, IN_HEADER))
    assert isinstance(error, SchemaRegistryError)
    assert "set it to prefix" in str(error)
