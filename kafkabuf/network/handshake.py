"""The first request on a connection: ApiVersions, whose response has the versions and the features of the broker.

The request also names the cluster and the node that the client means, where brokers read that (Kafka 4.4, KIP-1242). An
address may belong to another broker by now, perhaps of another cluster. That broker refuses the client, which then asks
`bootstrap.servers` again and sends it no record.

Thread: the Sender's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from kafkabuf.errors import RebootstrapRequiredError, error_for_code
from kafkabuf.network._request import Completion
from kafkabuf.network.connection_state import NodeConnection, State
from kafkabuf.protocol import messages
from kafkabuf.version import __version__

SOFTWARE_NAME = "kafkabuf"
NEWEST_API_VERSIONS = 3
WITH_CLUSTER = 5  # names cluster and node
UNSUPPORTED_VERSION = 35


class Network(Protocol):
    """The part of Connections that carries the handshake."""

    def submit(self, node: NodeConnection, entity: Any, deliver: Callable[[Completion], None]) -> None: ...
    def greeted(self, node: NodeConnection) -> None: ...
    def misrouted(self, node: NodeConnection) -> None: ...
    @property
    def meant_cluster(self) -> str: ...


class Handshake:
    """Greets brokers, and keeps the features that the cluster as a whole has agreed on (KIP-584)."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._features_epoch = -1
        self._names_cluster = False  # the broker that answered last reads WITH_CLUSTER
        self.finalized_features: dict[str, int] = {}  # name: level

    def begin(self, node: NodeConnection, newest: int = WITH_CLUSTER) -> None:
        """`newest`: the newest version of the request that this broker may know."""
        node.state = State.HANDSHAKING
        cluster_id = self._network.meant_cluster if self._names_cluster and node.node_id >= 0 else ""
        entity = messages.build_request(
            messages.API_VERSIONS,
            newest if cluster_id else min(newest, NEWEST_API_VERSIONS),
            client_software_name=SOFTWARE_NAME,
            client_software_version=__version__,
            cluster_id=cluster_id or None,
            node_id=node.node_id,
        )
        self._network.submit(node, entity, partial(self._greeted, node))

    def _greeted(self, node: NodeConnection, completion: Completion) -> None:
        if completion.error is not None:
            return  # the connection is gone already
        response = completion.decode()
        version = completion.request.version
        if response.error_code == UNSUPPORTED_VERSION and version > 0:
            self.begin(node, NEWEST_API_VERSIONS if version > NEWEST_API_VERSIONS else 0)
            return
        if response.error_code == RebootstrapRequiredError.code:
            self._network.misrouted(node)
        if response.error_code:
            raise error_for_code(int(response.error_code), f"{node} refused the handshake: {response.error_code!r}")
        versions = {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys}
        node.speaks(versions)
        self._names_cluster = versions.get(messages.API_VERSIONS, (0, 0))[1] >= WITH_CLUSTER
        self._learn_features(response)
        self._network.greeted(node)

    def _learn_features(self, response: Any) -> None:
        """Older brokers, and older versions of the response, name no features."""
        epoch = getattr(response, "finalized_features_epoch", -1)
        if epoch >= self._features_epoch:
            self._features_epoch = epoch
            features = getattr(response, "finalized_features", ())
            self.finalized_features = {str(feature.name): int(feature.max_version_level) for feature in features}
