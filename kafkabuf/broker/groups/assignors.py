"""The server-side assignors of consumer groups (KIP-848): `range` and `uniform`.

An assignor gets the members with the topics that they read, the former target of each member, and the number of
partitions of each topic. It returns a target for every member, in which each partition of a topic with a subscriber is
in exactly one member's target. Everything here is pure.

Source: Kafka's RangeAssignor and UniformAssignor, for what they promise. Deviation: where several assignments keep the
promises, Kafka's choice depends on the order of its hash tables; here members come in the order in which they joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import Protocol, TypeVar

from kafkabuf.broker.groups.reconciliation import NO_PARTITIONS, Partitions, TopicId, TopicIdPartition
from kafkabuf.broker.waiting.slices import Work

T = TypeVar("T")

# `uniform` stops after this many passes: members whose topics overlap may need many for a perfect balance.
_MAX_PASSES = 16
# Topics or partitions that a step looks at.
_STEP = 500


class Topics(Protocol):
    """A set of topics. Equal sets may be one subscription."""

    def __contains__(self, topic: object, /) -> bool: ...
    def __iter__(self) -> Iterator[TopicId]: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it. `target` is its former target assignment."""

    member_id: str
    instance_id: str | None
    topics: Topics
    target: Partitions = NO_PARTITIONS


Assignment = dict[str, Partitions]
Assignor = Callable[[Sequence[Subscriber], Mapping[TopicId, int]], Work[Assignment]]
# Members, with all topics that exactly these members read.
Shared = tuple[list[str], list[TopicId]]


def assign_ranges(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Work[Assignment]:
    """Each topic's partitions go to its subscribers in neighbouring ranges. Static members come first, in the order of
    their instance ids. So topics with as many partitions and the same subscribers are divided alike."""
    ordered = sorted(subscribers, key=_static_first)
    targets: dict[str, set[TopicIdPartition]] = {subscriber.member_id: set() for subscriber in subscribers}
    for readers, topics in (yield from _by_readers(ordered, partitions)):
        for topic in topics:
            count, start = partitions[topic], 0
            # Readers behind the first `count` get nothing.
            for rank, reader in enumerate(readers[:count]):
                end = start + count // len(readers) + (rank < count % len(readers))
                targets[reader].update((topic, index) for index in range(start, end))
                start = end
            yield
    return (yield from _frozen(targets))


def _frozen(targets: dict[str, set[TopicIdPartition]]) -> Work[Assignment]:
    assignment = {}
    for member_id, target in targets.items():
        assignment[member_id] = frozenset(target)
        yield
    return assignment


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, _STEP)):
        yield chunk


def _static_first(subscriber: Subscriber) -> tuple[bool, str]:
    return subscriber.instance_id is None, subscriber.instance_id or subscriber.member_id


