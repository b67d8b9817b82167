"""The schema of a Protobuf message as a registry has it in .proto text."""

from __future__ import annotations

import base64
import importlib.util
from typing import Any

import pyarrow as pa
import pytest
from google.type.money_pb2 import Money

from kafkabuf.errors import SerializationError
from kafkabuf.formats import Protobuf
from kafkabuf.formats.protobuf import text as protobuf_text
from kafkabuf.formats.registry import SchemaRegistry
from tests.formats.protobuf.support import OPTIONAL, FieldProto, message_class, new_file
from tests.formats.registry.support import FakeRegistry, running

TEXT = """
// The registry's schema has a message before the one that is written, and a further field.
syntax = "proto3";
package google.type;
message Before { string x = 1; }
message Money { string currency_code = 1; int64 units = 2; string note = 9; }
"""
MADE = Protobuf(Money)
ROW = {"units": 3, "note": "n"}
ENCODED = b"\x10\x03\x4a\x01n"


def test_text_of_a_registry_is_the_schema_that_rows_and_objects_are_written_with() -> None:
    made = MADE.with_schema(TEXT, b"\0\0\0\0\5\2\2")
    assert MADE.message_indexes(TEXT) == (1,)
    assert made.encode(pa.table({"units": [3], "note": ["n"]})) == [b"\0\0\0\0\5\2\2" + ENCODED]
    assert made.encode_object(ROW) == b"\0\0\0\0\5\2\2" + ENCODED


def test_text_may_import_what_the_registry_and_the_format_have() -> None:
    file = new_file()
    file.message_type.add(name="Row")
    made = Protobuf(message_class(file, "test.rows.Row"))
    text = """
        syntax = "proto3"; package test.rows;
        import "google/protobuf/timestamp.proto"; import "google/type/date.proto"; import "own/inner.proto";
        import "other.proto";
        message Row { google.protobuf.Timestamp at = 1; google.type.Date day = 2; own.Inner inner = 3;
                      Other other = 4; }
    """
    other = new_file()
    other.name = "other.proto"
    other.message_type.add(name="Other").field.add(name="v", number=1, label=OPTIONAL, type=FieldProto.TYPE_INT32)
    references = [
        ("own/inner.proto", 'syntax = "proto3"; package own; message Inner { int32 v = 7; }'),
        ("other.proto", base64.b64encode(other.SerializeToString()).decode()),
    ]
    found = made.with_schema(text, b"", references)
    assert made.message_indexes(text, references) == (0,)
    row = {"at": {"seconds": 1}, "day": {"year": 2}, "inner": {"v": 3}, "other": {"v": 4}}
    assert found.encode_object(row) == b"\x0a\x02\x08\x01\x12\x02\x08\x02\x1a\x02\x38\x03\x22\x02\x08\x04"


def test_descriptor_may_import_text() -> None:
    file = new_file()
    file.dependency.append("own.proto")
    file.message_type.add(name="Row").field.add(name="i", number=1, label=OPTIONAL, type_name=".own.Inner")
    schema = base64.b64encode(file.SerializeToString()).decode()
    plain = new_file()
    plain.message_type.add(name="Row")
    made = Protobuf(message_class(plain, "test.rows.Row"))
    references = [("own.proto", 'syntax = "proto3"; package own; message Inner { int32 v = 7; }')]
    assert made.with_schema(schema, b"", references).encode_object({"i": {"v": 1}}) == b"\x0a\x02\x38\x01"
    assert made.message_indexes(schema, references) == (0,)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TEXT.replace("int64", "int46"), 'protoc refuses the registry\'s schema: schema:6:.*"int46" is not defined'),
        ("{}", "protoc refuses"), ("é", "protoc refuses"),
        ('syntax = "proto3"; import "nowhere.proto";', "nowhere.proto"),
        ('syntax = "proto3"; import "/etc/passwd";', "protoc refuses"),
    ],
)  # fmt: skip
def test_text_that_protoc_refuses_is_an_error_in_its_words(text: str, why: str) -> None:
    for call in (MADE.message_indexes, lambda schema: MADE.with_schema(schema, b"")):
        with pytest.raises(SerializationError, match=why):
            call(text)


@pytest.mark.parametrize("as_text", [True, False])
def test_schema_without_the_message_is_refused(as_text: bool) -> None:
    """The format's own message must not take its place: readers would find another schema."""
    file = new_file()
    file.message_type.add(name="Row")
    made = Protobuf(message_class(file, "test.rows.Row"))
    schema = TEXT if as_text else MADE.schema
    for call in (made.message_indexes, lambda schema: made.with_schema(schema, b"")):
        with pytest.raises(SerializationError, match=r"the registry's schema has no message test\.rows\.Row"):
            call(schema)


@pytest.mark.parametrize(
    "name", ["../out.proto", "/tmp/out.proto", "a/../../b.proto", "", "--help", "@x", "a\0b", "a\\b.proto", "x" * 999]
)
def test_reference_cannot_write_outside_of_its_folder(name: str) -> None:
    with pytest.raises(SerializationError, match=r"no name of a file|cannot be compiled"):
        MADE.with_schema(TEXT, b"", [(name, 'syntax = "proto3";')])


def test_text_without_protoc_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_text, "find_spec", lambda name: None)
    with pytest.raises(SerializationError, match=r'pip install "kafkabuf\[protobuf\]", or let the registry register'):
        MADE.with_schema(TEXT + "// not remembered", b"")


def test_protoc_that_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_text, "_SECONDS", 0.0)
    with pytest.raises(SerializationError, match="has not compiled the registry's schema within 0 s"):
        MADE.with_schema(TEXT + "// slow", b"")


@pytest.mark.parametrize("by_id", [True, False])
def test_registry_is_asked_for_the_descriptor_and_its_text_serves_as_well(by_id: bool) -> None:
    file = new_file()
    file.package = "google.type"
    file.message_type.add(name="Money").field.add(name="units", number=5, label=OPTIONAL, type=FieldProto.TYPE_INT32)
    descriptor = base64.b64encode(file.SerializeToString()).decode()
    with running(FakeRegistry()) as server:
        registry = SchemaRegistry({"schema.registry.url": server.url})
        first = registry.resolve(TEXT, "PROTOBUF", subject="s", message_indexes=MADE.message_indexes)
        assert first.prefix == b"\0" + first.id.to_bytes(4, "big") + b"\2\2"
        named: Any = {"use_schema_id": first.id} if by_id else {"use_latest_version": True}
        for serialized, expected in [({}, TEXT), ({TEXT: descriptor}, descriptor)]:
            server.serialized = serialized
            again = SchemaRegistry({"schema.registry.url": server.url})
            found = again.resolve(None, "PROTOBUF", subject="s", message_indexes=MADE.message_indexes, **named)
            assert found.schema == expected
            assert "format=serialized" in server.seen[-1].path
            assert again.by_id(first.id, "s").text == TEXT
            assert "format" not in server.seen[-1].path
    assert MADE.with_schema(descriptor, b"").encode_object({"units": 1}) == b"\x28\x01"


def test_protoc_is_installed_for_the_tests() -> None:
    assert importlib.util.find_spec("grpc_tools") is not None
