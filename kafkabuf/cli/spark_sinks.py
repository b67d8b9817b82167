"""How `kafkabuf spark` asks the cluster: for markers, for open transactions, and for the readers that have to wait."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from kafkabuf.cli.spark_state import PREFIX, HeldBack, Marker, OpenTransaction, Partition, Sink, SinkName, Status
from kafkabuf.errors import (
    ClusterAuthorizationError,
    KafkaError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
    TransactionalIdNotFoundError,
)
from kafkabuf.metadata.admin import ActiveProducer, TransactionDescription
from kafkabuf.metadata.admin_transactions import TransactionAdmin
from kafkabuf.metadata.groups import OffsetAndMetadata, TopicPartition

_OPEN = {"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}
_OFFSETS_TOPIC = "__consumer_offsets"
_MINUTE_MS = 60_000


def read_status(admin: TransactionAdmin, sink_id: str | None, topics: Collection[str]) -> Status:
    """The state of one sink or of all, and of the partitions of its topics and of `topics`."""
    status = Status()
    names = _names(admin, sink_id)
    groups = groups_of(admin, sink_id)
    retention_ms = _retention_ms(admin, status) if groups else None
    for each in sorted({_sink_of(name) for name in (*names, *groups)}):
        described = {
            name: found for name in names if _sink_of(name) == each and (found := _describe(admin, name)) is not None
        }
        markers = [marker for group in groups if _sink_of(group) == each for marker in _markers(admin, group)]
        status.sinks.append(Sink(each, _dated(markers, described, retention_ms), tuple(_open_ones(described))))
    asked = {*topics, *(marker.topic for sink in status.sinks for marker in sink.markers)}
    asked |= {place.topic for sink in status.sinks for opened in sink.transactions for place in opened.partitions}
    for topic in sorted(asked - {_OFFSETS_TOPIC}):
        status.held_back += _held_back(admin, topic, status)
    return status


def groups_of(admin: TransactionAdmin, sink_id: str | None) -> list[str]:
    """The groups that keep the markers of one sink or of all."""
    return [name for name in admin.groups(PREFIX) if _belongs(name, sink_id)]


def open_transactions(admin: TransactionAdmin, sink_id: str) -> list[OpenTransaction]:
    """The transactions of a sink that have not ended."""
    found = ((name, _describe(admin, name)) for name in _names(admin, sink_id))
    return list(_open_ones({name: described for name, described in found if described is not None}))


def known_sinks(admin: TransactionAdmin) -> list[str]:
    """Every sink of which the cluster has a marker or a transactional id."""
    return sorted({_sink_of(name) for name in (*groups_of(admin, None), *_names(admin, None))})


def _names(admin: TransactionAdmin, sink_id: str | None) -> list[str]:
    listed = [found.transactional_id for found in admin.transactions(PREFIX)]
    return [name for name in listed if _belongs(name, sink_id)]


def _belongs(name: str, sink_id: str | None) -> bool:
    parsed = SinkName.parse(name)
    return parsed is not None and sink_id in (None, parsed.sink_id)


def _sink_of(name: str) -> str:
    parsed = SinkName.parse(name)
    assert parsed is not None  # `_belongs` has seen the name
    return parsed.sink_id


# ---- markers ---------------------------------------------------------------------------------------------------------


def _markers(admin: TransactionAdmin, group: str) -> Iterator[Marker]:
    name = SinkName.parse(group)
    assert name is not None
    for (topic, _), offset in admin.offsets_of(group).items():
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


def _describe(admin: TransactionAdmin, name: str) -> TransactionDescription | None:
    """None where the transactional id has expired, or this user may not see it."""
    try:
        return admin.transaction(name)
    except (TransactionalIdNotFoundError, TransactionalIdAuthorizationError):
        return None


def _open_ones(described: dict[str, TransactionDescription]) -> Iterator[OpenTransaction]:
    return (_open_transaction(name, found) for name, found in described.items() if found.state in _OPEN)


def _open_transaction(name: str, found: TransactionDescription) -> OpenTransaction:
    started = found.started_ms if found.started_ms >= 0 else None
    return OpenTransaction(
        name,
        found.state,
        found.producer_id,
        found.producer_epoch,
        started,
        None if started is None else started + found.timeout_ms,
        None,
        tuple(Partition(*place) for place in sorted(found.partitions)),
    )


def _held_back(admin: TransactionAdmin, topic: str, status: Status) -> list[HeldBack]:
    """The partitions of a topic whose last stable offset is behind the high watermark."""
    known = admin.partitions_by_topic([topic])[topic]
    if isinstance(known, KafkaError):
        status.warnings.append(f"topic {topic!r} cannot be asked: {known}")
        return []
    places = [(topic, number) for number in range(known)]
    try:
        stable = admin.end_offsets(places, committed=True)
        ends = admin.end_offsets(places, committed=False)
        behind = [place for place in places if stable[place] < ends[place]]
    except TopicAuthorizationError as error:
        status.warnings.append(f"topic {topic!r} cannot be asked, which needs Describe on it: {error}")
        return []
    behind = [place for place in places if stable[place] < ends[place]]
    try:
        holders = {place: _holders(admin, place) for place in behind}
    except TopicAuthorizationError as error:
        status.warnings.append(f"who holds back topic {topic!r} is unknown, to ask needs Read on it: {error}")
        holders = {}
    return [HeldBack(*place, stable[place], ends[place], holders.get(place, ())) for place in behind]


def _holders(admin: TransactionAdmin, place: TopicPartition) -> tuple[OpenTransaction, ...]:
    """The open transactions in a partition, the oldest first: its first offset is the last stable offset."""
    active = sorted(
        (found for found in admin.active_producers([place])[place] if found.transaction_start >= 0),
        key=lambda found: found.transaction_start,
    )
    names: dict[int, str] = {}
    if active:
        listed = admin.transactions(producer_ids=[found.producer_id for found in active])
        names = {found.producer_id: found.transactional_id for found in listed}
    return tuple(_holder(admin, found, names.get(found.producer_id)) for found in active)


def _holder(admin: TransactionAdmin, active: ActiveProducer, name: str | None) -> OpenTransaction:
    newest = active.last_timestamp if active.last_timestamp >= 0 else None
    described = None if name is None else _describe(admin, name)
    if name is None or described is None:
        return OpenTransaction(name, None, active.producer_id, active.producer_epoch, last_timestamp_ms=newest)
    return replace(_open_transaction(name, described), last_timestamp_ms=newest)
