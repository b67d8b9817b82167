"""The assignors of consumer groups as plain functions, which take as long as they take. The assignors in steps return
the same (kafkabuf/broker/groups/assignors.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from kafkabuf.broker.groups.assignors import Assignment, Subscriber, Topics
from kafkabuf.broker.groups.reconciliation import TopicId, TopicIdPartition

_MAX_PASSES = 16
Assignor = Callable[[Sequence[Subscriber], Mapping[TopicId, int]], Assignment]


def assign_ranges(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Assignment:
    """Each topic's partitions go to its subscribers in neighbouring ranges. Static members come first, in the order of
    their instance ids. So topics with as many partitions and the same subscribers are divided alike."""
    ordered = sorted(subscribers, key=_static_first)
    targets: dict[str, set[TopicIdPartition]] = {subscriber.member_id: set() for subscriber in subscribers}
    for readers, topics in _by_readers(ordered, partitions):
        for topic in topics:
            count, start = partitions[topic], 0
            # Readers behind the first `count` get nothing.
            for rank, reader in enumerate(readers[:count]):
                end = start + count // len(readers) + (rank < count % len(readers))
                targets[reader].update((topic, index) for index in range(start, end))
                start = end
    return {member_id: frozenset(target) for member_id, target in targets.items()}


def _static_first(subscriber: Subscriber) -> tuple[bool, str]:
    return subscriber.instance_id is None, subscriber.instance_id or subscriber.member_id


def _by_readers(
    subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]
) -> list[tuple[list[str], list[TopicId]]]:
    """The readers of topics, with all topics that exactly these members read. Members with equal subscriptions count
    once, so that a large group with many topics takes no longer than its members and its topics together."""
    alike: dict[Topics, list[str]] = {}
    for subscriber in subscribers:
        alike.setdefault(subscriber.topics, []).append(subscriber.member_id)
    topics: dict[tuple[Topics, ...], list[TopicId]] = {}
    for topic in partitions:
        topics.setdefault(tuple(subscription for subscription in alike if topic in subscription), []).append(topic)
    order = {subscriber.member_id: rank for rank, subscriber in enumerate(subscribers)}
    return [
        (sorted((name for subscription in key for name in alike[subscription]), key=order.__getitem__), chosen)
        for key, chosen in topics.items()
        if key
    ]


def assign_uniformly(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Assignment:
    """Members get equal numbers of partitions, as far as their topics allow, and keep what they can."""
    return _Uniform(subscribers, partitions).assign()


class _Uniform:
    def __init__(self, subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> None:
        self._sizes = partitions
        # The readers of partitions, with these partitions. Partitions with few readers leave the least choice, so they
        # come first.
        self._shared = [
            (readers, [(topic, index) for topic in topics for index in range(partitions[topic])])
            for readers, topics in sorted(_by_readers(subscribers, partitions), key=lambda shared: len(shared[0]))
        ]
        self._owners: dict[TopicIdPartition, str] = {}
        self._targets: dict[str, set[TopicIdPartition]] = {subscriber.member_id: set() for subscriber in subscribers}
        for subscriber in subscribers:
            for partition in subscriber.target:
                if self._may_keep(subscriber, partition):
                    self._give(partition, subscriber.member_id)

    def _may_keep(self, subscriber: Subscriber, partition: TopicIdPartition) -> bool:
        topic, index = partition
        exists = index < self._sizes.get(topic, 0)
        return exists and topic in subscriber.topics and partition not in self._owners

    def _give(self, partition: TopicIdPartition, member_id: str) -> None:
        if (former := self._owners.get(partition)) is not None:
            self._targets[former].remove(partition)
        self._owners[partition] = member_id
        self._targets[member_id].add(partition)

    def assign(self) -> Assignment:
        for readers, partitions in self._shared:
            self._assign_rest(readers, partitions)
        for _ in range(_MAX_PASSES):
            moved = [True for readers, partitions in self._shared if self._balance(readers, partitions)]
            if not moved or len(self._shared) == 1:
                break
        return {member_id: frozenset(target) for member_id, target in self._targets.items()}

    def _assign_rest(self, readers: list[str], partitions: list[TopicIdPartition]) -> None:
        """Gives each partition without an owner to the least loaded reader."""
        heap = [(len(self._targets[reader]), rank, reader) for rank, reader in enumerate(readers)]
        heapify(heap)
        for partition in partitions:
            if partition not in self._owners:
                load, rank, reader = heap[0]
                self._give(partition, reader)
                heapreplace(heap, (load + 1, rank, reader))

    def _balance(self, readers: list[str], partitions: list[TopicIdPartition]) -> bool:
        """Moves partitions from the most loaded readers that have any of them to the least loaded readers. Returns
        whether a partition moved."""
        held: dict[str, list[TopicIdPartition]] = {reader: [] for reader in readers}
        for partition in partitions:
            held[self._owners[partition]].append(partition)
        givers = [(-len(self._targets[reader]), -rank, reader) for rank, reader in enumerate(readers) if held[reader]]
        takers = [(len(self._targets[reader]), rank, reader) for rank, reader in enumerate(readers)]
        heapify(givers)
        heapify(takers)
        moved = False
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
            moved = True
        return moved


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
