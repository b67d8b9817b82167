"""What a partition knows of its producers (log/producer_state.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkabuf.broker.log._batch import BatchInfo
from kafkabuf.broker.log._producer_entry import EXPIRATION_MS
from kafkabuf.broker.log.control import Marker
from kafkabuf.broker.log.producer_state import ProducerStates
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
