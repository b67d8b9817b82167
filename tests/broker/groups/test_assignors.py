"""What the server-side assignors of consumer groups promise."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import FrameType
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.broker.groups import assignors
from kafkabuf.broker.groups.assignors import ASSIGNORS, Assignment, Subscriber
from kafkabuf.broker.waiting.slices import Work, at_once
from tests.broker.groups import plain_assignors
from tests.effort import effort

assign_ranges, assign_uniformly = at_once(assignors.assign_ranges), at_once(assignors.assign_uniformly)

TOPICS = list(range(1, 6))
sizes = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1)
members = st.lists(st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=7)


def subscribers(topics: list[set[int]], former: Assignment | None = None) -> list[Subscriber]:
    names = [f"member-{index}" for index in range(len(topics))]
    targets = former or {}
    return [
        Subscriber(name, None, frozenset(chosen), targets.get(name, frozenset()))
        for name, chosen in zip(names, topics, strict=True)
    ]


def check(assignment: Assignment, readers: list[Subscriber], partitions: Mapping[int, int]) -> None:
    """Each partition that somebody reads has one owner, who reads its topic."""
    owned = Counter(partition for target in assignment.values() for partition in target)
    read = {topic for reader in readers for topic in reader.topics}
    assert owned == Counter(
        (topic, index) for topic, count in partitions.items() if topic in read for index in range(count)
    )
    for reader in readers:
        assert {topic for topic, _ in assignment[reader.member_id]} <= set(reader.topics)


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=effort(300), deadline=None)
@given(data=st.data())
def test_every_partition_goes_to_one_reader_of_its_topic(name: str, data: st.DataObject) -> None:
    former: Assignment = {}
    for _ in range(3):
        readers, partitions = subscribers(data.draw(members), former), data.draw(sizes)
        former = at_once(ASSIGNORS[name])(readers, partitions)
        check(former, readers, partitions)


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=effort(300), deadline=None)
@given(data=st.data())
def test_assignment_in_short_steps_is_that_of_the_plain_algorithm(name: str, data: st.DataObject) -> None:
    former: Assignment = {}
    with mock.patch.object(assignors, "_STEP", data.draw(st.sampled_from((1, 5, 500)))):
        for _ in range(3):
            readers, partitions = subscribers(data.draw(members), former), data.draw(sizes)
            expected = plain_assignors.ASSIGNORS[name](readers, partitions)
            former = at_once(ASSIGNORS[name])(readers, partitions)
            assert former == expected


@settings(max_examples=effort(300), deadline=None)
@given(sizes, st.integers(1, 7), st.integers(1, 7))
def test_uniform_members_with_the_same_topics_differ_by_one_partition_at_most(
    partitions: dict[int, int], before: int, after: int
) -> None:
    former = assign_uniformly(subscribers([set(TOPICS)] * before), partitions)
    loads = [
        len(target) for target in assign_uniformly(subscribers([set(TOPICS)] * after, former), partitions).values()
    ]
    assert max(loads) - min(loads) <= 1


@settings(max_examples=effort(300), deadline=None)
@given(sizes, st.integers(1, 6))
def test_uniform_moves_no_more_partitions_than_a_new_member_gets(partitions: dict[int, int], count: int) -> None:
    former = assign_uniformly(subscribers([set(TOPICS)] * count), partitions)
    assignment = assign_uniformly(subscribers([set(TOPICS)] * (count + 1), former), partitions)
    moved = {partition for name, target in former.items() for partition in target - assignment[name]}
    assert moved == assignment[f"member-{count}"]


@settings(max_examples=effort(300), deadline=None)
@given(members, sizes)
def test_uniform_assignment_is_kept_while_nothing_changes(topics: list[set[int]], partitions: dict[int, int]) -> None:
    assignment = assign_uniformly(subscribers(topics), partitions)
    assert assign_uniformly(subscribers(topics, assignment), partitions) == assignment


def test_uniform_balances_members_whose_topics_overlap() -> None:
    one, two = TOPICS[:2]
    assignment = assign_uniformly(subscribers([{one}, {one, two}]), {one: 6, two: 2})
    assert sorted(len(target) for target in assignment.values()) == [4, 4]


@settings(max_examples=effort(300), deadline=None)
@given(st.integers(1, 12), st.integers(1, 7))
def test_ranges_are_neighbours_and_alike_for_topics_of_one_size(count: int, readers: int) -> None:
    assignment = assign_ranges(subscribers([set(TOPICS[:2])] * readers), dict.fromkeys(TOPICS[:2], count))
    for target in assignment.values():
        first, second = ([index for owner, index in sorted(target) if owner == topic] for topic in TOPICS[:2])
        assert first == second
        assert all(left + 1 == right for left, right in pairwise(first))


def test_range_puts_static_members_first_in_the_order_of_their_instance_ids() -> None:
    topic = frozenset(TOPICS[:1])
    readers = [Subscriber("a", None, topic), Subscriber("c", "one", topic), Subscriber("b", "two", topic)]
    assignment = assign_ranges(readers, {TOPICS[0]: 3})
    assert {name: [index for _, index in target] for name, target in assignment.items()} == {
        "c": [0],
        "b": [1],
        "a": [2],
    }


def test_many_partitions_are_assigned_in_a_fraction_of_a_second() -> None:
    partitions = dict.fromkeys(range(1, 101), 100)
    readers = [Subscriber(f"m{number}", None, frozenset(partitions)) for number in range(100)]
    for assignor in ASSIGNORS.values():
        check(at_once(assignor)(readers, partitions), readers, partitions)


@pytest.mark.parametrize("name", ASSIGNORS)
def test_step_for_members_with_different_topics_is_short(name: str) -> None:
    """A new member joins a balanced group. The number of lines of Python that a step executes stands for its time."""
    partitions = dict.fromkeys(range(300), 1)
    topics = [set(range(300)) - set(range(number % 7, 300, 7 + number)) for number in range(100)]
    former = at_once(ASSIGNORS[name])(subscribers(topics[1:]), partitions)
    readers = subscribers(topics, former)
    assert max(lines_of_steps(ASSIGNORS[name](readers, partitions))) < 5_000


def lines_of_steps(work: Work[Assignment]) -> Iterator[int]:
    """How many lines each step executes."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    while True:
        lines = 0
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            next(work)
        except StopIteration:
            return
        finally:
            sys.settrace(before)
        yield lines
