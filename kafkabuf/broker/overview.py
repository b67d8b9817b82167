"""The topics and groups of a cluster in numbers, which `kafkabuf broker` shows while it runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.controls import Caller
from kafkabuf.broker.groups.groups import AnyGroup
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.errors import UnknownTopicOrPartitionError

# After this many partitions or offsets the cluster's thread serves its clients before it counts on.
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class TopicNumbers:
    """Sums over the partitions of a topic. `end_offsets` grows with each record, `records` are the offsets that are
    left, and `nbytes` are the bytes of their batches. `leaderless` counts the partitions without a leader, `lagging`
    those with a replica that is not in sync."""

    name: str
    partitions: int
    end_offsets: int
    records: int
    nbytes: int
    leaderless: int
    lagging: int


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """A consumer group. `lag` sums up the records behind the committed offsets of its `partitions`."""

    name: str
    state: str
    members: int
    partitions: int
    lag: int


class OverviewControls(Caller):
    def topic_numbers(self) -> list[TopicNumbers]:
        """How many partitions, records and bytes each topic of clients has, in the order of their creation."""

        async def count() -> list[TopicNumbers]:
            numbers, work = [], 0
            for topic in tuple(self._running().catalogue.topics.values()):
                if work >= _AT_ONCE:
                    await asyncio.sleep(0)
                    work = 0
                if not (topic.deleted or topic.internal):
                    numbers.append(_topic_numbers(topic))
                    work += len(topic.partitions)
            return numbers

        return self._await(count())

    def group_numbers(self) -> list[GroupNumbers]:
        """The state, the members and the lag of each consumer group, by name."""

        async def count() -> list[GroupNumbers]:
            cluster, numbers, work = self._running(), [], 0
            for group in sorted(cluster.groups, key=lambda group: group.group_id):
                if work >= _AT_ONCE:
                    await asyncio.sleep(0)
                    work = 0
                numbers.append(_group_numbers(cluster, group))
                work += 1 + numbers[-1].partitions
            return numbers

        return self._await(count())


def _topic_numbers(topic: Topic) -> TopicNumbers:
    logs = [partition.log for partition in topic.partitions]
    return TopicNumbers(
        topic.name,
        len(logs),
        sum(log.end_offset for log in logs),
        sum(log.end_offset - log.log_start_offset for log in logs),
        sum(log.size for log in logs),
        sum(partition.leader < 0 for partition in topic.partitions),
        sum(len(partition.isr) < len(partition.replica_nodes) for partition in topic.partitions),
    )


def _group_numbers(cluster: Cluster, group: AnyGroup) -> GroupNumbers:
    partitions = group.offsets.partitions()
    lag = 0
    for name, index in partitions:
        committed = group.offsets.get((name, index))
        try:
            log = cluster.catalogue.topic(name).partition(index).log
        except UnknownTopicOrPartitionError:
            continue
        lag += max(log.high_watermark - committed.offset, 0) if committed is not None else 0
    return GroupNumbers(group.group_id, group.state.value, len(group.members), len(partitions), lag)
