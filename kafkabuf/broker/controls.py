"""Parts of `EmbeddedCluster`'s face: faults on purpose, and the requests of clients. Any thread may call these."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from kafkabuf.broker.apis.dispatch import APIS
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.guards.request_log import LoggedRequest, Match
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.errors import ConfigError

T = TypeVar("T")


class Caller:
    """Runs functions in the cluster's thread. ClosedError while the cluster is not running."""

    def _call(self, function: Callable[[Cluster], T]) -> T:
        raise NotImplementedError

    def _ask(self, topic: str, partition: int, function: Callable[[Partition], T]) -> T:
        """What `function` says of a partition."""
        return self._call(lambda c: function(c.catalogue.topic(topic).partition(partition)))

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def _running(self) -> Cluster:
        raise NotImplementedError


class FaultControls(Caller):
    def fail_next(
        self, api_key: int, error_code: int, times: int = 1, topic: str | None = None, *, after: bool = False
    ) -> None:
        """The next `times` requests of an API are answered with an error, and nothing else happens.

        With `topic` only requests that name it count and only its partitions fail (Produce, Fetch, Metadata,
        ListOffsets). With `after` the request is carried out before it is answered so: for Produce the records are in
        the log (Produce, and all APIs that do not name topics, those of transactions among them).
        """
        if after and not (api_key in APIS and APIS[api_key].fails_after):
            raise ConfigError(f"requests of API key {api_key} cannot fail after they were carried out")
        self._call(lambda c: c.faults.fail(api_key, error_code, times, topic, after))

    def delay_next(self, api_key: int, seconds: float, times: int = 1) -> None:
        """The next `times` answers of an API are held back; what was asked for has happened by then."""
        self._call(lambda c: c.faults.delay(api_key, seconds, times))

    def drop_next(self, api_key: int, times: int = 1) -> None:
        """The next `times` requests of an API are carried out, but instead of an answer the connection is closed."""
        self._call(lambda c: c.faults.drop(api_key, times))

    def set_latency(self, seconds: float, api_key: int | None = None, node_id: int | None = None) -> None:
        """Holds back every answer of an API, of a node, or of both together (None: of all), until it is set to 0.

        Latencies that concern a request add up, and so does `delay_next`. What was asked for has happened by then.
        """
        if seconds < 0:
            raise ConfigError(f"a latency of {seconds} s: 0 and above are allowed")
        self._call(lambda c: c.faults.set_latency(seconds, api_key, node_id))

    def throttle_next(self, api_key: int, throttle_ms: int, times: int = 1) -> None:
        """The next `times` answers of an API tell the client to wait, and its connection is not served meanwhile
        (KIP-219)."""
        self._call(lambda c: c.faults.throttle(api_key, throttle_ms, times))

    def set_producer_quota(self, client_id: str | None, bytes_per_second: float | None) -> None:
        """Kafka's quota producer_byte_rate: for a client.id, or with None for every client.id without a quota of its
        own; a rate of None removes the quota. A faster client is throttled. `clear_faults` leaves quotas as they
        are."""
        if bytes_per_second is not None and bytes_per_second <= 0:
            raise ConfigError(f"a quota of {bytes_per_second} bytes/s: more than 0 is needed, None for no quota")
        self._call(lambda c: c.quotas.set_producer_rate(client_id, bytes_per_second))

    def cut_connections(self, node_id: int | None = None) -> int:
        """Cuts all connections, or those to one node, as a network does; the nodes go on. Returns how many."""
        return self._call(lambda c: c.cut_connections(node_id))

    def cut_after(self, nbytes: int, node_id: int | None = None, *, sent: bool = False) -> None:
        """Cuts the connection over which the byte after the next `nbytes` to a node (None: to any) would pass; with
        `sent` of those from it. So requests and answers end in the middle. Cuts asked for so come one after another."""
        if nbytes < 0:
            raise ConfigError(f"a cut after {nbytes} bytes: 0 and above are allowed")
        self._call(lambda c: c.faults.cut_after(nbytes, node_id, sent))

    def hold_markers(self) -> None:
        """From now on transactions do not come to their end: their producers get CONCURRENT_TRANSACTIONS."""
        self._call(lambda c: c.transactions.hold())

    def release_markers(self) -> None:
        """Ends the transactions that were held. Later transactions end at once."""
        self._call(lambda c: c.transactions.release())

    def clear_faults(self) -> None:
        """Removes every fault but quotas and held markers."""
        self._call(lambda c: c.faults.clear())


@dataclass(frozen=True, slots=True)
class Stats:
    """Counted since the start, over all nodes; `parked` requests wait for something to happen."""

    nodes: int
    nodes_up: int
    connections: int
    parked: int
    requests: int
    bytes_in: int
    bytes_out: int


class TrafficControls(Caller):
    def requests(
        self, api_key: int | None = None, *, node_id: int | None = None, topic: str | None = None
    ) -> list[LoggedRequest]:
        """The requests in the log, oldest first. Each argument leaves only the requests of an API, to a node, or with
        a topic."""
        return self._call(lambda c: c.request_log.find(_match(api_key, node_id, topic)))

    def clear_requests(self) -> None:
        """Forgets the requests so far."""
        self._call(lambda c: c.request_log.clear())

    def wait_for_request(
        self,
        api_key: int | None = None,
        *,
        node_id: int | None = None,
        topic: str | None = None,
        where: Match | None = None,
        count: int = 1,
        timeout: float = 10.0,
    ) -> LoggedRequest:
        """Waits for the `count`th such request, counting those before the call, and returns it. The request may not
        have been answered yet. `where` may filter further; the cluster's thread calls it. TimeoutError after `timeout`
        seconds of real time, whatever the cluster's clock is."""
        match = _match(api_key, node_id, topic)

        async def wait() -> LoggedRequest:
            log = self._running().request_log
            return await log.wait_for(lambda one: match(one) and (where is None or where(one)), count, timeout)

        return self._await(wait())

    def stats(self) -> Stats:
        return self._call(_stats)


def _match(api_key: int | None, node_id: int | None, topic: str | None) -> Match:
    def match(one: LoggedRequest) -> bool:
        return api_key in (None, one.api_key) and node_id in (None, one.node_id) and (not topic or topic in one.topics)

    return match


def _stats(cluster: Cluster) -> Stats:
    nodes = cluster.nodes.values()
    return Stats(
        len(nodes),
        len(cluster.placement.alive()),
        sum(len(node.connections) for node in nodes),
        sum(connection.parked for node in nodes for connection in node.connections),
        sum(node.traffic.requests for node in nodes),
        sum(node.traffic.bytes_in for node in nodes),
        sum(node.traffic.bytes_out for node in nodes),
    )