def _by_readers(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Work[list[Shared]]:
    """The readers of topics, in steps. Members with equal subscriptions count once, and a topic costs no more than it
    has subscriptions."""
    alike: dict[Topics, list[str]] = {}
    for subscriber in subscribers:
        alike.setdefault(subscriber.topics, []).append(subscriber.member_id)
    subscriptions: dict[TopicId, list[int]] = {}
    for number, subscribed in enumerate(alike):
        for chunk in _chunks(subscribed):
            for topic in chunk:
                subscriptions.setdefault(topic, []).append(number)
            yield
    topics: dict[tuple[int, ...], list[TopicId]] = {}
    for topic in partitions:
        if topic in subscriptions:
            topics.setdefault(tuple(subscriptions.pop(topic)), []).append(topic)
            yield
    order = {subscriber.member_id: rank for rank, subscriber in enumerate(subscribers)}
    names, shared = list(alike.values()), []
    for key, chosen in topics.items():
        readers = sorted((name for number in key for name in names[number]), key=order.__getitem__)
        shared.append((readers, chosen))
        yield
    return shared


def assign_uniformly(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Work[Assignment]:
    """Members get equal numbers of partitions, as far as their topics allow, and keep what they can."""
    return _Uniform(subscribers, partitions).assign()


class _Uniform:
    def __init__(self, subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> None:
        self._subscribers = subscribers
        self._sizes = partitions
        self._shared: list[tuple[list[str], list[TopicIdPartition]]] = []
        self._owners: dict[TopicIdPartition, str] = {}
        self._targets: dict[str, set[TopicIdPartition]] = {subscriber.member_id: set() for subscriber in subscribers}

    def assign(self) -> Work[Assignment]:
        yield from self._share()
        for subscriber in self._subscribers:
            yield from self._keep(subscriber)
        for readers, partitions in self._shared:
            yield from self._assign_rest(readers, partitions)
        for _ in range(_MAX_PASSES):
            moved = False
            for readers, partitions in self._shared:
                moved |= yield from self._balance(readers, partitions)
            if not moved or len(self._shared) == 1:
                break
        return (yield from _frozen(self._targets))

    def _share(self) -> Work[None]:
        """Finds the readers of partitions, with these partitions. Partitions with few readers leave the least choice,
        so they come first."""
        shared = yield from _by_readers(self._subscribers, self._sizes)
        for readers, topics in sorted(shared, key=lambda entry: len(entry[0])):
            partitions: list[TopicIdPartition] = []
            for topic in topics:
                partitions += [(topic, index) for index in range(self._sizes[topic])]
                yield
            self._shared.append((readers, partitions))

    def _keep(self, subscriber: Subscriber) -> Work[None]:
        for chunk in _chunks(subscriber.target):
            for partition in chunk:
                if self._may_keep(subscriber, partition):
                    self._give(partition, subscriber.member_id)
            yield

    def _may_keep(self, subscriber: Subscriber, partition: TopicIdPartition) -> bool:
        topic, index = partition
        exists = index < self._sizes.get(topic, 0)
        return exists and topic in subscriber.topics and partition not in self._owners

    def _give(self, partition: TopicIdPartition, member_id: str) -> None:
        if (former := self._owners.get(partition)) is not None:
            self._targets[former].remove(partition)
        self._owners[partition] = member_id
        self._targets[member_id].add(partition)

    def _load(self, member_id: str) -> int:
        return len(self._targets[member_id])

    def _assign_rest(self, readers: list[str], partitions: list[TopicIdPartition]) -> Work[None]:
        """Gives each partition without an owner to the least loaded reader."""
        heap: list[tuple[int, int, str]] = []
        for chunk in _chunks(partitions):
            for partition in chunk:
                if partition not in self._owners:
                    heap = heap or self._takers(readers)
                    load, rank, reader = heap[0]
                    self._give(partition, reader)
                    heapreplace(heap, (load + 1, rank, reader))
            yield

    def _takers(self, readers: list[str]) -> list[tuple[int, int, str]]:
        """A heap: the least loaded reader comes first."""
        takers = [(self._load(reader), rank, reader) for rank, reader in enumerate(readers)]
        heapify(takers)
        return takers

    def _balance(self, readers: list[str], partitions: list[TopicIdPartition]) -> Work[bool]:
        """Moves partitions from the most loaded readers that have any of them to the least loaded readers. Returns
        whether a partition moved."""
        yield
        if not self._may_move(readers, partitions):
            return False
        held: dict[str, list[TopicIdPartition]] = {reader: [] for reader in readers}
        for chunk in _chunks(partitions):
            for partition in chunk:
                held[self._owners[partition]].append(partition)
            yield
        givers = [(-self._load(reader), -rank, reader) for rank, reader in enumerate(readers) if held[reader]]
        heapify(givers)
        takers = self._takers(readers)
        moved = 0
        # A reader that gave is more loaded than any reader that takes afterwards, and the other way round, until their
        # loads differ by one at most: so no entry of one heap is out of date because of the other heap.
        while givers and -givers[0][0] - takers[0][0] > 1:
            surplus, giving_rank, giver = givers[0]
            load, taking_rank, taker = takers[0]
            self._give(held[giver].pop(), taker)
            heapreplace(takers, (load + 1, taking_rank, taker))
            if held[giver]:
                heapreplace(givers, (surplus + 1, giving_rank, giver))
            else:
                heappop(givers)
            moved += 1
            if not moved % _STEP:
                yield
        return bool(moved)

    def _may_move(self, readers: list[str], partitions: list[TopicIdPartition]) -> bool:
        """Whether a reader with any of the partitions has at least two more than the least loaded reader. It is not
        worth the time to look where the partitions are many."""
        if len(partitions) > _STEP:
            return True
        most = max(self._load(self._owners[partition]) for partition in partitions)
        return most - min(map(self._load, readers)) > 1


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
