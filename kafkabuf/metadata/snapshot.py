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
# So many answers in a row that seem older than what is known are believed: with their back-offs they take seconds, in
# which a broker that lags behind catches up.
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
    """`leader` is a broker id or NO_LEADER; `leader_epoch` is UNKNOWN_EPOCH where the broker is too old to tell."""

    partition: int
    leader: int
    leader_epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic. `partitions[p].partition == p` always; empty while `error` says why nothing is known.

    `topic_id` is another one after the topic was deleted and made again; None where brokers are too old to tell.
    """

    name: str
    topic_id: UUID | None
    error: KafkaError | None
    partitions: tuple[PartitionInfo, ...]
    past_ids: tuple[UUID, ...] = field(default=(), compare=False, repr=False)  # the newest first
    doubted: int = field(default=0, compare=False, repr=False)  # answers in a row that seemed older than this

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
    """The new picture of one topic: what the answer says of it, unless that seems older than what is known."""
    known = known or TopicInfo(topic.name, None, None, ())
    if topic.error_code:
        error = error_for_code(int(topic.error_code))
        error = type(error)(f"topic {topic.name!r}: {error}")
        if type(known.error) is not type(error):
            log.log(logging.INFO if error.retriable else logging.WARNING, "metadata: %s", error)
        # A broker that has just started knows less than we do; one that says there is no such topic is believed.
        keep = error.retriable and not isinstance(error, UnknownTopicOrPartitionError)
        return replace(known, error=error, partitions=known.partitions if keep else ())
    partitions = tuple(_partition_info(p) for p in sorted(topic.partitions, key=lambda p: int(p.partition_index)))
    if not partitions or any(index != p.partition for index, p in enumerate(partitions)):
        text = f"topic {topic.name!r}: the broker does not know all of its partitions yet"
        return replace(known, error=LeaderNotAvailableError(text))
    topic_id: UUID | None = getattr(topic, "topic_id", None)
    told = topic_id if topic_id is not None and topic_id.int else None
    return _successor(known, TopicInfo(topic.name, told, None, partitions))


def _successor(known: TopicInfo, found: TopicInfo) -> TopicInfo:
    """What is known after `found` was, which may come from a broker that lags behind and has yet to hear of changes.

    A topic that is made again gets an id that none had before, and begins with the first leader epochs. So an id that
    was replaced, or with the id of now an older epoch or fewer partitions, is old news: what is known stays, and is
    asked for again soon. Brokers without ids say the same of a topic that was made again. Therefore, and because what
    is known may be what is wrong, an answer that keeps coming is believed in the end; only partitions of a topic that
    has kept its id never go.
    """
    topic_id = found.topic_id or known.topic_id
    past_ids = tuple(past for past in (known.topic_id, *known.past_ids) if past is not None and past != topic_id)
    made_again = known.topic_id is not None and known.topic_id != topic_id
    newest = known.partitions if made_again else _newest(known.partitions, found.partitions)
    old_news = topic_id in known.past_ids if made_again else newest != found.partitions
    if old_news and known.doubted + 1 < BELIEVED_AFTER:
        return replace(known, error=None, partitions=newest, doubted=known.doubted + 1)
    kept = () if made_again or found.topic_id is None else newest[len(found.partitions) :]
    return replace(found, topic_id=topic_id, partitions=found.partitions + kept, past_ids=past_ids[:MOST_PAST_IDS])


def _partition_info(partition: Any) -> PartitionInfo:
    epoch = getattr(partition, "leader_epoch", UNKNOWN_EPOCH)
    return PartitionInfo(int(partition.partition_index), int(partition.leader_id), int(epoch))


def _newest(known: tuple[PartitionInfo, ...], found: tuple[PartitionInfo, ...]) -> tuple[PartitionInfo, ...]:
    # A broker that lags behind may still name a leader that was voted out; going back to it would only fail.
    both = zip(known, found, strict=False)
    newer = [old if UNKNOWN_EPOCH != new.leader_epoch < old.leader_epoch else new for old, new in both]
    return (*newer, *known[len(newer) :], *found[len(newer) :])


def is_legal_topic(name: object) -> bool:
    """Whether a topic can have this name (org.apache.kafka.common.internals.Topic); `TOPIC_RULE` says it in words."""
    return isinstance(name, str) and _LEGAL_TOPIC.fullmatch(name) is not None and name not in (".", "..")
