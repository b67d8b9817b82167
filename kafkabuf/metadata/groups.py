"""Consumer groups, their offsets and whom to ask for them: as users give them, and as requests speak of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

TopicPartition = tuple[str, int]


class Coordinator(Enum):
    """The broker to ask; the values are FindCoordinator's key types."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True)
class OffsetAndMetadata:
    """The offset of the next record that a group is to read. `leader_epoch` is -1 where unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True)
class GroupMetadata:
    """The consumer that read what a transaction is made from (KIP-447): its group alone fences nobody."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


Offsets = Mapping[Any, Any]
_GROUP = ("group_id", "generation_id", "member_id", "group_instance_id")


def offsets_of(given: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """What send_offsets_to_transaction() takes, in one shape. Raises TypeError, ValueError."""
    if not isinstance(given, Mapping):
        raise TypeError(f"offsets are a mapping from (topic, partition) to offsets, found {type(given).__name__}")
    return {_where(key): _offset(value) for key, value in given.items()}


def _where(key: Any) -> TopicPartition:
    plain = isinstance(key, tuple) and len(key) == 2
    topic, partition = key if plain else (getattr(key, "topic", None), getattr(key, "partition", None))
    if not isinstance(topic, str) or not isinstance(partition, int) or not 0 <= partition < 1 << 31:
        raise TypeError(f"offsets are given by (topic, partition), found {key!r}")
    _check_text(topic)
    return topic, partition


def _offset(value: Any) -> OffsetAndMetadata:
    if isinstance(value, int) and not isinstance(value, bool):
        value = OffsetAndMetadata(value)
    offset = getattr(value, "offset", None)
    if not isinstance(offset, int) or not 0 <= offset < 1 << 63:
        raise ValueError(f"an offset is a whole number from 0 on, or an object with one as `offset`; found {value!r}")
    metadata, leader_epoch = getattr(value, "metadata", "") or "", getattr(value, "leader_epoch", None)
    leader_epoch = -1 if leader_epoch is None else leader_epoch
    if not isinstance(metadata, str) or not isinstance(leader_epoch, int) or not -1 <= leader_epoch < 1 << 31:
        raise TypeError(f"an offset's metadata is text, its leader_epoch a whole number; found {value!r}")
    _check_text(metadata)
    return OffsetAndMetadata(offset, metadata, leader_epoch)


def _check_text(text: str) -> None:
    """Raises ValueError where it has no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} has no UTF-8 form, in which Kafka has its names: {error}") from None


def group_of(given: Any) -> GroupMetadata:
    """A GroupMetadata out of what send_offsets_to_transaction() takes. Raises TypeError."""
    found: tuple[Any, ...] = ()
    if isinstance(given, str):
        found = (given,)
    elif all(hasattr(given, name) for name in _GROUP):
        found = tuple(getattr(given, name) for name in _GROUP)
    elif isinstance(given, tuple):
        found = given
    defaults = (None, -1, "", None)
    group, generation, member, instance = [*found, *defaults[len(found) :]][:4]
    right = isinstance(generation, int) and isinstance(member, str) and isinstance(instance, str | None)
    if len(found) > len(defaults) or not isinstance(group, str) or not group or not right:
        raise TypeError(
            "group_metadata is a group id, a tuple (group_id, generation_id, member_id, group_instance_id) of which "
            "the last may be left out, or an object with these attributes, as GroupMetadata and what kafka-python's "
            f"consumer.group_metadata() returns; found {_described(given)}"
        )
    if not -1 <= generation < 1 << 31:
        raise ValueError(f"a generation_id is a whole number from -1 to 2^31 - 1, found {generation}")
    for text in (group, member, instance or ""):
        _check_text(text)
    return GroupMetadata(group, generation, member, instance)


def _described(given: Any) -> str:
    if isinstance(given, bytes):  # librdkafka's own format, which nobody else is meant to read
        return "bytes, as of confluent-kafka's consumer_group_metadata(): pass the consumer's group id"
    return repr(given)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic."""
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found
