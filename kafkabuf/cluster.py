"""A picture of the cluster: brokers, topics, partition leaders; and what is believed of what brokers say.

Immutable: metadata.py replaces it whole, so that readers need no lock.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from kafkabuf.errors import KafkaError, LeaderNotAvailableError, UnknownTopicOrPartitionError, error_for_code

log = logging.getLogger("kafkabuf.network")

NO_LEADER = -1
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
TOPIC_RULE = "1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-' are, but for '.' and '..'"
UNKNOWN_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and where it listens."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`leader` is a broker id or NO_LEADER; `leader_epoch` is UNKNOWN_EPOCH where the broker is too old to tell."""

    partition: int
    leader: int
    leader_epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic. `partitions[p].partition == p` always; empty while `error` says why nothing is known."""

    name: str
    topic_id: UUID | None
    error: KafkaError | None
    partitions: tuple[PartitionInfo, ...]

    @property
    def leaders(self) -> list[int]:
        """Broker ids by partition number, NO_LEADER where there is none."""
        return [partition.leader for partition in self.partitions]

    @property
    def leader_epochs(self) -> list[int]:
        """By partition number, UNKNOWN_EPOCH where the broker is too old to tell."""
        return [partition.leader_epoch for partition in self.partitions]


@dataclass(frozen=True, slots=True)
class Cluster:
    """One picture of the cluster. `version` counts the answers received; 0 is before the first."""

    brokers: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    controller: int = -1
    version: int = 0

    def with_leaders(self, leaders: Mapping[tuple[str, int], tuple[int, int]], nodes: Iterable[Node]) -> Cluster:
        """The picture after brokers that lead no more said who does: (leader, epoch) by topic and partition (KIP-951).

        Believed only of partitions that are known, with a newer epoch, led by a node that is known or among `nodes`.
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
        """The picture when nothing said of the brokers counts any more: topics and partitions, without leaders."""
        topics = {
            name: replace(topic, partitions=tuple(PartitionInfo(p.partition, NO_LEADER) for p in topic.partitions))
            for name, topic in self.topics.items()
        }
        return replace(self, brokers={}, controller=-1, topics=topics)


def topic_info(topic: Any, known: TopicInfo | None) -> TopicInfo:
    """The new picture of one topic, in which no leader epoch is older than in the known one."""
    topic_id: UUID | None = getattr(topic, "topic_id", None)
    if topic.error_code:
        error = error_for_code(int(topic.error_code))
        error = type(error)(f"topic {topic.name!r}: {error}")
        if known is None or type(known.error) is not type(error):
            log.log(logging.INFO if error.retriable else logging.WARNING, "metadata: %s", error)
        # A broker that has just started knows less than we do; one that says there is no such topic is believed.
        keep = known is not None and error.retriable and not isinstance(error, UnknownTopicOrPartitionError)
        return TopicInfo(topic.name, topic_id, error, known.partitions if known is not None and keep else ())
    same = known is not None and known.topic_id == topic_id
    old = {p.partition: p for p in known.partitions} if known is not None and same else {}
    partitions = tuple(
        _newer(old.get(p.partition_index), _partition_info(p))
        for p in sorted(topic.partitions, key=lambda p: int(p.partition_index))
    )
    if not partitions or any(index != p.partition for index, p in enumerate(partitions)):
        text = f"topic {topic.name!r}: the broker does not know all of its partitions yet"
        return TopicInfo(topic.name, topic_id, LeaderNotAvailableError(text), known.partitions if known else ())
    return TopicInfo(topic.name, topic_id, None, partitions)


def _partition_info(partition: Any) -> PartitionInfo:
    epoch = getattr(partition, "leader_epoch", UNKNOWN_EPOCH)
    return PartitionInfo(int(partition.partition_index), int(partition.leader_id), int(epoch))


def _newer(known: PartitionInfo | None, found: PartitionInfo) -> PartitionInfo:
    # A broker that lags behind may still name a leader that was voted out; going back to it would only fail.
    stale = known is not None and UNKNOWN_EPOCH != found.leader_epoch < known.leader_epoch
    return known if stale and known is not None else found


def is_legal_topic(name: object) -> bool:
    """Whether a topic can have this name (org.apache.kafka.common.internals.Topic); `TOPIC_RULE` says it in words."""
    return isinstance(name, str) and _LEGAL_TOPIC.fullmatch(name) is not None and name not in (".", "..")
