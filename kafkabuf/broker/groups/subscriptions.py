"""The topics that the members of a consumer group read: names, and names that match their regular expressions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Protocol
from uuid import UUID
from weakref import WeakValueDictionary

from kafkabuf.broker.groups.consumer_member import ConsumerMember, Matches, Subscription
from kafkabuf.broker.groups.reconciliation import TopicId, TopicIdPartition
from kafkabuf.broker.guards.expressions import Pattern
from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.errors import InvalidRegularExpressionError

log = logging.getLogger("kafkabuf.broker")


class Topic(Protocol):
    """What a subscription needs of a topic."""

    @property
    def topic_id(self) -> UUID: ...
    @property
    def partitions(self) -> Sized: ...


# Whether a client may describe the topic with this name.
Sees = Callable[[str], bool]
# Topic id and number of partitions, by name.
TopicSizes = dict[str, tuple[TopicId, int]]
# Topics that a step looks up.
_STEP = 500


def matches_in_steps(patterns: Iterable[str], names: Iterable[str], sees: Sees | None) -> Work[Matches]:
    """The names that match each expression and that the client may describe, in steps."""
    names = tuple(names)
    matches: dict[str, frozenset[str] | InvalidRegularExpressionError] = {}
    for pattern in patterns:
        try:
            matching = yield from Pattern(pattern).matching_in_steps(names)
        except InvalidRegularExpressionError as error:
            matches[pattern] = error
        else:
            matches[pattern] = matching if sees is None else (yield from _visible(matching, sees))
        yield
    return matches


def _visible(names: Iterable[str], sees: Sees) -> Work[frozenset[str]]:
    visible = []
    for name in names:
        if sees(name):
            visible.append(name)
        yield
    return frozenset(visible)


class Subscriptions:
    """`topics` returns the topics that exist, by name. The names that match an expression are those of the last
    `resolve` or `refresh`. As in Kafka they are without the topics that the client which caused the last match may not
    describe, whichever member reads them."""

    def __init__(self, topics: Callable[[], Mapping[str, Topic]]) -> None:
        self._existing = topics
        self._matches: dict[str, frozenset[str]] = {"": frozenset()}
        # The sets of names that members have, by their hashes.
        self._shared: WeakValueDictionary[int, frozenset[str]] = WeakValueDictionary()

    def shared(self, names: frozenset[str]) -> frozenset[str]:
        """The same set for all members that read the same topics. To compare equal sets of thousands of names for
        hundreds of members would take a tenth of a second."""
        present = self._shared.setdefault(hash(names), names)
        return present if present == names else names

    def is_resolved(self, pattern: str) -> bool:
        return pattern in self._matches

    def match(self, pattern: str, sees: Sees | None = None, known: Matches | None = None) -> frozenset[str]:
        """The names that match the expression now. Raises InvalidRegularExpressionError."""
        if pattern in self._matches:
            return self._matches[pattern]
        return self._matching(pattern, sees, known or {})

    def _matching(self, pattern: str, sees: Sees | None, known: Matches) -> frozenset[str]:
        names = (
            known[pattern] if pattern in known else finish(matches_in_steps([pattern], self._existing(), sees))[pattern]
        )
        if isinstance(names, InvalidRegularExpressionError):
            raise names
        return names

    def resolve(self, pattern: str, matches: frozenset[str]) -> None:
        """From now on members with this expression read the topics that `match` has found."""
        self._matches[pattern] = matches

    def refresh(
        self, members: Iterable[ConsumerMember], sees: Sees | None = None, known: Matches | None = None
    ) -> None:
        """Matches the expressions of the members with the topics that exist now."""
        self.forget_unused(members)
        for pattern in self._matches.keys() - {""}:
            try:
                self._matches[pattern] = self._matching(pattern, sees, known or {})
            except InvalidRegularExpressionError as error:
                log.warning("a group goes on with the topics that it had: %s", error)

    def forget_unused(self, members: Iterable[ConsumerMember]) -> None:
        used = {member.subscription.pattern for member in members}
        self._matches = {pattern: names for pattern, names in self._matches.items() if not pattern or pattern in used}

    def names(self, subscription: Subscription) -> frozenset[str]:
        return subscription.topics | self._matching_now(subscription)

    def partitions(self, named: Iterable[tuple[str, int]]) -> frozenset[TopicIdPartition]:
        """The partitions of the topics that exist, with the topics' ids."""
        topics = self._existing()
        return frozenset((topics[name].topic_id.int, index) for name, index in named if name in topics)

    def names_by_id(self) -> dict[TopicId, str]:
        """The names of the topics that exist."""
        return {topic.topic_id.int: name for name, topic in self._existing().items()}

    def topics(self, members: Iterable[ConsumerMember], sizes: TopicSizes) -> dict[Subscription, ReadTopics]:
        """The topics that exist, by the subscriptions of the members. `sizes` has the topics that any of them reads."""
        ids = {name: topic_id for name, (topic_id, _) in sizes.items()}
        names = {topic_id: name for name, topic_id in ids.items()}
        return {
            subscription: ReadTopics(ids, names, subscription.topics, self._matching_now(subscription))
            for subscription in {member.subscription for member in members}
        }

    def _matching_now(self, subscription: Subscription) -> frozenset[str]:
        return self._matches.get(subscription.pattern, frozenset())

    def sizes(self, members: Iterable[ConsumerMember]) -> Work[TopicSizes]:
        """The topics that exist and that a member reads, in steps."""
        topics = self._existing()
        subscribed: set[str] = set()
        for subscription in {member.subscription for member in members}:
            for names in (subscription.topics, self._matching_now(subscription)):
                subscribed.update(filter(topics.__contains__, names))
            yield
        sizes: TopicSizes = {}
        for name in sorted(subscribed):
            if (topic := topics.get(name)) is not None:  # it may be gone since
                sizes[name] = topic.topic_id.int, len(topic.partitions)
            if not len(sizes) % _STEP:
                yield
        return sizes


class ReadTopics:
    """The ids of the topics that exist and that a member reads. It has no set of its own: members that read thousands
    of topics may be hundreds, each with other topics."""

    __slots__ = ("_ids", "_matches", "_named", "_names")

    def __init__(
        self, ids: Mapping[str, TopicId], names: Mapping[TopicId, str], named: frozenset[str], matches: frozenset[str]
    ) -> None:
        self._ids = ids
        self._names = names
        self._named = named
        self._matches = matches

    def __contains__(self, topic: object) -> bool:
        name = self._names.get(topic)  # type: ignore[call-overload]
        return name is not None and (name in self._named or name in self._matches)

    def __iter__(self) -> Iterator[TopicId]:
        ids, named = self._ids, self._named
        yield from (ids[name] for name in named if name in ids)
        yield from (ids[name] for name in self._matches if name in ids and name not in named)
