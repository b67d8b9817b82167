"""A snapshot of the cluster: brokers, topics, partition leaders. Also decides which responses are out of date.

A snapshot is immutable: metadata.py replaces it as a whole, so that readers need no lock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from kafkabuf.errors import KafkaError, LeaderNotAvailableError, UnknownTopicOrPartitionError, error_for_code
from kafkabuf.process.producer_log import producer_log

log = producer_log("kafkabuf.network")

NO_LEADER = -1
UNKNOWN_EPOCH = -1
# After this many responses in a row that seem out of date, the client believes them. With their back-offs they take
# seconds. In this time a broker that lags behind catches up.
BELIEVED_AFTER = 10
MOST_PAST_IDS = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and where it listens."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`leader` is a broker id or NO_LEADER. `leader_epoch` is UNKNOWN_EPOCH if the broker is too old to send it."""

    partition: int
    leader: int
    leader_epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic. `partitions[p].partition == p` always.

    `error` is set after a response that did not describe the topic. The known partitions stay if a retry may help.

    `topic_id` changes when the topic is deleted and created again; None if the brokers are too old to send it.
    """

    name: str
    topic_id: UUID | None
    error: KafkaError | None
    partitions: tuple[PartitionInfo, ...]
    past_ids: tuple[UUID, ...] = field(default=(), compare=False, repr=False)  # the newest first
    doubted: int = field(default=0, compare=False, repr=False)  # responses in a row that seemed older than this

    @property
    def leaders(self) -> list[int]:
        """The leaders' broker ids by partition number; NO_LEADER for a partition without a leader."""
        return [partition.leader for partition in self.partitions]

    @property
    def leader_epochs(self) -> list[int]:
        """The leader epochs by partition number; UNKNOWN_EPOCH if the broker is too old to send them."""
        return [partition.leader_epoch for partition in self.partitions]


@dataclass(frozen=True, slots=True)
class Cluster:
    """One snapshot of the cluster. `version` counts the responses; it is 0 before the first.

    `cluster_id` is "" before it, and where brokers are too old to name it.
    """

    brokers: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    controller: int = -1
    version: int = 0
    cluster_id: str = ""

    def with_leaders(self, leaders: Mapping[tuple[str, int], tuple[int, int]], nodes: Iterable[Node]) -> Cluster:
        """The snapshot with new leaders that former leaders named: (leader, epoch) by topic and partition (KIP-951).

        A new leader counts if its partition is known, its epoch is newer, and it is a known node or one of `nodes`.
        """
        brokers = {**self.brokers, **{node.id: node for node in nodes}}
        changed: dict[str, TopicInfo] = {}
        for (name, number), (leader, epoch) in leaders.items():
            topic = changed.get(name) or self.topics.get(name)
            if topic is None or not 0 <= number < len(topic.partitions) or leader not in brokers:
                continue
            if epoch > topic.partitions[number].leader_epoch:
                partitions = list(topic.partitions)
                partitions[number] = PartitionInfo(number, leader, epoch)
                changed[name] = replace(topic, partitions=tuple(partitions))
        return replace(self, brokers=brokers, topics={**self.topics, **changed}) if changed else self

    def without_brokers(self) -> Cluster:
        """The snapshot without brokers: it keeps topics and partitions, and no partition has a leader."""
        topics = {
            name: replace(topic, partitions=tuple(PartitionInfo(p.partition, NO_LEADER) for p in topic.partitions))
            for name, topic in self.topics.items()
        }
        return replace(self, brokers={}, controller=-1, topics=topics)


def topic_info(topic: Any, known: TopicInfo | None) -> TopicInfo:
    """The new snapshot of one topic: as in the response, unless the response seems older than `known`."""
    known = known or TopicInfo(topic.name, None, None, ())
    if topic.error_code:
        error = error_for_code(int(topic.error_code))
        error = type(error)(f"topic {topic.name!r}: {error}")
        if type(known.error) is not type(error):
            log.log(logging.INFO if error.retriable else logging.WARNING, "metadata: %s", error)
        # A broker that has just started knows less than this client, but UNKNOWN_TOPIC_OR_PARTITION is believed.
        keep = error.retriable and not isinstance(error, UnknownTopicOrPartitionError)
        return replace(known, error=error, partitions=known.partitions if keep else ())
    partitions = tuple(_partition_info(p) for p in sorted(topic.partitions, key=lambda p: int(p.partition_index)))
    if not partitions or any(index != p.partition for index, p in enumerate(partitions)):
        text = f"topic {topic.name!r}: the broker does not know all of its partitions yet"
        return replace(known, error=LeaderNotAvailableError(text))
    sent_id: UUID | None = getattr(topic, "topic_id", None)
    topic_id = sent_id if sent_id is not None and sent_id.int else None
    return _successor(known, TopicInfo(topic.name, topic_id, None, partitions))


def _successor(known: TopicInfo, received: TopicInfo) -> TopicInfo:
    """The topic after a response, which may come from a broker that lags behind.

    A topic that is created again gets a new id, and its leader epochs start again. So a response is out of date if it
    has an id that was replaced, or the current id with an older epoch or fewer partitions. The client then keeps what
    it knows, and asks again soon. Brokers without topic ids send such a response for a topic that was created again
    too, and what the client knows may be wrong. So the client believes a response that keeps coming. Only a topic that
    has kept its id never loses partitions.
    """
    topic_id = received.topic_id or known.topic_id
    past_ids = tuple(past for past in (known.topic_id, *known.past_ids) if past is not None and past != topic_id)
    created_again = known.topic_id is not None and known.topic_id != topic_id
    newest = known.partitions if created_again else _newest(known.partitions, received.partitions)
    outdated = topic_id in known.past_ids if created_again else newest != received.partitions
    if outdated and known.doubted + 1 < BELIEVED_AFTER:
        return replace(known, error=None, partitions=newest, doubted=known.doubted + 1)
    kept = () if created_again or received.topic_id is None else newest[len(received.partitions) :]
    partitions = received.partitions + kept
    return replace(received, topic_id=topic_id, partitions=partitions, past_ids=past_ids[:MOST_PAST_IDS])


def _partition_info(partition: Any) -> PartitionInfo:
    epoch = getattr(partition, "leader_epoch", UNKNOWN_EPOCH)
    return PartitionInfo(int(partition.partition_index), int(partition.leader_id), int(epoch))


def _newest(known: tuple[PartitionInfo, ...], received: tuple[PartitionInfo, ...]) -> tuple[PartitionInfo, ...]:
    # A broker that lags behind may still name a former leader: requests to it would only fail.
    both = zip(known, received, strict=False)
    newer = [old if UNKNOWN_EPOCH != new.leader_epoch < old.leader_epoch else new for old, new in both]
    return (*newer, *known[len(newer) :], *received[len(newer) :])
