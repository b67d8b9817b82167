"""How `kafkabuf spark` asks the cluster: for markers, for open transactions, and for the readers that have to wait."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from kafkabuf.admin.admin import ActiveProducer, TransactionDescription
from kafkabuf.admin.transactions import TransactionAdmin
from kafkabuf.cli.spark.state import PREFIX, HeldBack, Marker, OpenTransaction, Partition, Sink, SinkName, Status
from kafkabuf.errors import (
    ClusterAuthorizationError,
    GroupAuthorizationError,
    KafkaError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
    TransactionalIdNotFoundError,
)
from kafkabuf.transactions.groups import OffsetAndMetadata, TopicPartition

_OPEN = {"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}
_OFFSETS_TOPIC = "__consumer_offsets"
_MINUTE_MS = 60_000


def read_status(admin: TransactionAdmin, sink_id: str | None, topics: Collection[str]) -> Status:
    """The state of one sink or of all, and of the partitions of its topics and of `topics`."""
    status = Status()
    groups = groups_of(admin, sink_id)
    names = _names(admin, sink_id, groups)
    _check_rights(admin, sink_id, status)
    retention_ms = _retention_ms(admin, status) if groups else None
    described = {name: transaction for name in names if (transaction := _describe(admin, name, status)) is not None}
    for each in sorted({_sink_of(name) for name in (*described, *groups)}):
        own = {name: transaction for name, transaction in described.items() if _sink_of(name) == each}
        markers = [marker for group in groups if _sink_of(group) == each for marker in _markers(admin, group, status)]
        status.sinks.append(Sink(each, _dated(markers, own, retention_ms), tuple(_open_ones(own))))
    asked = {*topics, *(marker.topic for sink in status.sinks for marker in sink.markers)}
    asked |= {place.topic for sink in status.sinks for opened in sink.transactions for place in opened.partitions}
    status.topics = sorted(asked - {_OFFSETS_TOPIC})
    for topic in status.topics:
        status.held_back += _held_back(admin, topic, status)
    return status


def groups_of(admin: TransactionAdmin, sink_id: str | None) -> list[str]:
    """The groups that keep the markers of one sink or of all, as far as this user may see them."""
    return [name for name in admin.groups(PREFIX) if _belongs(name, sink_id)]


def check_groups(admin: TransactionAdmin, sink_id: str) -> None:
    """Raises GroupAuthorizationError where `groups_of` would leave out groups of the sink."""
    admin.offsets_of(f"{PREFIX}{sink_id}")


def open_transactions(admin: TransactionAdmin, sink_id: str) -> tuple[list[OpenTransaction], list[KafkaError]]:
    """The transactions of a sink that have not ended, and the errors of the transactional ids that cannot be asked for.

    Brokers list only what this user may see, so the names come from the markers too, and the sink's own name is always
    asked for.
    """
    names = {f"{PREFIX}{sink_id}", *_names(admin, sink_id, groups_of(admin, sink_id))}
    opened, errors = [], []
    for name in sorted(names):
        try:
            transaction = open_transaction(admin, name)
        except KafkaError as error:
            errors.append(error)
            continue
        if transaction is not None and transaction.state in _OPEN:
            opened.append(transaction)
    return opened, errors


def open_transaction(admin: TransactionAdmin, name: str) -> OpenTransaction | None:
    """The newest transaction of a transactional id, which may have ended; None where the id has expired.

    Raises KafkaError, which names the transactional id.
    """
    try:
        return _open_transaction(name, admin.transaction(name))
    except TransactionalIdNotFoundError:
        return None
    except TransactionalIdAuthorizationError as error:
        raise KafkaError(
            f"whether {name} has an open transaction is unknown, to ask needs Describe on the transactional id"
        ) from error
    except KafkaError as error:
        raise KafkaError(f"whether {name} has an open transaction is unknown: {error}") from error


def known_sinks(admin: TransactionAdmin) -> list[str]:
    """Every sink whose marker or transactional id the cluster has."""
    return sorted({_sink_of(name) for name in _names(admin, None, groups_of(admin, None))})


def _names(admin: TransactionAdmin, sink_id: str | None, groups: Collection[str]) -> list[str]:
    """The transactional ids that brokers list to this user, and those of the markers."""
    listed = {transaction.transactional_id for transaction in admin.transactions(PREFIX)}
    parsed = (SinkName.parse(group) for group in groups)
    names = listed | {name.transactional_id for name in parsed if name is not None}
    return sorted(name for name in names if _belongs(name, sink_id))


def _check_rights(admin: TransactionAdmin, sink_id: str | None, status: Status) -> None:
    """Warn where brokers leave out what this user may not see: a request by name says so, a list does not."""
    name = f"{PREFIX}{sink_id or ''}"
    _describe(admin, name, status)
    try:
        admin.offsets_of(name)
    except GroupAuthorizationError:
        status.miss("markers", f"markers may be missing, to see them needs Describe on the groups {name}*")


def _belongs(name: str, sink_id: str | None) -> bool:
    parsed = SinkName.parse(name)
    return parsed is not None and sink_id in (None, parsed.sink_id)


def _sink_of(name: str) -> str:
    parsed = SinkName.parse(name)
    assert parsed is not None  # `_belongs` has seen the name
    return parsed.sink_id


# ---- markers ---------------------------------------------------------------------------------------------------------


def _markers(admin: TransactionAdmin, group: str, status: Status) -> Iterator[Marker]:
    name = SinkName.parse(group)
    assert name is not None
    try:
        offsets = admin.offsets_of(group)
    except GroupAuthorizationError:
        status.miss("markers", f"the marker of {group} is unknown, to ask needs Describe on this group")
        return
    if not offsets:
        # Brokers leave out topics that this user may not see. The group of a first open transaction has no offset yet.
        status.miss(
            "markers",
            f"group {group} shows this user no marker: either none is committed, or Describe on its topic is missing",
        )
    for (topic, _), offset in offsets.items():
        known = _metadata(offset)
        is_stream = name.write_id is None and known.get("query") is not None
        yield Marker(
            group,
            name.partition,
            name.write_id,
            topic,
            offset.offset - 1 if is_stream else None,
            known.get("query"),
            known.get("run"),
            known.get("rows"),
            known.get("checksum"),
        )


def _metadata(offset: OffsetAndMetadata) -> dict[str, Any]:
    """What the marker says; nothing where another program committed the offset."""
    try:
        known = json.loads(offset.metadata)
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def _retention_ms(admin: TransactionAdmin, status: Status) -> int | None:
    try:
        minutes = admin.broker_setting("offsets.retention.minutes")
    except ClusterAuthorizationError:
        status.warnings.append(
            "when markers expire is unknown: to ask for offsets.retention.minutes needs DescribeConfigs on the cluster"
        )
        return None
    return None if minutes is None else int(minutes) * _MINUTE_MS


def _dated(
    markers: list[Marker], described: dict[str, TransactionDescription], retention_ms: int | None
) -> tuple[Marker, ...]:
    """The markers in order, with their times where the coordinator still knows the transaction that wrote them."""
    # Writes and the stream of a sink share a transactional id: nobody knows which marker its newest transaction wrote.
    ambiguous = any(marker.write_id is not None for marker in markers)
    dated = []
    for marker in markers:
        newest = described.get(marker.group)
        if newest is not None and newest.state == "CompleteCommit" and not ambiguous:
            expires_ms = None if retention_ms is None else newest.started_ms + retention_ms
            marker = replace(marker, written_ms=newest.started_ms, expires_ms=expires_ms)
        dated.append(marker)
    return tuple(sorted(dated, key=lambda marker: (marker.partition or 0, marker.group)))


# ---- transactions ----------------------------------------------------------------------------------------------------


def _describe(admin: TransactionAdmin, name: str, status: Status) -> TransactionDescription | None:
    """None where the transactional id has expired, or this user may not see it. The status then has a warning."""
    try:
        return admin.transaction(name)
    except TransactionalIdNotFoundError:
        return None
    except TransactionalIdAuthorizationError:
        status.miss(
            "transactions",
            f"open transactions of {name} may be missing, to see them needs Describe on the transactional ids "
            f"{PREFIX}* (as a prefix)",
        )
        return None


def _open_ones(described: dict[str, TransactionDescription]) -> Iterator[OpenTransaction]:
    return (_open_transaction(name, known) for name, known in described.items() if known.state in _OPEN)


def _open_transaction(name: str, transaction: TransactionDescription) -> OpenTransaction:
    started = transaction.started_ms if transaction.started_ms >= 0 else None
    return OpenTransaction(
        name,
        transaction.state,
        transaction.producer_id,
        transaction.producer_epoch,
        started,
        started + transaction.timeout_ms if started is not None and transaction.state == "Ongoing" else None,
        None,
        tuple(Partition(*place) for place in sorted(transaction.partitions)),
    )


def _held_back(admin: TransactionAdmin, topic: str, status: Status) -> list[HeldBack]:
    """The partitions of a topic whose last stable offset is behind the high watermark."""
    known = admin.partitions_by_topic([topic])[topic]
    if isinstance(known, KafkaError):
        status.miss("held_back", f"topic {topic!r} cannot be asked: {known}")
        return []
    places = [(topic, number) for number in range(known)]
    try:
        stable = admin.end_offsets(places, committed=True)
        ends = admin.end_offsets(places, committed=False)
    except TopicAuthorizationError as error:
        status.miss("held_back", f"topic {topic!r} cannot be asked, which needs Describe on it: {error}")
        return []
    behind = [place for place in places if stable[place] < ends[place]]
    try:
        holders = {place: _holders(admin, place, status) for place in behind}
    except TopicAuthorizationError as error:
        status.warnings.append(f"who holds back topic {topic!r} is unknown, to ask needs Read on it: {error}")
        holders = {}
    return [HeldBack(*place, stable[place], ends[place], holders.get(place, ())) for place in behind]


def _holders(admin: TransactionAdmin, place: TopicPartition, status: Status) -> tuple[OpenTransaction, ...]:
    """The open transactions in a partition, the oldest first: its first offset is the last stable offset."""
    active = sorted(
        (producer for producer in admin.active_producers([place])[place] if producer.transaction_start >= 0),
        key=lambda producer: producer.transaction_start,
    )
    names: dict[int, str] = {}
    if active:
        listed = admin.transactions(producer_ids=[producer.producer_id for producer in active])
        names = {transaction.producer_id: transaction.transactional_id for transaction in listed}
    if len(names) < len({producer.producer_id for producer in active}):
        status.miss(
            "transactions",
            f"a transaction that holds back topic {place[0]!r} has no name: no coordinator knows it, or this user "
            "lacks Describe on its transactional id",
        )
    return tuple(_holder(admin, producer, names.get(producer.producer_id), status) for producer in active)


def _holder(admin: TransactionAdmin, active: ActiveProducer, name: str | None, status: Status) -> OpenTransaction:
    newest = active.last_timestamp if active.last_timestamp >= 0 else None
    described = None if name is None else _describe(admin, name, status)
    if name is None or described is None:
        return OpenTransaction(name, None, active.producer_id, active.producer_epoch, last_timestamp_ms=newest)
    return replace(_open_transaction(name, described), last_timestamp_ms=newest)
