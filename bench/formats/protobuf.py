"""Rows of an Arrow table become Protobuf: the 19 columns of the flights, on one thread, without a broker."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from bench.batches import flights
from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.formats.rows import (
    CONFLUENT_NOTE,
    IN_C,
    IN_C_NOTE,
    LIST,
    PER_FIELD,
    RATE,
    ROWS_NOTE,
    SLOW,
    dicts,
    in_c,
    measured,
    table,
    to_list,
)

if TYPE_CHECKING:
    from kafkabuf.formats.rows.format import Format

UPB, CONFLUENT = "google.protobuf (upb)", "confluent-kafka's ProtobufSerializer"
_TYPES = {"int64": "TYPE_INT64", "string": "TYPE_STRING", "timestamp[s, tz=UTC]": "TYPE_MESSAGE"}


@cache
def message() -> Any:
    """The class of a message with an optional field for each column; it is made here, as protoc would make it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    file = descriptor_pb2.FileDescriptorProto(name="flights.proto", package="flights", syntax="proto2")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    row = file.message_type.add(name="Flight")
    for number, column in enumerate(table().schema, 1):
        field = row.field.add(name=column.name, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
        field.type = getattr(descriptor_pb2.FieldDescriptorProto, _TYPES[str(column.type)])
        if _TYPES[str(column.type)] == "TYPE_MESSAGE":
            field.type_name = ".google.protobuf.Timestamp"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("flights.Flight"))


def _format() -> Format:
    from kafkabuf.formats import Protobuf

    return Protobuf(message())


def _made(row: dict[str, Any]) -> Any:
    return message()(**{name: value for name, value in row.items() if value is not None})


def _upb(job: Job) -> Measurement:
    return measured(job, lambda batch, rounds: sum(len(_made(row).SerializeToString()) for row in dicts(batch, rounds)))


def _confluent(job: Job) -> Measurement:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = SchemaRegistryClient.new_client({"url": "mock://"})
    serialize = ProtobufSerializer(message(), client, {"use.deprecated.format": False})
    context = SerializationContext("flights", MessageField.VALUE)
    return measured(job, lambda batch, rounds: sum(len(serialize(_made(row), context)) for row in dicts(batch, rounds)))


CLAIM = Claim(
    name="protobuf",
    title="A row of a table becomes Protobuf at less than a twentieth of google.protobuf's cost",
    cases=[
        Case(IN_C, partial(in_c, _format), check=flights.prepare),
        Case(LIST, partial(to_list, _format), share=0.2),
        Case(UPB, _upb, share=SLOW),
        Case(CONFLUENT, _confluent, share=SLOW),
    ],
    metrics=[RATE, PER_FIELD],
    baseline=UPB,
    amount=2_000_000,
    seconds=12,
    goals=[Goal("rows encoded, against google.protobuf", IN_C, RATE.name, 20, UPB)],
    needs_kafka=False,
    notes=[
        ROWS_NOTE,
        IN_C_NOTE,
        "The others make a message of each row from a dict of pyarrow's to_pylist(): both are part of their time.",
        CONFLUENT_NOTE,
    ],
)
