"""The JSON text for `stats_cb`: those fields of librdkafka's statistics that kafkabuf counts."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafkabuf.compat.confluent_opened import Opened
from kafkabuf.compat.confluent_settings import NO_SERVERS
from kafkabuf.network.connection_state import NodeConnection, State

if TYPE_CHECKING:
    from kafkabuf.metrics import Snapshot

_numbers = itertools.count(1)


class Statistics:
    """Calls `stats_cb` with the statistics of a producer every `interval` seconds. `due` is a time of the clock."""

    def __init__(self, producer: Opened, stats_cb: Callable[[str], object], interval: float, max_messages: int) -> None:
        self._producer = producer
        self._stats_cb = stats_cb
        self._interval = interval
        self._max_messages = max_messages
        self._name = f"{producer.config.client_id}#producer-{next(_numbers)}"
        self._opened_at = producer._clock.monotonic()
        self.due = self._opened_at + interval

    def serve(self, records: int, reports: int) -> int:
        """Call the callback if it is due, and return how often. `records`, `reports`: how many the producer holds."""
        now = self._producer._clock.monotonic()
        if now < self.due:
            return 0
        self.due = now + self._interval
        self._stats_cb(json.dumps(self._values(now, records, reports)))
        return 1

    def _values(self, now: float, records: int, reports: int) -> dict[str, Any]:
        producer = self._producer
        metrics = producer.metrics()
        counts = metrics["producer-metrics"]
        used = int(counts["buffer-total-bytes"] - counts["buffer-available-bytes"])
        topics = {name: group for group in metrics if (name := _after(group, "producer-topic-metrics."))}
        return {
            "name": self._name,
            "client_id": producer.config.client_id,
            "type": "producer",
            "pid": os.getpid(),
            "ts": int(now * 1e6),
            "time": int(time.time()),
            "age": int((now - self._opened_at) * 1e6),
            "replyq": reports,
            "msg_cnt": records,
            "msg_size": used,
            "msg_max": self._max_messages,
            "msg_size_max": int(counts["buffer-total-bytes"]),
            "tx": int(counts["request-total"]),
            "tx_bytes": int(counts["outgoing-byte-total"]),
            "rx": int(counts["response-total"]),
            "rx_bytes": int(counts["incoming-byte-total"]),
            "txmsgs": int(counts["record-send-total"]),
            "txmsg_bytes": sum(int(metrics[group]["byte-total"]) for group in topics.values()),
            "brokers": dict(_of_broker(node, metrics) for node in _nodes(producer)),
            "topics": {
                name: {"topic": name, "txmsgs": int(metrics[group]["record-send-total"])}
                for name, group in topics.items()
            },
        }


def _nodes(producer: Opened) -> list[NodeConnection]:
    nodes = list(producer._sender._client._nodes.values())
    return [node for node in nodes if f"{node.host}:{node.port}" != NO_SERVERS]


def _of_broker(node: NodeConnection, metrics: Snapshot) -> tuple[str, dict[str, Any]]:
    address = f"{node.host}:{node.port}"
    name = f"{address}/{node.node_id if node.node_id >= 0 else 'bootstrap'}"
    counts = metrics.get(f"producer-node-metrics.node-{node.node_id}", {})
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
    }


def _after(group: str, prefix: str) -> str:
    return group.removeprefix(prefix) if group.startswith(prefix) else ""
