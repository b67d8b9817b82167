"""Frames through kio's schemas: round trips for every API and version, and malformed bytes."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from io import BytesIO
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer

from kafkabuf.errors import CorruptMessageError, InvalidRequestError, UnsupportedVersionError
from kafkabuf.protocol import messages
from kafkabuf.protocol.entities import apis
from kafkabuf.protocol.error_codes import ErrorCode
from kafkabuf.protocol.schema import FieldSpec, build, default_of, fields_of
from kafkabuf.protocol.writing import write_uvarint, writer
from tests.effort import effort

T = TypeVar("T")
EVERY_VERSION = [(key, version) for key in sorted(api_key_map) for version in messages.known_versions(key)]
NEWER_THAN_KIO = {(messages.API_VERSIONS, 5)}  # Kafka 4.4


def sample(cls: type[Any], filled: bool, depth: int = 0) -> Any:
    """An entity with every field at its default. With `filled` every array has two items and every field a value."""
    if not filled:
        return build(cls, {})
    values = {}
    for field in fields_of(cls):
        shape = field.shape
        if shape.entity is not None:
            one: Any = sample(shape.entity, filled, depth + 1)
        elif shape.kafka_type in ("string", "bytes", "records"):
            one = "ünï" if shape.kafka_type == "string" else b"\0\1\2"
        elif shape.kafka_type == "uuid":
            one = None
        else:
            one = True if shape.kafka_type == "bool" else 7
        values[field.name] = [one, one] if shape.array else one
    return build(cls, values)


def plain(value: Any, repeat: int) -> Any:
    """A message as handlers give it: mappings for nested messages, with each of its items `repeat` times."""
    if isinstance(value, tuple):
        return [plain(item, repeat) for item in value] * repeat
    if not hasattr(value, "__flexible__"):
        return value
    return {field.name: plain(getattr(value, field.name), repeat) for field in fields_of(type(value))}


def collect(work: Generator[None, None, T], results: list[T]) -> Iterator[None]:
    results.append((yield from work))


@pytest.mark.parametrize("repeat", [0, 1, 6])
def test_message_that_is_written_in_steps_has_the_same_bytes(repeat: int) -> None:
    large = 0
    for api_key, version in EVERY_VERSION:
        values = plain(sample(messages.response_class(api_key, version), filled=True), repeat)
        entity = messages.build_response(api_key, version, **values)
        writing = messages.encode_response_in_steps(api_key, version, 5, values)
        frames: list[bytearray] = []
        steps = sum(1 for _ in collect(writing, frames))
        assert frames == [messages.encode_response(api_key, version, 5, entity)], (api_key, version)
        large += steps > 50
    assert (large > 10) == (repeat == 6), "nested items are steps too"


@pytest.mark.parametrize("repeat", [0, 1, 3])
def test_request_that_is_read_in_steps_is_the_same(repeat: int) -> None:
    large = 0
    for api_key, version in EVERY_VERSION:
        values = plain(sample(messages.request_class(api_key, version), filled=True), repeat)
        request = messages.build_request(api_key, version, **values)
        frame = messages.encode_request(api_key, version, 5, "me", request)
        requests: list[Any] = []
        header = messages.decode_request_header(frame)
        steps = sum(1 for _ in collect(messages.decode_request_body_in_steps(frame, header), requests))
        assert requests == [request], (api_key, version)
        large += steps > 50
    assert (large > 10) == (repeat == 3), "nested items are steps too"


@pytest.mark.parametrize("count", [1_000, 1_001, 400_000])
@pytest.mark.parametrize("in_header", [False, True])
def test_request_with_more_than_a_thousand_tagged_fields_in_a_place_is_refused(in_header: bool, count: int) -> None:
    """A tagged field takes two bytes, and a step: half a million of them would take a second."""
    plain = messages.encode_request(messages.METADATA, 9, 5, "me", messages.build_request(messages.METADATA, 9))
    size = messages.decode_request_header(plain).size
    tags = writing_of_count(count) + b"\x7e\0" * count
    at = size if in_header else len(plain)
    frame = plain[: at - 1] + tags + plain[at:]
    if count <= 1_000:
        assert messages.decode_request(frame)[1] == messages.decode_request(plain)[1]
        return
    with pytest.raises(InvalidRequestError, match=f"{count} tagged fields, 1000 are allowed"):
        messages.decode_request(frame)


def writing_of_count(count: int) -> bytes:
    out = bytearray()
    write_uvarint(out, count)
    return bytes(out)


@pytest.mark.parametrize("filled", [False, True])
def test_every_decoded_message_equals_the_encoded_message(filled: bool) -> None:
    for api_key, version in EVERY_VERSION:
        request = sample(messages.request_class(api_key, version), filled)
        header, again = messages.decode_request(messages.encode_request(api_key, version, 42, "me", request))
        assert (header.api_key, header.version, header.correlation_id, header.client_id) == (api_key, version, 42, "me")
        assert again == request
        response = sample(messages.response_class(api_key, version), filled)
        frame = messages.encode_response(api_key, version, 43, response)
        assert messages.decode_response(api_key, version, frame) == (43, response)


@pytest.mark.parametrize("filled", [False, True])
def test_every_message_has_the_bytes_that_kio_writes(filled: bool) -> None:
    for api_key, version in EVERY_VERSION:
        if (api_key, version) in NEWER_THAN_KIO:
            continue
        for ours, load in (
            (messages.request_class(api_key, version), load_request_schema),
            (messages.response_class(api_key, version), load_response_schema),
        ):
            theirs, written, expected = load(api_key, version), bytearray(), BytesIO()
            writer(ours)(written, sample(ours, filled))
            entity_writer(theirs)(expected, sample(theirs, filled))
            assert bytes(written) == expected.getvalue(), (api_key, version)


def described(cls: type[Any]) -> list[Any]:
    return [
        (f.name, f.shape.kafka_type, f.shape.array, f.shape.nullable, f.tag, default_in(f))
        + (() if f.shape.entity is None else (described(f.shape.entity),))
        for f in fields_of(cls)
    ]


def default_in(field: FieldSpec) -> Any:
    """The schema's default. The default of a nested message is one of its own class, and is compared by its fields."""
    nested = field.shape.entity is not None and not field.shape.array
    return plain(default_of(field), 1) if nested else field.default


