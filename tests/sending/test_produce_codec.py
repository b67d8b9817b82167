"""The Produce codec against the schemas of kio and kafka-python, and against malformed responses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceResponse

from bench import compiled
from kafkabuf.batches._batch import Batch
from kafkabuf.errors import CorruptMessageError
from kafkabuf.protocol import messages
from kafkabuf.sending._produce import VERSIONS_BY_MAGIC, build_request, parse_response
from rigs.fake_client import Answer, decode_produce, encode_answer
from rigs.producer import Rig, assert_whole

says_all_were_taken = compiled.load("core").says_all_were_taken
VERSIONS = range(2, 13)
KIO_VERSIONS = range(3, 13)


def magic_of(version: int) -> int:
    return next(magic for magic, (low, high) in VERSIONS_BY_MAGIC.items() if low <= version <= high)


def batches_of(rig: Rig, topics: dict[str, int]) -> list[Batch]:
    """One closed batch for each partition."""
    batches = []
    for name, partitions in topics.items():
        rig.accumulator.topic_queues(name, [1] * partitions)
        for partition in range(partitions):
            rig.producer.send(name, b"v" * (10 * partition + 1), key=name.encode(), partition=partition)
            batches.append(rig.drain_one(partition, name))
    return batches


def finished(rig: Rig, batches: Sequence[Batch]) -> None:
    for batch in batches:
        batch.end_read()
        batch.complete(0, -1)
    assert_whole(rig.pool)


# ---- requests --------------------------------------------------------------------------------------------------------


def test_every_version_is_covered() -> None:
    assert sorted(v for low, high in VERSIONS_BY_MAGIC.values() for v in range(low, high + 1)) == list(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "topics", [{"t": 1}, {"t": 3, "u": 1, "v" * 249: 2}, {f"topic-{n}": 1 for n in range(130)}, {"wide": 130}]
)
def test_request_is_read_alike_by_other_codecs(version: int, topics: dict[str, int]) -> None:
    rig = Rig(slabs=512, record_magic=magic_of(version))
    batches = batches_of(rig, topics)
    frame = build_request(version, 2**31 - 1, b"a client", -1, 30_000, batches)
    data = frame.to_bytes()
    assert frame.nbytes == len(data)
    produced = decode_produce(data)  # kafka-python, which also encodes it again to the same bytes
    assert (produced.version, produced.correlation_id, produced.client_id) == (version, 2**31 - 1, "a client")
    assert (produced.acks, produced.timeout_ms, produced.transactional_id) == (-1, 30_000, None)
    assert list(produced.records) == [(batch.topic, batch.partition) for batch in batches]
    assert [len(records) for records in produced.records.values()] == [batch.size for batch in batches]
    if version in KIO_VERSIONS:
        header, entity = messages.decode_request(data[4:])
        assert (header.api_key, header.version, header.client_id) == (0, version, "a client")
        records_by_partition = {
            (topic.name, p.index): p.records for topic in entity.topic_data for p in topic.partition_data
        }
        assert records_by_partition == produced.records
        assert messages.encode_request(0, version, header.correlation_id, "a client", entity) == data[4:]
    finished(rig, batches)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 0, 1])
@pytest.mark.parametrize("client_id", ["", "k", "é" * 200])
def test_request_holds_acks_timeout_and_client_id(version: int, acks: int, client_id: str) -> None:
    rig = Rig(record_magic=magic_of(version))
    batches = batches_of(rig, {"t": 1})
    produced = decode_produce(build_request(version, 0, client_id.encode(), acks, 0, batches).to_bytes())
    assert (produced.acks, produced.timeout_ms, produced.client_id) == (acks, 0, client_id)
    finished(rig, batches)


def test_request_reads_the_records_from_their_slab() -> None:
    rig = Rig()
    batches = batches_of(rig, {"t": 1})
    frame = build_request(9, 1, b"c", -1, 1, batches)
    before = frame.to_bytes()
    batches[0].fail(ValueError("expired"))  # type: ignore[arg-type]
    assert frame.to_bytes() == before  # the reader keeps the slab
    batches[0].end_read()
    assert frame.to_bytes() != before  # the pool has poisoned the slab, and the frame reads the slab itself
    assert_whole(rig.pool)


def test_batch_that_lost_its_slab_is_refused() -> None:
    rig = Rig()
    (batch,) = batches_of(rig, {"t": 1})
    batch.complete(0, -1)
    with pytest.raises(AssertionError, match="no longer owns its slab"):
        build_request(9, 1, b"c", -1, 1, [batch])
    assert_whole(rig.pool)


# ---- responses -------------------------------------------------------------------------------------------------------

ANSWERS = {
    ("t", 0): Answer(0, 2**40, -1),
    ("t", 5): Answer(6, -1, -1, "another leads", [(0, "bad"), (3, None)]),
    ("u", 2**31 - 1): Answer(0, 0, 1_700_000_000_000),
    ("é" * 100, 0): Answer(-1, -1, -1, None, [(7, "only here")]),
}


def kio_answer(version: int, answers: dict[tuple[str, int], Answer]) -> bytes:
    topics = [
        {
            "name": name,
            "partition_responses": [
                {
                    "index": index,
                    "error_code": answer.error_code,
                    "base_offset": answer.base_offset,
                    "log_append_time": answer.log_append_time,
                    "log_start_offset": 0,
                    "record_errors": [
                        {"batch_index": n, "batch_index_error_message": text} for n, text in answer.record_errors
                    ],
                    "error_message": answer.message,
                }
            ],
        }
        for (name, index), answer in answers.items()
    ]
    entity = messages.build_response(messages.PRODUCE, version, responses=topics, throttle_time=0)
    return messages.encode_response(messages.PRODUCE, version, 77, entity)


def parsed(version: int, frame: bytes) -> dict[tuple[str, int], tuple[int, int, int, str | None]]:
    return {
        key: (answer.error_code, answer.base_offset, answer.log_append_time, answer.message)
        for key, answer in parse_response(version, frame).partitions.items()
    }


def expected(version: int) -> dict[tuple[str, int], tuple[int, int, int, str | None]]:
    def message(answer: Answer) -> str | None:
        if version < 8:
            return None
        return answer.message or "; ".join(text for _, text in answer.record_errors if text) or None

    return {
        key: (answer.error_code, answer.base_offset, answer.log_append_time, message(answer))
        for key, answer in ANSWERS.items()
    }


@pytest.mark.parametrize("version", KIO_VERSIONS)
def test_response_by_kio_is_read_alike(version: int) -> None:
    assert parsed(version, kio_answer(version, ANSWERS)) == expected(version)


@pytest.mark.parametrize("version", range(3, 13))
def test_poll_call_sees_every_error_in_a_response(version: int) -> None:
    names = [("t", 0), ("t", 200), ("longer" * 30, 1)]
    good = {name: Answer(0, 2**40, 2**40) for name in names}
    for encode in (kio_answer, lambda version, answers: encode_answer(version, 1, answers)):
        for count in range(len(names) + 1):
            some = encode(version, {name: good[name] for name in names[:count]})
            assert says_all_were_taken(version, some, count)
            assert not says_all_were_taken(version, some, count + 1)
            assert not says_all_were_taken(version, some, count - 1)
        bad = [Answer(45), Answer(-1), Answer(87)]
        if version >= 8:
            bad += [Answer(0, message="m"), Answer(0, record_errors=[(0, "text")])]
        for name in names:
            for answer in bad:
                assert not says_all_were_taken(version, encode(version, good | {name: answer}), len(names))
        whole = encode(version, good)
        assert not any(says_all_were_taken(version, whole[:size], len(names)) for size in range(4, len(whole)))
        assert not says_all_were_taken(version, whole + b"\0", len(names))


@pytest.mark.parametrize("version", range(3, 13))
def test_response_with_a_pause_starts_no_queued_request(version: int) -> None:
    paused = encode_answer(version, 1, {("t", 0): Answer(0, 1)}, throttle_ms=100)
    assert says_all_were_taken(version, paused, 1) == (version < 6)  # before version 6 the broker itself waits


@pytest.mark.parametrize("version", VERSIONS)
def test_response_by_kafka_python_is_read_alike(version: int) -> None:
    assert parsed(version, encode_answer(version, 77, ANSWERS)) == expected(version)


def led_elsewhere(version: int, throttle_ms: int = 1) -> bytes:
    """A response by kafka-python that names the leader of t-1 and the addresses of two nodes."""
    topic = ProduceResponse.TopicProduceResponse
    partition = topic.PartitionProduceResponse
    node = ProduceResponse.NodeEndpoint
    leader = partition.LeaderIdAndEpoch(leader_id=3, leader_epoch=9)
    response = ProduceResponse[version](
        responses=[
            topic(
                name="t",
                partition_responses=[
                    partition(index=0),
                    partition(index=1, error_code=6, current_leader=leader, base_offset=-1, log_start_offset=5),
                ],
            )
        ],
        node_endpoints=[
            node(node_id=3, host="elsewhere", port=9092, rack=None),
            node(node_id=2**31 - 1, host="é" * 100, port=65535, rack="r"),
        ],
        throttle_time_ms=throttle_ms,
    )
    response.with_header(5)
    return bytes(response.encode(header=True))


@pytest.mark.parametrize("version", range(10, 13))
def test_leader_named_in_tags_is_read(version: int) -> None:
    answer = parse_response(version, led_elsewhere(version))
    assert [(p.leader, p.leader_epoch) for p in answer.partitions.values()] == [(-1, -1), (3, 9)]
    assert answer.nodes == {3: ("elsewhere", 9092, None), 2**31 - 1: ("é" * 100, 65535, "r")}
    assert answer.partitions["t", 1].log_start_offset == 5
    # In version 9 the same tags have no meaning.
    answer = parse_response(9, led_elsewhere(version))
    assert [(p.leader, p.leader_epoch) for p in answer.partitions.values()] == [(-1, -1), (-1, -1)]
    assert answer.nodes == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_pause_that_the_broker_asks_for_is_read(version: int) -> None:
    response = ProduceResponse[version](responses=[], throttle_time_ms=77_000)
    response.with_header(5)
    assert parse_response(version, bytes(response.encode(header=True))).throttle_ms == 77_000


def test_tag_of_the_wrong_length_is_refused() -> None:
    frame = bytearray(led_elsewhere(12))
    place = frame.index(b"\x09\0\0\0\x03")  # the tag's size, nine bytes, and the leader
    assert attempt(12, bytes(frame))
    for size in (0, 8, 10, 127):
        frame[place] = size
        assert not attempt(12, bytes(frame))


def node_at(host: bytes | None, port: int) -> bytes:
    """A response that holds only one node endpoint."""
    name = b"\0" if host is None else bytes([len(host) + 1]) + host
    node = b"\0\0\0\x07" + name + port.to_bytes(4, "big", signed=True) + b"\0\0"
    endpoints = b"\x02" + node
    return b"\0\0\0\x01" + b"\0" + b"\x01" + bytes(4) + b"\x01\0" + bytes([len(endpoints)]) + endpoints


def test_impossible_address_is_refused() -> None:
    assert parse_response(12, node_at(b"h", 9092)).nodes == {7: ("h", 9092, None)}
    for host, port in [(None, 9092), (b"", 9092), (b"h", 0), (b"h", -1), (b"h", 65536)]:
        with pytest.raises(CorruptMessageError, match=r"node 7 at '?\w*'?:-?\d+"):
            parse_response(12, node_at(host, port))


@pytest.mark.parametrize("version", VERSIONS)
def test_impossible_numbers_are_refused(version: int) -> None:
    pause = ProduceResponse[version](responses=[], throttle_time_ms=-1)
    pause.with_header(5)
    bad = {
        "pause of -1 ms": bytes(pause.encode(header=True)),
        "offset -2": encode_answer(version, 1, {("t", 0): Answer(base_offset=-2)}),
        "append time -9": encode_answer(version, 1, {("t", 0): Answer(log_append_time=-9)}),
        "bytes behind its last field": encode_answer(version, 1, ANSWERS) + b"\0",
    }
    for text, frame in bad.items():
        with pytest.raises(CorruptMessageError, match=text):
            parse_response(version, frame)
    assert attempt(version, encode_answer(version, 1, {("t", 0): Answer(6, -1, -1)}))


def test_partition_named_twice_is_refused() -> None:
    once = b"\0\0\0\x05" + bytes(2) + bytes(24)
    frame = b"\0\0\0\x01" + b"\0\0\0\x01" + b"\0\x01t" + b"\0\0\0\x02" + once + once + bytes(4)
    with pytest.raises(CorruptMessageError, match="names t-5 twice"):
        parse_response(5, frame)


def attempt(version: int, frame: bytes) -> bool:
    """Whether the frame can be read. Any error but CorruptMessageError fails the test."""
    try:
        parse_response(version, frame)
    except CorruptMessageError:
        return False
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_response_is_refused(version: int) -> None:
    frame = led_elsewhere(version) if version >= 10 else encode_answer(version, 77, ANSWERS)
    assert attempt(version, frame)
    assert not any(attempt(version, frame[:size]) for size in range(len(frame)))


@pytest.mark.parametrize("version", VERSIONS)
def test_response_with_any_wrong_byte_is_read_or_refused(version: int) -> None:
    frame = led_elsewhere(version) if version >= 10 else encode_answer(version, 77, ANSWERS)
    for place in range(len(frame)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF):
            attempt(version, frame[:place] + bytes([value]) + frame[place + 1 :])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 2**32 - 1, 10**6, 300])
def test_count_beyond_the_frame_is_refused(version: int, count: int) -> None:
    def number(value: int) -> bytes:
        if version < 9:
            return (value & 0xFFFFFFFF).to_bytes(4, "big")
        out = bytearray()
        value += 1
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    tags = b"\0" if version >= 9 else b""
    name = b"\x02t" if version >= 9 else b"\0\x01t"
    head = b"\0\0\0\x01" + tags
    rest = bytes(200)
    assert not attempt(version, head + number(count) + rest)  # topics
    assert not attempt(version, head + number(1) + name + number(count) + rest)  # partitions
    partition = bytes(4 + 2 + 8 + 8) + (bytes(8) if version >= 5 else b"")
    if version >= 8:  # record errors
        assert not attempt(version, head + number(1) + name + number(1) + partition + number(count) + rest)
    if version >= 10:  # endpoints
        endpoints = number(count) + rest
        tag = b"\x01\0" + number(len(endpoints) - 1) + endpoints
        assert not attempt(version, head + number(0) + bytes(4) + tag)


@pytest.mark.parametrize("version", range(9, 13))
def test_endless_varint_or_tag_is_refused(version: int) -> None:
    head = b"\0\0\0\x01"
    for tail in (b"\x80" * 5 + b"\x01", b"\xff" * 100, b"\x01\x00\xff\xff\xff\xff\x0f", b"\x05" + b"\0\0" * 4):
        assert not attempt(version, head + tail)
    assert attempt(version, head + b"\x02\x00\x03abc\x01\x00" + b"\x01" + b"\0" * 5)  # unknown tags are skipped


@pytest.mark.parametrize("frame", [b"", b"\0", b"\0\0\0"])
@pytest.mark.parametrize("version", VERSIONS)
def test_frame_shorter_than_its_header_is_refused(version: int, frame: bytes) -> None:
    assert not attempt(version, frame)


@given(frame=st.binary(max_size=200), version=st.sampled_from(VERSIONS))
def test_noise_is_read_or_refused(frame: bytes, version: int) -> None:
    attempt(version, frame)


@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_spliced_response_is_read_or_refused(data: Any, version: int) -> None:
    frame = led_elsewhere(version) if version >= 10 else encode_answer(version, 77, ANSWERS)
    cut, again = (data.draw(st.integers(0, len(frame))) for _ in range(2))
    attempt(version, frame[:cut] + frame[again:])


def test_response_of_20_000_partitions_is_read() -> None:
    answers = {("t", partition): Answer(base_offset=partition) for partition in range(20_000)}
    order = random.Random(1).sample(sorted(answers), len(answers))
    frame = encode_answer(12, 1, {key: answers[key] for key in order})
    assert {key[1]: one.base_offset for key, one in parse_response(12, frame).partitions.items()} == {
        p: p for p in range(20_000)
    }
