"""Consumer groups, their offsets and their coordinators: what users give to calls, and what requests contain."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

TopicPartition = tuple[str, int]


class Coordinator(Enum):
    """The kind of coordinator to ask. The values are FindCoordinator's key types."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True)
class OffsetAndMetadata:
    """The offset of the next record that a group reads. `leader_epoch` is -1 if it is unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True)
class GroupMetadata:
    """The consumer that read the input of a transaction (KIP-447). A group id alone fences no other consumer."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


Offsets = Mapping[Any, Any]
_GROUP = ("group_id", "generation_id", "member_id", "group_instance_id")
# librdkafka's form of a consumer's group metadata: this, the generation, the group id, the member id, whether there is
# no instance id, the instance id. Each text ends with a zero byte; the number has the machine's byte order.
_LIBRDKAFKAS_FORM = b"CGMDv2:"


def offsets_of(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets given to send_offsets_to_transaction(), in one form. Raises TypeError, ValueError."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets are a mapping from (topic, partition) to offsets, found {type(offsets).__name__}")
    return {_topic_partition(key): _offset(value) for key, value in offsets.items()}


def _topic_partition(key: Any) -> TopicPartition:
    is_pair = isinstance(key, tuple) and len(key) == 2
    topic, partition = key if is_pair else (getattr(key, "topic", None), getattr(key, "partition", None))
    if not isinstance(topic, str) or not isinstance(partition, int) or not 0 <= partition < 1 << 31:
        raise TypeError(f"offsets are given by (topic, partition), found {key!r}")
    _check_text(topic)
    return topic, partition


def _offset(value: Any) -> OffsetAndMetadata:
    if isinstance(value, int) and not isinstance(value, bool):
        value = OffsetAndMetadata(value)
    offset = getattr(value, "offset", None)
    if not isinstance(offset, int) or not 0 <= offset < 1 << 63:
        raise ValueError(f"an offset is an int of at least 0, or an object with such an `offset`; found {value!r}")
    metadata, leader_epoch = getattr(value, "metadata", "") or "", getattr(value, "leader_epoch", None)
    leader_epoch = -1 if leader_epoch is None else leader_epoch
    if not isinstance(metadata, str) or not isinstance(leader_epoch, int) or not -1 <= leader_epoch < 1 << 31:
        raise TypeError(f"an offset's metadata is a str, and its leader_epoch is an int; found {value!r}")
    _check_text(metadata)
    return OffsetAndMetadata(offset, metadata, leader_epoch)


def _check_text(text: str) -> None:
    """Raises ValueError if the text cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} cannot be encoded as UTF-8, the encoding of Kafka's names: {error}") from None


def group_of(group_metadata: Any) -> GroupMetadata:
    """The group given to send_offsets_to_transaction(), as a GroupMetadata. Raises TypeError, ValueError."""
    fields: tuple[Any, ...] = ()
    if isinstance(group_metadata, str):
        fields = (group_metadata,)
    elif isinstance(group_metadata, bytes):
        fields = _fields_in(group_metadata)
    elif all(hasattr(group_metadata, name) for name in _GROUP):
        fields = tuple(getattr(group_metadata, name) for name in _GROUP)
    elif isinstance(group_metadata, tuple):
        fields = group_metadata
    defaults = (None, -1, "", None)
    group, generation, member, instance = [*fields, *defaults[len(fields) :]][:4]
    valid = isinstance(generation, int) and isinstance(member, str) and isinstance(instance, str | None)
    if len(fields) > len(defaults) or not isinstance(group, str) or not group or not valid:
        raise TypeError(
            "group_metadata is a group id, a tuple (group_id, generation_id, member_id, group_instance_id) of which "
            "the last items may be left out, an object with these attributes, such as GroupMetadata or the result of "
            "kafka-python's consumer.group_metadata(), or the result of confluent-kafka's "
            f"consumer_group_metadata(); found {group_metadata!r}"
        )
    if not -1 <= generation < 1 << 31:
        raise ValueError(f"a generation_id is an int from -1 to 2^31 - 1, found {generation}")
    for text in (group, member, instance or ""):
        _check_text(text)
    return GroupMetadata(group, generation, member, instance)


def _fields_in(written: bytes) -> tuple[str, int, str, str | None]:
    """What confluent-kafka's consumer_group_metadata() has written. Raises ValueError."""
    form, rest = written[: len(_LIBRDKAFKAS_FORM)], written[len(_LIBRDKAFKAS_FORM) :]
    try:
        (generation,) = struct.unpack_from("=i", rest)
        group, member, instance = (text.decode() for text in rest[4:].split(b"\0", 2))
        has_instance = len(instance) > 1 and instance[0] == instance[-1] == "\0"
        if form != _LIBRDKAFKAS_FORM or not (has_instance or instance == "\1"):
            raise ValueError("it is cut, or not of librdkafka")
    except (struct.error, ValueError) as error:  # a UnicodeDecodeError is a ValueError
        form_of = "confluent-kafka's consumer_group_metadata(), as kafkabuf knows it"
        raise ValueError(f"group metadata in bytes must have the form of {form_of}; found {written!r}") from error
    return group, generation, member, (instance[1:-1] or None) if has_instance else None


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic."""
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    return numbers