def test_tables_have_the_fields_of_kio() -> None:
    for api_key, api in apis().items():
        assert messages.known_versions(api_key) == api.versions
        kios = [version for version in api.versions if (api_key, version) not in NEWER_THAN_KIO]
        for version in kios:
            request, response = load_request_schema(api_key, version), load_response_schema(api_key, version)
            assert api.is_flexible(version) == request.__flexible__
            assert api.name == api_key_map[api_key]
            if api.lines:
                assert described(messages.request_class(api_key, version)) == described(request)
                assert described(messages.response_class(api_key, version)) == described(response)
        assert {*kios} == {*schema_name_map[api.name]}


def test_error_codes_have_the_names_of_kio() -> None:
    assert {code.name: int(code) for code in ErrorCode} == {code.name: int(code) for code in KioErrorCode}


@pytest.mark.parametrize(("api_key", "version"), [(3, 1), (3, 9), (19, 2), (19, 7), (11, 9), (8, 2)])
def test_every_truncation_of_a_frame_raises_a_kafka_error(api_key: int, version: int) -> None:
    frame = messages.encode_request(api_key, version, 1, "c", sample(messages.request_class(api_key, version), True))
    for size in range(len(frame)):
        with pytest.raises(InvalidRequestError):
            messages.decode_request(frame[:size])
    answer = messages.encode_response(api_key, version, 1, sample(messages.response_class(api_key, version), True))
    for size in range(len(answer)):
        with pytest.raises(CorruptMessageError):
            messages.decode_response(api_key, version, answer[:size])


def test_bytes_behind_a_request_are_ignored() -> None:
    request = messages.encode_request(3, 1, 1, None, messages.build_request(3, 1, topics=[]))
    assert messages.decode_request(request + b"\0\0\0")[1] == messages.decode_request(request)[1]


def test_bytes_behind_a_response_are_refused() -> None:
    with pytest.raises(CorruptMessageError, match="2 bytes are left over"):
        messages.decode_response(12, 0, struct.pack(">ih", 1, 0) + b"\0\0")


