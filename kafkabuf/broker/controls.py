"""Methods of `EmbeddedCluster` for faults on purpose and for the requests of clients. Any thread may call them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from kafkabuf.broker.apis.dispatch import APIS
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.configs.arguments import require_int, require_seconds, require_text, require_timeout
from kafkabuf.broker.guards.request_log import LoggedRequest, Match
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.errors import ConfigError

T = TypeVar("T")


class Caller:
    """Runs functions in the cluster's thread. Raises ClosedError while the cluster is not running."""

    def _call(self, function: Callable[[Cluster], T]) -> T:
        raise NotImplementedError

    def _ask(self, topic: str, partition: int, function: Callable[[Partition], T]) -> T:
        """Calls `function` with a partition, and returns its result. Raises ConfigError for another type."""
        require_text("topic", topic)
        require_int("partition", partition)
        return self._call(lambda c: function(c.catalogue.topic(topic).partition(partition)))

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def _running(self) -> Cluster:
        raise NotImplementedError


class FaultControls(Caller):
    """Every method raises ConfigError for an argument of a wrong type or value."""

    def fail_next(
        self, api_key: int, error_code: int, times: int = 1, topic: str | None = None, *, after: bool = False
    ) -> None:
        """The node answers the next `times` requests of an API with an error, and does not carry them out.

        With `topic`, only requests that name the topic count, and only its partitions fail (Produce, Fetch, Metadata,
        ListOffsets). With `after` the node carries out the request before it answers with the error: a Produce request
        has its records in the log by then. `after` works for Produce and for all APIs that do not name topics, the APIs
        of transactions among them. Raises ConfigError for `after` with another API.
        """
        if after and not (api_key in APIS and APIS[api_key].fails_after):
            raise ConfigError(f"requests of API key {api_key} cannot fail after the node has carried them out")
        require_int("error_code", error_code, -(1 << 15), (1 << 15) - 1)
        _require_requests(api_key, times)
        self._call(lambda c: c.faults.fail(api_key, error_code, times, topic, after))

    def delay_next(self, api_key: int, seconds: float, times: int = 1) -> None:
        """The node holds back the next `times` responses of an API. It carries out the requests at once."""
        require_seconds("seconds", seconds)
        _require_requests(api_key, times)
        self._call(lambda c: c.faults.delay(api_key, seconds, times))

    def drop_next(self, api_key: int, times: int = 1) -> None:
        """The node carries out the next `times` requests of an API, then closes the connection without a response."""
        _require_requests(api_key, times)
        self._call(lambda c: c.faults.drop(api_key, times))

    def set_latency(self, seconds: float, api_key: int | None = None, node_id: int | None = None) -> None:
        """Holds back every response of an API, of a node, or of an API on one node (None: of all).

        It lasts until a call sets the latency to 0. All latencies that concern a request add up, and `delay_next` adds
        to them. The node carries out the requests at once. Raises ConfigError if `seconds` is negative.
        """
        require_seconds("seconds", seconds)
        _require_filter(api_key, node_id)
        self._call(lambda c: c.faults.set_latency(seconds, api_key, node_id))

    def throttle_next(self, api_key: int, throttle_ms: int, times: int = 1) -> None:
        """The next `times` responses of an API tell the client to wait (KIP-219).

        The node does not serve the client's connection meanwhile.
        """
        require_int("throttle_ms", throttle_ms, 0)
        _require_requests(api_key, times)
        self._call(lambda c: c.faults.throttle(api_key, throttle_ms, times))

    def set_producer_quota(self, client_id: str | None, bytes_per_second: float | None) -> None:
        """Sets Kafka's quota producer_byte_rate for a client.id. The cluster throttles a client that is faster.

        A client.id of None stands for every client.id without a quota of its own. A rate of None removes the quota.
        `clear_faults` leaves quotas as they are. Raises ConfigError for a rate of 0 or less.
        """
        if bytes_per_second is not None and not bytes_per_second > 0:
            raise ConfigError(f"bytes_per_second={bytes_per_second}: more than 0 is needed, or None for no quota")
        self._call(lambda c: c.quotas.set_producer_rate(client_id, bytes_per_second))

    def cut_connections(self, node_id: int | None = None) -> int:
        """Cuts all connections, or the connections to one node, as a network does. Returns how many it cut.

        The nodes go on.
        """
        return self._call(lambda c: c.cut_connections(node_id))

    def cut_after(self, nbytes: int, node_id: int | None = None, *, sent: bool = False) -> None:
        """Lets `nbytes` more bytes pass to a node (None: to any node), and then cuts the connection.

        The cut is on the connection on which the next byte would pass: a request ends in the middle. With `sent` this
        counts the bytes from the node, and a response ends in the middle. Each further call counts from the cut before.
        Raises ConfigError if `nbytes` is negative.
        """
        require_int("nbytes", nbytes, 0)
        _require_filter(None, node_id)
        self._call(lambda c: c.faults.cut_after(nbytes, node_id, sent))

    def hold_markers(self) -> None:
        """From now on no transaction ends: the coordinator does not write the control records.

        It answers the producer of a transaction that is to end with CONCURRENT_TRANSACTIONS.
        """
        self._call(lambda c: c.transactions.hold())

    def release_markers(self) -> None:
        """Ends the transactions that `hold_markers` held open. Later transactions end at once."""
        self._call(lambda c: c.transactions.release())

    def clear_faults(self) -> None:
        """Removes every fault, except quotas and the effect of `hold_markers`."""
        self._call(lambda c: c.faults.clear())


def _require_requests(api_key: int, times: int) -> None:
    require_int("api_key", api_key)
    require_int("times", times, 0)


def _require_filter(api_key: int | None, node_id: int | None) -> None:
    for name, value in (("api_key", api_key), ("node_id", node_id)):
        if value is not None:
            require_int(name, value)


@dataclass(frozen=True, slots=True)
class Stats:
    """Sums over all nodes. `requests`, `bytes_in` and `bytes_out` count since the start.

    `parked` is the number of connections with a request that waits for an event.
    """

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
        """The requests in the log, oldest first. Each argument that is not None is a filter."""
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
        """Waits for the `count`th matching request and returns it. Requests before the call count.

        The node may not have answered the request yet. `where` is a further filter, which the cluster's thread calls.
        Raises TimeoutError after `timeout` seconds of real time, whatever the cluster's clock is.
        """
        require_int("count", count, 1)
        require_timeout("timeout", timeout)
        match = _match(api_key, node_id, topic)

        async def wait() -> LoggedRequest:
            log = self._running().request_log
            return await log.wait_for(lambda r: match(r) and (where is None or where(r)), count, timeout)

        return self._await(wait())

    def stats(self) -> Stats:
        """Counts of nodes, connections, requests and bytes."""
        return self._call(_stats)


def _match(api_key: int | None, node_id: int | None, topic: str | None) -> Match:
    def match(request: LoggedRequest) -> bool:
        return (
            api_key in (None, request.api_key)
            and node_id in (None, request.node_id)
            and (not topic or topic in request.topics)
        )

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
