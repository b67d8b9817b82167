"""The JSON text for `stats_cb`: those fields of librdkafka's statistics that kafkabuf counts."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafkabuf.compat.confluent.opened import Opened
from kafkabuf.compat.confluent.settings import NO_SERVERS
from kafkabuf.network.connection_state import NodeConnection, State
from kafkabuf.process._time import time_ms

if TYPE_CHECKING:
    from kafkabuf.metrics.snapshot import Snapshot
    from kafkabuf.network._metrics import Stat

_numbers = itertools.count(1)


class Statistics:
    """Calls `stats_cb` with the statistics of a producer every `interval` seconds. `due` is a time of the clock.

    `held` returns how many records without outcome and reports the producer holds, and how many of them are reports.
    """

    def __init__(
        self,
        producer: Opened,
        stats_cb: Callable[[str], object],
        interval: float,
        max_messages: int,
        held: Callable[[], tuple[int, int]],
    ) -> None:
        self._producer = producer
        self._held = held
        self._stats_cb = stats_cb
        self._interval = interval
        self._max_messages = max_messages
        self._name = f"{producer.config.client_id}#producer-{next(_numbers)}"
        self._opened_at = producer._clock.monotonic()
        self.due = self._opened_at + interval

    def serve(self) -> int:
        """Call the callback if it is due, and return how often."""
        now = self._producer._clock.monotonic()
        if now < self.due:
            return 0
        self.due = now + self._interval
        self._stats_cb(json.dumps(self._values(now, *self._held())))
        return 1

    def _values(self, now: float, records: int, reports: int) -> dict[str, Any]:
        producer = self._producer
        metrics = producer.metrics()
        counts = metrics["producer-metrics"]
        used = int(counts["buffer-total-bytes"] - counts["buffer-available-bytes"])
        topics = {name: group for group in metrics if (name := _after(group, "producer-topic-metrics."))}
        known = producer._metadata.snapshot.topics
        return {
            "name": self._name,
            "client_id": producer.config.client_id,
            "type": "producer",
            "pid": os.getpid(),
            "ts": int(now * 1e6),
            "time": time_ms() // 1000,
            "age": int((now - self._opened_at) * 1e6),
            "replyq": reports,
            "msg_cnt": records,
            "msg_size": used,
            "msg_max": self._max_messages,
            "msg_size_max": int(counts["buffer-total-bytes"]),
            "simple_cnt": 0,
            "metadata_cache_cnt": len(known),
            "tx": int(counts["request-total"]),
            "tx_bytes": int(counts["outgoing-byte-total"]),
            "rx": int(counts["response-total"]),
            "rx_bytes": int(counts["incoming-byte-total"]),
            "txmsgs": int(counts["record-send-total"]),
            "txmsg_bytes": sum(int(metrics[group]["byte-total"]) for group in topics.values()),
            **_NOTHING_RECEIVED,
            "brokers": dict(_of_broker(node, producer, metrics, now) for node in _nodes(producer)),
            "topics": {
                name: self._of_topic(name, metrics.get(topics.get(name, ""), {}), now)
                for name in sorted(topics.keys() | known.keys())
            },
            **_of_idempotence(producer),
        }

    def _of_topic(self, name: str, counts: dict[str, float], now: float) -> dict[str, Any]:
        producer = self._producer
        stats = producer._metrics._stats.topics.get(name)
        windows = (
            {}
            if stats is None
            else {
                "batchsize": _window(stats.bytes, now, 1),
                "batchcnt": _window(stats.records, now, 1),
            }
        )
        return {
            "topic": name,
            "metadata_age": int((now - max(producer._metadata.updated_at, self._opened_at)) * 1000),
            "txmsgs": int(counts.get("record-send-total", 0)),
            "txbytes": int(counts.get("byte-total", 0)),
            **windows,
            "partitions": _of_partitions(producer, name),
        }


# A producer reads no records. librdkafka's statistics of a producer have these names, too, with these values.
_NOTHING_RECEIVED = {"rxmsgs": 0, "rxmsg_bytes": 0}
_NO_CONSUMER = {
    "fetchq_cnt": 0,
    "fetchq_size": 0,
    "fetch_state": "none",
    **dict.fromkeys(("query_offset", "app_offset", "stored_offset", "commited_offset", "committed_offset"), -1001),
    **dict.fromkeys(("eof_offset", "lo_offset", "hi_offset", "ls_offset"), -1001),
    **dict.fromkeys(("stored_leader_epoch", "committed_leader_epoch", "consumer_lag", "consumer_lag_stored"), -1),
    **dict.fromkeys(("next_offset", "rxmsgs", "rxbytes", "rx_ver_drops"), 0),
}


def _nodes(producer: Opened) -> list[NodeConnection]:
    nodes = list(producer._sender._client.requests.nodes.values())
    return [node for node in nodes if f"{node.host}:{node.port}" != NO_SERVERS]


def _of_broker(node: NodeConnection, producer: Opened, metrics: Snapshot, now: float) -> tuple[str, dict[str, Any]]:
    address = f"{node.host}:{node.port}"
    name = f"{address}/{node.node_id if node.node_id >= 0 else 'bootstrap'}"
    counts = metrics.get(f"producer-node-metrics.node-{node.node_id}", {})
    stats = producer._metrics._stats.nodes.get(node.node_id)
    return name, {
        "name": name,
        "nodeid": node.node_id,
        "nodename": address,
        "source": "learned" if node.node_id >= 0 else "configured",
        "state": "UP" if node.state is State.READY else "DOWN",
        "waitresp_cnt": len(node.in_flight),
        "tx": int(counts.get("request-total", 0)),
        "txbytes": int(counts.get("outgoing-byte-total", 0)),
        "rx": int(counts.get("response-total", 0)),
        "rxbytes": int(counts.get("incoming-byte-total", 0)),
        **({} if stats is None else {"rtt": _window(stats.latency, now, 1000)}),
        "toppars": {
            f"{topic.name}-{partition.partition}": {"topic": topic.name, "partition": partition.partition}
            for topic in list(producer._metadata.snapshot.topics.values())
            for partition in topic.partitions
            if partition.leader == node.node_id >= 0
        },
    }


def _window(stat: Stat, now: float, unit: int) -> dict[str, int]:
    """The values of the last windows of `metrics()`, times `unit`. kafkabuf keeps neither the least value nor ranks."""
    count, total, largest, _ = stat.recent(now)
    return {
        "avg": int(total * unit / count) if count else 0,
        "sum": int(total * unit),
        "max": int(largest * unit) if count else 0,
        "cnt": count,
    }


def _of_partitions(producer: Opened, topic: str) -> dict[str, dict[str, Any]]:
    """The partitions of a topic, with the records of each that wait, and those that are in requests."""
    known = producer._metadata.snapshot.topics.get(topic)
    queues = producer.accumulator.topics.get(topic)
    waiting: Counter[int] = Counter()
    waiting_bytes: Counter[int] = Counter()
    in_flight: Counter[int] = Counter()
    queued = set() if queues is None else {batch for queue in queues.queues for batch in list(queue.batches)}
    for batch in producer.accumulator.incomplete_batches():
        if batch.topic == topic:
            (waiting if batch in queued else in_flight)[batch.partition] += batch.count
            waiting_bytes[batch.partition] += batch.size if batch in queued else 0
    return {
        str(partition.partition): {
            "partition": partition.partition,
            "broker": partition.leader,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "unknown": False,
            "msgq_cnt": waiting[partition.partition],
            "msgq_bytes": waiting_bytes[partition.partition],
            "msgs_inflight": in_flight[partition.partition],
            **_NO_CONSUMER,
        }
        for partition in (() if known is None else known.partitions)
    }


def _of_idempotence(producer: Opened) -> dict[str, dict[str, Any]]:
    numbers = producer._accumulator.producer_state
    if numbers is None:
        return {}
    assigned = numbers.producer_id >= 0
    return {
        "eos": {
            "idemp_state": "Assigned" if assigned else "Init",
            "producer_id": numbers.producer_id,
            "producer_epoch": numbers.producer_epoch,
        }
    }


def _after(group: str, prefix: str) -> str:
    return group.removeprefix(prefix) if group.startswith(prefix) else ""