@pytest.mark.parametrize("count", [2**31 - 1, 100_000, -2, -(2**31)])
def test_array_count_beyond_the_frame_is_refused(count: int) -> None:
    header = messages.encode_request_header(3, 1, 1, None)
    with pytest.raises(InvalidRequestError):
        messages.decode_request(header + struct.pack(">i", count) + b"\0\1x")
    with pytest.raises(InvalidRequestError):
        messages.decode_request(header + struct.pack(">i", count))


def test_compact_count_beyond_the_frame_is_refused() -> None:
    header = messages.encode_request_header(3, 9, 1, None)
    for count in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff\x01", b"\x80" * 20):
        with pytest.raises(InvalidRequestError):
            messages.decode_request(header + count + b"\0\0\0")


@settings(max_examples=effort(300), deadline=None)
@given(st.sampled_from([(3, 1), (3, 12), (18, 3), (11, 5), (8, 8), (19, 5)]), st.binary(max_size=80))
def test_random_bytes_raise_only_kafka_errors(api: tuple[int, int], noise: bytes) -> None:
    try:
        messages.decode_request(messages.encode_request_header(*api, 5, "x") + noise)
    except InvalidRequestError:
        pass
    try:
        messages.decode_response(*api, struct.pack(">i", 5) + noise)
    except CorruptMessageError:
        pass


def test_unknown_version_is_named_in_the_error() -> None:
    with pytest.raises(UnsupportedVersionError, match="metadata version 99 is unknown, known are 0 to"):
        messages.decode_request(struct.pack(">hhih", 3, 99, 1, -1))
    with pytest.raises(UnsupportedVersionError, match="API key 999 is unknown"):
        messages.decode_request(struct.pack(">hhih", 999, 0, 1, -1))


def test_api_versions_response_in_version_0_is_decoded() -> None:
    """The broker does not know the version of the request, and responds in version 0 (KIP-511)."""
    keys = [{"api_key": 18, "min_version": 0, "max_version": 2}]
    answer = messages.build_response(18, 0, error_code=35, api_keys=keys)
    correlation_id, entity = messages.decode_response(18, 4, messages.encode_response(18, 0, 9, answer))
    assert correlation_id == 9
    assert (entity.error_code, [key.max_version for key in entity.api_keys]) == (35, [2])


def test_api_versions_response_has_header_version_0() -> None:
    frame = messages.encode_response(18, 3, 77, messages.build_response(18, 3))
    assert frame[:6] == struct.pack(">ih", 77, 0)


def test_unknown_tagged_field_is_skipped() -> None:
    frame = messages.encode_request(18, 3, 1, "x", messages.build_request(18, 3, client_software_name="n"))
    assert frame.endswith(b"\0")
    header, entity = messages.decode_request(frame[:-1] + b"\1\x63\3abc")
    assert entity.client_software_name == "n"
    # A tagged field in the header, after the client id.
    at = struct.calcsize(">hhih") + 1
    header, _ = messages.decode_request(frame[:at] + b"\1\x05\2zz" + frame[at + 1 :])
    assert header.client_id == "x"


def test_fields_of_other_versions_are_ignored() -> None:
    old = messages.build_response(3, 0, throttle_time=5, cluster_id="c", brokers=[{"node_id": 1, "rack": "r"}])
    assert [broker.node_id for broker in old.brokers] == [1]
    assert not hasattr(old, "cluster_id")


@pytest.mark.parametrize("milliseconds", [2**63 - 1, -(2**63)])
def test_duration_beyond_timedelta_is_cut_to_a_long_duration(milliseconds: int) -> None:
    """A broker may send such a lifetime for a session that never ends."""
    values = {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime": 0}
    entity = messages.build_response(messages.SASL_AUTHENTICATE, 1, **values)
    frame = bytearray(messages.encode_response(messages.SASL_AUTHENTICATE, 1, 5, entity))
    frame[-8:] = milliseconds.to_bytes(8, "big", signed=True)
    _, response = messages.decode_response(messages.SASL_AUTHENTICATE, 1, bytes(frame))
    assert abs(response.session_lifetime.days) > 300_000
