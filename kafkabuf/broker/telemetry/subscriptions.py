"""Which metrics the operator wants of a client: Kafka's ClientMetricsManager.createClientInstance.

The subscriptions that match a client add up: the client pushes all their metrics, at their shortest interval. A
subscription matches if each of its patterns matches the whole of what the node knows of the client. Without patterns it
matches every client.

Deviation: the patterns have RE2's syntax, in Kafka Java's. A subscription whose patterns have more than 2,000
characters, cannot be read, or take long to match, matches no client.
"""

from __future__ import annotations

import base64
import logging
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from kafkabuf.broker.configs.kinds import LIST, parse
from kafkabuf.broker.configs.resources import MetricsConfigs
from kafkabuf.broker.guards.expressions import Pattern
from kafkabuf.broker.telemetry.peer import Peer
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRegularExpressionError

log = logging.getLogger("kafkabuf.broker")

ALL_METRICS = "*"
DEFAULT_INTERVAL_MS = 300_000
_LONGEST_PATTERNS = 2_000
# Metrics in a step of the work.
_METRICS = 1_000
_INT32 = 1 << 32


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client should push. `version`: of the subscriptions from which this was made."""

    version: int
    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]


def what_a_client_is(instance_id: UUID, client_id: str | None, peer: Peer) -> dict[str, str]:
    """The values that the patterns of a subscription may name. The id is in the form of Kafka's Uuid."""
    return {
        "client_instance_id": base64.urlsafe_b64encode(instance_id.bytes).decode().rstrip("="),
        "client_id": client_id or "",
        "client_software_name": peer.software_name,
        "client_software_version": peer.software_version,
        "client_source_address": peer.address,
        "client_source_port": str(peer.port) if peer.port >= 0 else "",
    }


def wanted_of(subscriptions: MetricsConfigs, client: Mapping[str, str], instance_id: UUID) -> Work[Wanted]:
    """What the operator wants of a client. The same on every node."""
    version, interval_ms = subscriptions.version, DEFAULT_INTERVAL_MS
    metrics: dict[str, None] = {}
    mark = 0  # the same in every order of the metrics
    for name in subscriptions.names:
        yield
        configs = subscriptions.of(name)
        if not configs or not (yield from _matches(configs.get("match", ""), client)):
            continue
        interval_ms = min(interval_ms, int(configs.get("interval.ms", DEFAULT_INTERVAL_MS)))
        for number, metric in enumerate(_words(configs.get("metrics", ""))):
            if metric not in metrics:
                metrics[metric] = None
                mark += zlib.crc32(metric.encode())
            if number % _METRICS == 0:
                yield
    if ALL_METRICS in metrics:
        metrics, mark = {ALL_METRICS: None}, 1
    mark = zlib.crc32(b"%d,%d" % (mark, interval_ms)) ^ zlib.crc32(instance_id.bytes)
    return Wanted(version, mark if mark < _INT32 // 2 else mark - _INT32, interval_ms, tuple(metrics))


def _words(text: str) -> Iterable[str]:
    words: list[str] = parse("", LIST, text)
    return words


def _matches(match: str, client: Mapping[str, str]) -> Work[bool]:
    if len(match) > _LONGEST_PATTERNS:
        return False
    # If two patterns are for the same thing, the last holds, as in Kafka.
    patterns = {key.strip(): text.strip() for key, _, text in (word.partition("=") for word in _words(match))}
    for key, expression in patterns.items():
        yield
        value = client[key]
        try:
            matches = yield from Pattern(expression).matching_in_steps([value])
        except InvalidRegularExpressionError as error:
            log.warning("client metrics: a subscription matches no client: %s", error)
            return False
        if not matches:
            return False
    return True
