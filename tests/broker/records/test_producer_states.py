"""What a partition knows of its producers (records/producer_state.py)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from kafkabuf.broker.records._batch import BatchInfo
from kafkabuf.broker.records._producer_entry import EXPIRATION_MS, ProducerEntry
from kafkabuf.broker.records.control import Marker
from kafkabuf.broker.records.producer_state import ProducerStates
from kafkabuf.broker.storage.snapshot import IndexSum, decode_snapshot, encode_snapshot
from kafkabuf.errors import KafkaError

PRODUCER, SEQUENCES = 5, 2**31
# (epoch, sequence less the next sequence, records, transactional, milliseconds since the batch before)
BATCHES = st.tuples(
    st.integers(0, 1),
    st.sampled_from([0, 0, 0, -3, -2, -1, 1]),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([0, 0, EXPIRATION_MS]),
)


@given(
    first=st.sampled_from([0, SEQUENCES - 4]), batches=st.lists(BATCHES, max_size=10), ends=st.sets(st.integers(0, 9))
)
def test_batch_that_is_next_is_no_duplicate_and_passes_the_check(
    first: int, batches: list[tuple[int, int, int, bool, int]], ends: set[int]
) -> None:
    """The leader asks `is_next` first, and leaves the two other questions out if it is."""
    states, following, offset, now = ProducerStates(), first, 0, 0
    for number, (epoch, off, count, transactional, silence) in enumerate(batches):
        info = BatchInfo(count, 0, 2, PRODUCER, epoch, (following + off) % SEQUENCES, transactional)
        now += silence
        if states.is_next(info, now):
            assert states.duplicate(info) is None
            states.check(info, now)
        elif states.duplicate(info) is None:
            try:
                states.check(info, now)
            except KafkaError:
                continue
        else:
            continue
        if transactional:
            states.start_verification(info, version_2=False)
        states.append(info, offset, now)
        following, offset = (info.base_sequence + count) % SEQUENCES, offset + count
        if number in ends:
            states.end(Marker(PRODUCER, epoch, 0, True), offset, 0, now)
            offset += 1


def test_second_batch_of_a_producer_is_next_and_its_first_is_not() -> None:
    states = ProducerStates()
    first, second = (BatchInfo(3, 0, 2, PRODUCER, 0, sequence) for sequence in (0, 3))
    assert not states.is_next(first, 0)
    states.append(first, 0, 0)
    assert states.is_next(second, EXPIRATION_MS - 1)
    assert not states.is_next(first, 0)
    assert not states.is_next(second, EXPIRATION_MS)


class Entries(dict[int, ProducerEntry]):
    """Counts how often somebody looks at all producers."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def test_new_producers_look_for_silent_producers_once_in_ten_minutes() -> None:
    """A batch of each of 10,000 new producers would else take the square."""
    entries = Entries()
    states = ProducerStates(entries)

    def write(producer_id: int, now_ms: int) -> None:
        info = BatchInfo(1, 0, 2, producer_id, 0, 0)
        states.check(info, now_ms)
        states.append(info, producer_id, now_ms)

    for producer_id in range(100):
        write(producer_id, now_ms=599_999 * (producer_id > 0))
    assert entries.walks == 1
    write(100, EXPIRATION_MS)
    assert entries.walks == 2
    assert len(entries) == 100, "the first producer was silent for a day"


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
def test_snapshot_has_the_layout_of_kafka_and_behind_it_the_remembered_batches_and_the_sums_of_indexes(
    producers: dict[int, tuple[int, int, int, int | None, list[tuple[int, int, int, int]]]],
    indexes: dict[int, IndexSum],
) -> None:
    entries, heads, rest = {}, b"", b""
    for producer_id, (epoch, coordinator_epoch, timestamp, start, batches) in producers.items():
        entry = entries[producer_id] = ProducerEntry(epoch, coordinator_epoch, timestamp, 5, start)
        for batch in batches:
            entry.remember(*batch)
        first, last, offset, _ = batches[-1] if batches else (0, -1, -1, -1)
        delta = (last - first) % SEQUENCES if batches else 0
        state = (epoch, last, offset + delta, delta, timestamp, coordinator_epoch, -1 if start is None else start)
        heads += struct.pack(">qhiqiqiq", producer_id, *state)
        kept = batches[-5:]
        rest += bytes([len(kept)]) + b"".join(struct.pack(">iiqq", *batch) for batch in kept)
    rest += struct.pack(">i", len(indexes)) + b"".join(
        struct.pack(">qiI", base, *known) for base, known in indexes.items()
    )
    data = encode_snapshot(ProducerStates(entries), indexes)
    assert data[6:] == struct.pack(">i", len(entries)) + heads + rest
    assert encode_snapshot(*decode_snapshot(data, 5)) == data
