"""What a partition knows of its producers (records/producer_state.py)."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from kafkabuf.broker.records._batch import BatchInfo
from kafkabuf.broker.records._producer_entry import ProducerEntry
from kafkabuf.broker.records.control import Marker
from kafkabuf.broker.records.producer_state import ProducerStates
from kafkabuf.broker.storage.snapshot import IndexSum, decode_snapshot, encode_snapshot
from kafkabuf.errors import KafkaError

PRODUCER, SEQUENCES = 5, 2**31
# (epoch, sequence less the next sequence, records, transactional, whether the producer expires before)
BATCHES = st.tuples(
    st.integers(0, 1),
    st.sampled_from([0, 0, 0, -3, -2, -1, 1]),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([False, False, True]),
)


@given(
    first=st.sampled_from([0, SEQUENCES - 4]), batches=st.lists(BATCHES, max_size=10), ends=st.sets(st.integers(0, 9))
)
def test_batch_that_is_next_is_no_duplicate_and_passes_the_check(
    first: int, batches: list[tuple[int, int, int, bool, bool]], ends: set[int]
) -> None:
    """The leader asks `is_next` first, and leaves the two other questions out if it is."""
    states, following, offset = ProducerStates(), first, 0
    for number, (epoch, off, count, transactional, expires) in enumerate(batches):
        info = BatchInfo(count, 0, 2, PRODUCER, epoch, (following + off) % SEQUENCES, transactional)
        if expires:
            states.expire(0)
        if states.is_next(info):
            assert states.duplicate(info) is None
            states.check(info)
        elif states.duplicate(info) is None:
            try:
                states.check(info)
            except KafkaError:
                continue
        else:
            continue
        if transactional:
            states.start_verification(info, version_2=False)
        states.append(info, offset)
        following, offset = (info.base_sequence + count) % SEQUENCES, offset + count
        if number in ends:
            states.end(Marker(PRODUCER, epoch, 0, True), offset, 0)
            offset += 1


def test_second_batch_of_a_producer_is_next_and_its_first_is_not() -> None:
    states = ProducerStates()
    first, second = (BatchInfo(3, 0, 2, PRODUCER, 0, sequence) for sequence in (0, 3))
    assert not states.is_next(first)
    states.append(first, 0)
    assert states.is_next(second)
    assert not states.is_next(first)


def test_producers_expire_by_the_newest_timestamp_of_their_last_batch() -> None:
    states = ProducerStates()
    for producer_id, (timestamp, transactional) in enumerate(((5, False), (6, False), (5, True), (-1, False))):
        states.append(BatchInfo(1, timestamp, 2, producer_id, 0, 0, transactional), producer_id)
    states.append(BatchInfo(1, 9, 2, 4, 0, 0), 4)
    states.append(BatchInfo(1, 4, 2, 4, 0, 1), 5)
    states.expire(5)
    assert [producer_id for producer_id, _ in states] == [1, 2]
    states.end(Marker(2, 0, 0, True), 6, 8)
    states.expire(7)
    assert [producer_id for producer_id, _ in states] == [2], "the control record counts, too"


INT32, INT64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (32, 64))
SEQUENCE, OFFSET = st.integers(0, SEQUENCES - 1), st.integers(0, 2**62)
ENTRIES = st.tuples(
    st.integers(-1, 2**15 - 1),
    INT32,
    INT64,
    st.none() | OFFSET,
    st.lists(st.tuples(SEQUENCE, SEQUENCE, OFFSET, INT64), max_size=7),
)


SUMS = st.builds(IndexSum, SEQUENCE, st.integers(0, 2**32 - 1))


@given(st.dictionaries(st.integers(0, 2**63 - 1), ENTRIES, max_size=4), st.dictionaries(OFFSET, SUMS, max_size=3))
def test_snapshot_has_the_layout_of_kafka_and_behind_it_the_sums_of_indexes(
    producers: dict[int, tuple[int, int, int, int | None, list[tuple[int, int, int, int]]]],
    indexes: dict[int, IndexSum],
) -> None:
    entries, heads = {}, b""
    for producer_id, (epoch, coordinator_epoch, timestamp, start, batches) in producers.items():
        entry = entries[producer_id] = ProducerEntry(epoch, coordinator_epoch, timestamp, start)
        for batch in batches:
            entry.remember(*batch)
        first, last, offset, _ = batches[-1] if batches else (0, -1, -1, -1)
        delta = (last - first) % SEQUENCES if batches else 0
        state = (epoch, last, offset + delta, delta, timestamp, coordinator_epoch, -1 if start is None else start)
        heads += struct.pack(">qhiqiqiq", producer_id, *state)
    rest = struct.pack(">i", len(indexes)) + b"".join(
        struct.pack(">qiI", base, *known) for base, known in indexes.items()
    )
    data = encode_snapshot(ProducerStates(entries), indexes)
    assert data[6:] == struct.pack(">i", len(entries)) + heads + rest
    assert encode_snapshot(*decode_snapshot(data)) == data


def test_snapshot_remembers_the_last_batch_of_each_producer_alone() -> None:
    states = ProducerStates()
    for sequence in range(3):
        states.append(BatchInfo(1, 10 + sequence, 2, PRODUCER, 0, sequence), sequence)
    ((_, entry),) = decode_snapshot(encode_snapshot(states, {}))[0]
    assert [(batch.base_sequence, batch.base_offset) for batch in entry.batches] == [(2, 2)]
