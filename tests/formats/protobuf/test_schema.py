"""Descriptors become messages without google.protobuf: what is read of them, what is refused, and formats as values."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.common.protobuf import _create_index_array, _schema_to_str
from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2, timestamp_pb2, type_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.errors import ConfigError
from kafkabuf.formats import Protobuf
from kafkabuf.formats.protobuf import descriptor as protobuf_descriptor
from kafkabuf.formats.protobuf import schema as protobuf_schema
from kafkabuf.formats.protobuf.descriptor import files_in, needed_files
from kafkabuf.formats.protobuf.objects import compile_objects
from kafkabuf.formats.protobuf.schema import Message, json_name, parse
from kafkabuf.formats.registry import framing
from tests.effort import effort
from tests.formats.protobuf.support import (
    EDITIONS,
    IMPORTED,
    OPTIONAL,
    PROTO2,
    PROTO3,
    FieldProto,
    message_class,
    new_file,
    row_class,
    written,
)
from tests.instructions import Instructions

INT32 = {"type": FieldProto.TYPE_INT32}


def set_of(*files: Any) -> bytes:
    encoded: bytes = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    return encoded


def nested_file() -> Any:
    file = new_file()
    for outer in ("First", "Second"):
        message = file.message_type.add(name=outer)
        for inner in ("A", "B"):
            message.nested_type.add(name=inner).field.add(name="v", number=1, label=OPTIONAL, **INT32)
    return file


def fields_of(file: Any, name: str = "test.rows.Row") -> Message:
    return parse(set_of(*map(_proto, IMPORTED), file), name)


def _proto(file: Any) -> Any:
    return descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)


def test_every_field_of_protobufs_own_messages_is_read_as_protobuf_does() -> None:
    """descriptor.proto is proto2 with nested types, enums and packed fields; the others have oneofs and maps."""
    pool = descriptor_pool.Default()
    for module, names in [
        (descriptor_pb2, ["FileDescriptorProto", "SourceCodeInfo", "FieldOptions", "FeatureSet"]),
        (struct_pb2, ["Struct", "Value"]),
        (type_pb2, ["Type", "Field"]),
    ]:
        for name in names:
            descriptor = module.DESCRIPTOR.message_types_by_name[name]
            ours = _messages(Protobuf(descriptor))
            assert descriptor.full_name in ours
            for full_name, message in ours.items():
                assert _summary(message) == _expected(pool.FindMessageTypeByName(full_name))


def _messages(format: Protobuf) -> dict[str, Message]:
    found, pending = {}, [parse(format.descriptors, format.message)]
    while pending:
        message = pending.pop()
        found[message.name] = message
        targets = [field.target for field in message.fields]
        pending += [each for each in targets if isinstance(each, Message) and each.name not in found]
    return found


def _summary(message: Message) -> list[tuple[Any, ...]]:
    return [
        (f.number, f.name, f.json_name, f.repeated, f.packed and f.repeated, f.required, f.repeated or f.presence,
         f.oneof, None if f.target is None else f.target.name)
        for f in message.fields
    ]  # fmt: skip


def _expected(descriptor: Any) -> list[tuple[Any, ...]]:
    found = []
    for f in sorted(descriptor.fields, key=lambda field: field.number):
        target = f.message_type or f.enum_type
        found.append((
            f.number, f.name, f.json_name, f.is_repeated, f.is_packed, f.is_required, f.is_repeated or f.has_presence,
            f.containing_oneof.name if f.containing_oneof else "", None if target is None else target.full_name,
        ))  # fmt: skip
    return found


@given(st.text("abcXYZ_019", min_size=1, max_size=12).filter(lambda name: name[0] not in "019"))
@settings(max_examples=effort(100), deadline=None)
def test_name_in_json_is_protobufs(name: str) -> None:
    assert json_name(name) == row_class({"name": name, **INT32}).DESCRIPTOR.fields[0].json_name


@pytest.mark.parametrize(
    ("syntax", "closed", "packed", "presence"),
    [(PROTO2, True, False, True), (PROTO3, False, True, False), (EDITIONS, False, True, True)],
)
def test_syntax_decides_what_fields_do_not_say(syntax: str, closed: bool, packed: bool, presence: bool) -> None:
    file = new_file(syntax)
    file.enum_type.add(name="E").value.add(name="ZERO", number=0)
    row = file.message_type.add(name="Row")
    row.field.add(name="one", number=1, label=OPTIONAL, type=FieldProto.TYPE_ENUM, type_name=".test.rows.E")
    row.field.add(name="many", number=2, label=FieldProto.LABEL_REPEATED, **INT32)
    one, many = fields_of(file).fields
    assert (one.target.closed, many.packed, one.presence) == (closed, packed, presence)  # type: ignore[union-attr]


def test_features_of_files_reach_their_fields() -> None:
    features = descriptor_pb2.FeatureSet
    file = new_file(EDITIONS)
    file.options.features.field_presence = features.IMPLICIT
    file.options.features.repeated_field_encoding = features.EXPANDED
    row = file.message_type.add(name="Row")
    row.field.add(name="plain", number=1, label=OPTIONAL, **INT32)
    row.field.add(
        name="explicit", number=2, label=OPTIONAL, **INT32
    ).options.features.field_presence = features.EXPLICIT
    row.field.add(name="many", number=3, label=FieldProto.LABEL_REPEATED, **INT32)
    assert [(f.presence, f.packed) for f in fields_of(file).fields] == [(False, False), (True, False), (False, False)]
    assert message_class(file, "test.rows.Row")


def test_map_is_no_group_in_a_file_of_groups() -> None:
    file = new_file(EDITIONS)
    file.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
    row = file.message_type.add(name="Row")
    entry = row.nested_type.add(name="MEntry", options={"map_entry": True})
    entry.field.add(name="key", number=1, label=OPTIONAL, **INT32)
    entry.field.add(name="value", number=2, label=OPTIONAL, type=FieldProto.TYPE_MESSAGE, type_name=".test.rows.Row")
    row.field.add(
        name="m", number=1, label=FieldProto.LABEL_REPEATED, type=FieldProto.TYPE_MESSAGE,
        type_name=".test.rows.Row.MEntry",
    )  # fmt: skip
    kind, inner = message_class(file, "test.rows.Row"), pa.map_(pa.int32(), pa.struct([("m", pa.null())]))
    expected = kind()
    expected.m[5].SetInParent()
    assert Protobuf(kind).encode(pa.table({"m": pa.array([[(5, {})]], inner)})) == [expected.SerializeToString()]


def test_unknown_edition_is_refused() -> None:
    file = new_file(EDITIONS)
    file.edition = descriptor_pb2.EDITION_99999_TEST_ONLY
    with pytest.raises(ConfigError, match="edition 99999: proto2, proto3, 2023 and 2024 are known"):
        fields_of(file)


def test_names_without_dot_are_found_from_the_innermost_scope_on() -> None:
    file = nested_file()
    file.message_type.add(name="B")
    file.message_type[0].nested_type[0].field.add(name="around", number=2, label=OPTIONAL, type_name="B")
    (_, around) = fields_of(file, "test.rows.First.A").fields
    assert str(around.target) == "message test.rows.First.B"
    names = (("near", "A"), ("far", "Second.B"), ("full", "test.rows.Second.A"))
    for number, (name, type_name) in enumerate(names, 1):
        file.message_type[0].field.add(name=name, number=number, label=OPTIONAL, type_name=type_name)
    found = {field.name: str(field.target) for field in fields_of(file, "test.rows.First").fields}
    assert found == {
        "near": "message test.rows.First.A", "far": "message test.rows.Second.B", "full": "message test.rows.Second.A",
    }  # fmt: skip


# ---- formats as values -----------------------------------------------------------------------------------------------


def test_class_descriptor_bytes_and_path_make_the_same_format(tmp_path: Path) -> None:
    file = nested_file()
    kind = message_class(file, "test.rows.Second.A")
    unused = descriptor_pb2.FileDescriptorProto(name="unused.proto", syntax=PROTO3)
    serialized = descriptor_pb2.FileDescriptorProto.FromString(kind.DESCRIPTOR.file.serialized_pb)
    descriptors = set_of(unused, serialized, *map(_proto, IMPORTED))
    (tmp_path / "rows.bin").write_bytes(descriptors)
    made = [
        Protobuf(kind), Protobuf(kind.DESCRIPTOR), Protobuf.from_descriptor_set(descriptors, "test.rows.Second.A"),
        Protobuf.from_descriptor_set(tmp_path / "rows.bin", ".test.rows.Second.A"),
        Protobuf.from_descriptor_set(str(tmp_path / "rows.bin"), "test.rows.Second.A"),
    ]  # fmt: skip
    assert len(set(made)) == 1
    assert made[0] != Protobuf(message_class(file, "test.rows.Second.B"))
    names = [file.text(1) for file in files_in(made[0].descriptors)]
    assert names[-1] == "rows.proto"
    assert set(names) == {"rows.proto", *(imported.name for imported in IMPORTED)}


def test_format_pickles_and_compares_by_its_arguments() -> None:
    kind = row_class({"name": "c", **INT32})
    given = Protobuf(kind, prefix=b"\0\0\0\0\5\0", extra_columns="ignore", missing_columns="error")
    assert pickle.loads(pickle.dumps(given)) == given
    assert hash(given) == hash(Protobuf(kind, prefix=b"\0\0\0\0\5\0", extra_columns="ignore", missing_columns="error"))
    assert given != Protobuf(kind, prefix=b"\0\0\0\0\5\0", extra_columns="ignore")
    assert given != Protobuf(kind)
    with pytest.raises(AttributeError):
        given.prefix = b""  # type: ignore[misc]


def test_pickled_format_encodes_where_there_is_no_google_protobuf() -> None:
    pickled = pickle.dumps(Protobuf(row_class({"name": "c", "type": FieldProto.TYPE_STRING})))
    program = (
        "import sys; sys.modules['google.protobuf'] = None; import pickle, pyarrow as pa; "
        f"print(pickle.loads({pickled!r}).encode(pa.table({{'c': ['x']}})))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert output.strip() == repr([b"\x0a\1x"])


@pytest.mark.parametrize(
    ("name", "path"),
    [("First", (0,)), ("Second", (1,)), ("First.B", (0, 1)), ("Second.A", (1, 0))],
)
def test_message_indexes_lead_to_the_message(name: str, path: tuple[int, ...]) -> None:
    kind = message_class(nested_file(), f"test.rows.{name}")
    assert Protobuf(kind).message_indexes() == path
    assert list(path) == _create_index_array(kind.DESCRIPTOR)
    assert framing.prefix(7, Protobuf(kind).message_indexes())[:5] == b"\0\0\0\0\7"


def test_schema_text_is_the_file_as_confluents_serializer_registers_it() -> None:
    kind = message_class(nested_file(), "test.rows.Second.A")
    text = Protobuf(kind).schema
    assert text == _schema_to_str(kind.DESCRIPTOR.file)
    assert base64.b64decode(text) == kind.DESCRIPTOR.file.serialized_pb


@pytest.mark.parametrize("file_name", ["default", "rows.proto"])
def test_format_takes_the_schema_that_a_registry_has(file_name: str) -> None:
    """The registry's file may have another name, and has further messages before the one that is written."""
    row = (
        {"name": "c", **INT32},
        {"name": "t", "type": FieldProto.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"},
    )
    kind = row_class(*row)
    made = Protobuf(kind, extra_columns="ignore", missing_columns="error")
    same = made.with_schema(made.schema, b"\0\0\0\0\5\0")
    assert same == Protobuf(kind, prefix=b"\0\0\0\0\5\0", extra_columns="ignore", missing_columns="error")
    file = new_file()
    file.name = file_name
    file.message_type.add(name="Before")
    wider = file.message_type.add(name="Row")
    for number, name in enumerate(("c", "t", "d"), 1):
        wider.field.add(name=name, number=number + 10, label=OPTIONAL, **INT32)
    text = base64.b64encode(file.SerializeToString()).decode()
    assert made.message_indexes(text) == (1,)
    other = made.with_schema(text, b"")
    assert other.encode(pa.table({"c": [1], "t": [2], "d": [3]})) == [
        written(message_class(file, "test.rows.Row"), {"c": 1, "t": 2, "d": 3})
    ]
    assert (other.schema, other.extra_columns, other.missing_columns) == (text, "ignore", "error")
    assert other.record_name(text) == "test.rows.Row"


def test_references_of_a_registry_are_found_by_their_types() -> None:
    imported = descriptor_pb2.FileDescriptorProto(name="own.proto", package="own", syntax=PROTO3)
    imported.message_type.add(name="Inner").field.add(name="v", number=3, label=OPTIONAL, **INT32)
    file = new_file()
    file.dependency.append("own.proto")
    file.message_type.add(name="Row").field.add(name="i", number=1, label=OPTIONAL, type_name=".own.Inner")
    text, reference = (base64.b64encode(each.SerializeToString()).decode() for each in (file, imported))
    made = Protobuf(row_class({"name": "c", **INT32}))
    other = made.with_schema(text, b"", [("own.proto", reference)])
    assert other.encode(pa.table({"i": pa.array([{"v": 5}])})) == [b"\x0a\2\x18\5"]
    with pytest.raises(ConfigError, match=r"there is no type '\.own\.Inner'"):
        made.with_schema(text, b"")


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [timestamp_pb2, "test.rows.Row", None, 5, b"", timestamp_pb2.DESCRIPTOR])
def test_what_is_no_message_is_refused(message: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be a generated message class or a Descriptor, found .*descriptor_set"):
        Protobuf(message)


@pytest.mark.parametrize(
    "arguments",
    [{"prefix": "text"}, {"prefix": None}, {"extra_columns": "drop"}, {"missing_columns": "ignore"}],
)
def test_argument_of_another_kind_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Protobuf(timestamp_pb2.Timestamp, **arguments)


def test_message_that_is_not_in_the_descriptors_is_refused_with_those_that_are() -> None:
    file = nested_file()
    file.enum_type.add(name="E").value.add(name="ZERO", number=0)
    for name in ("Row", "test.rows.Row", "test.rows.E", ""):
        with pytest.raises(ConfigError, match=r"no message '.*' in the descriptors: they have test\.rows\.First,"):
            Protobuf.from_descriptor_set(set_of(file), name)


def test_missing_import_is_refused_with_the_option_of_protoc() -> None:
    file = new_file()
    row = file.message_type.add(name="Row")
    row.field.add(name="t", number=1, label=OPTIONAL, type_name=".google.protobuf.Timestamp")
    with pytest.raises(ConfigError, match=r"Row, field t: there is no type .*Timestamp.*--include_imports"):
        Protobuf.from_descriptor_set(set_of(file), "test.rows.Row")
    for imports in (IMPORTED, list(reversed(IMPORTED))):
        Protobuf.from_descriptor_set(set_of(file, *map(_proto, imports)), "test.rows.Row")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "number 0": ({"number": 0, **INT32}, "the number must be 1 to 536870911, found 0"),
    "number 2^29": ({"number": 2**29, **INT32}, "found 536870912"),
    "no type": ({"number": 1}, "the type 'none' contradicts the type's name None"),
    "message without name": ({"number": 1, "type": FieldProto.TYPE_MESSAGE}, "the type 'message' contradicts"),
    "enum as message": (
        {"number": 1, "type": FieldProto.TYPE_ENUM, "type_name": ".test.rows.Row"}, "the type 'enum' contradicts",
    ),
    "no such oneof": ({"number": 1, "oneof_index": 3, **INT32}, "has no oneof 3, which its field c names"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_field_that_contradicts_itself_is_refused(name: str) -> None:
    given, message = WRONG[name]
    file = new_file()
    file.message_type.add(name="Row").field.add(name="c", label=OPTIONAL, **given)
    with pytest.raises(ConfigError, match=message):
        fields_of(file)


def test_two_fields_of_one_number_are_refused() -> None:
    file = new_file()
    row = file.message_type.add(name="Row")
    for name in ("a", "b"):
        row.field.add(name=name, number=5, label=OPTIONAL, **INT32)
    with pytest.raises(ConfigError, match="two fields of number 5: a and b"):
        fields_of(file)


def test_descriptors_that_are_cut_short_are_refused() -> None:
    whole = set_of(new_file())
    for size in range(1, len(whole)):
        with pytest.raises(ConfigError, match=r"no Protobuf descriptor: (they end|a number does not end)"):
            Protobuf.from_descriptor_set(whole[:size], "test.rows.Row")


def test_messages_nested_too_deep_are_refused() -> None:
    file = new_file()
    message = file.message_type.add(name="Row")
    for _ in range(90):
        message = message.nested_type.add(name="N")
    with pytest.raises(ConfigError, match="deeper than 64 levels"):
        fields_of(file)


@pytest.mark.parametrize("numbers", [[], [1], [2], [1, 2, 3], [1, 3]])
def test_map_whose_entries_are_no_pairs_is_refused(numbers: list[int]) -> None:
    with pytest.raises(
        ConfigError, match=r"message test\.rows\.Row, field m: the entries of a map are no key and value"
    ):
        _map_of(*({"number": number, **INT32} for number in numbers))


@pytest.mark.parametrize("part", [0, 1])
def test_map_whose_key_or_value_is_repeated_is_refused(part: int) -> None:
    entries: list[dict[str, Any]] = [{"number": 1, **INT32}, {"number": 2, **INT32}]
    entries[part]["label"] = FieldProto.LABEL_REPEATED
    with pytest.raises(ConfigError, match="field m: the entries of a map are no key and value"):
        _map_of(*entries)


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT", "BYTES", "MESSAGE"])
def test_map_whose_key_has_a_type_that_no_key_has_is_refused(kind: str) -> None:
    key: dict[str, Any] = {"number": 1, "type": getattr(FieldProto, f"TYPE_{kind}")}
    if kind == "MESSAGE":
        key["type_name"] = ".test.rows.Row"
    with pytest.raises(ConfigError, match="field m: the entries of a map are no key and value"):
        _map_of(key, {"number": 2, **INT32})


def _map_of(*entries: dict[str, Any]) -> Protobuf:
    """A message with a map whose entries have these fields."""
    file = new_file()
    row = file.message_type.add(name="Row")
    entry = row.nested_type.add(name="MEntry", options={"map_entry": True})
    for number, attributes in enumerate(entries):
        entry.field.add(**{"name": f"f{number}", "label": OPTIONAL} | attributes)
    row.field.add(name="m", number=1, label=FieldProto.LABEL_REPEATED, type_name=".test.rows.Row.MEntry")
    return Protobuf.from_descriptor_set(set_of(file), "test.rows.Row")


@pytest.mark.parametrize("what", ["package", "message", "field"])
@pytest.mark.parametrize(("long", "most"), [("p" * 1001, "1000 characters"), ("p." * 100 + "p", "100 parts")])
def test_name_without_an_end_is_refused(what: str, long: str, most: str) -> None:
    """A long package in front of many messages took gigabytes, and the scopes of a package of many parts minutes."""
    file = new_file()
    row = file.message_type.add(name=long if what == "message" else "Row")
    if what == "package":
        file.package = long
    row.field.add(name=long if what == "field" else "f", number=1, label=OPTIONAL, type_name="Missing")
    with pytest.raises(ConfigError, match=rf"more than {most}: '.*p") as caught:
        Protobuf.from_descriptor_set(set_of(file), f"{file.package}.{row.name}")
    assert len(str(caught.value)) < 300


def test_too_many_types_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_schema, "_MOST_TYPES", 9)
    file = new_file()
    for number in range(10):
        file.message_type.add(name=f"M{number}")
    with pytest.raises(ConfigError, match="more than 9 messages and enums"):
        Protobuf.from_descriptor_set(set_of(file), "test.rows.M0")


def test_fields_share_the_symbols_of_their_enum() -> None:
    """Without it, thousands of fields of an enum of thousands of symbols took minutes and gigabytes."""
    file = new_file()
    enum = file.enum_type.add(name="E")
    enum.value.add(name="A", number=0)
    row = file.message_type.add(name="Row")
    for number in (1, 2):
        row.field.add(name=f"f{number}", number=number, label=OPTIONAL, type_name=".test.rows.E")
    parts = compile_objects(parse(set_of(file), "test.rows.Row"))
    first, second = (part for part in parts if part.kind == "enum")
    assert first.symbols is second.symbols


@pytest.mark.parametrize("chained", [True, False], ids=["chain", "star"])
def test_time_for_imports_grows_with_their_number_and_not_with_its_square(chained: bool) -> None:
    """Each file looked through all that waited, so that thousands of imports took minutes."""

    def steps(count: int) -> int:
        names = [str(number) for number in range(count)]
        files = [descriptor_pb2.FileDescriptorProto(name=name) for name in names]
        for file, following in zip(files, names[1:], strict=False):
            (file if chained else files[0]).dependency.append(following)
        made = 0

        def step() -> None:
            nonlocal made
            made += 1

        with Instructions([protobuf_descriptor]).interrupted(step):
            needed_files(set_of(*files), "0")
        return made

    assert steps(400) < 5 * steps(100)


def test_files_that_import_each_other_end() -> None:
    files = [
        descriptor_pb2.FileDescriptorProto(name=name, syntax=PROTO3, dependency=imports, package=name)
        for name, imports in (("a", ["b", "a"]), ("b", ["a", "b", "none"]))
    ]
    files[0].message_type.add(name="Row").field.add(name="c", number=1, label=OPTIONAL, **INT32)
    made = Protobuf.from_descriptor_set(set_of(*files), "a.Row")
    assert made.encode(pa.table({"c": [1]})) == [b"\x08\1"]


@given(st.data())
@settings(max_examples=effort(300), deadline=None)
def test_damaged_descriptors_are_refused_or_read(data: st.DataObject) -> None:
    """No other error than ConfigError, and an end."""
    whole = bytearray(set_of(*map(_proto, IMPORTED), nested_file()))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(len(whole) // 2, len(whole)))])
    try:
        made = Protobuf.from_descriptor_set(damaged, "test.rows.Second.A")
    except ConfigError:
        return
    assert made.message == "test.rows.Second.A"


def test_descriptors_of_real_files_are_read() -> None:
    kind = timestamp_pb2.Timestamp
    made = Protobuf(kind).encode(pa.table({"seconds": [5], "nanos": [7]}))
    assert made == [written(kind, {"seconds": 5, "nanos": 7})]
