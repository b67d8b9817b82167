"""The first request on a connection: ApiVersions, whose response has the versions and the features of the broker.

Thread: the Sender's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from kafkabuf.errors import error_for_code
from kafkabuf.network._request import Completion
from kafkabuf.network.connection_state import NodeConnection, State
from kafkabuf.protocol import messages
from kafkabuf.version import __version__

SOFTWARE_NAME = "kafkabuf"
NEWEST_API_VERSIONS = 3
UNSUPPORTED_VERSION = 35


class Network(Protocol):
    """The part of Connections that carries the handshake."""

    def submit(self, node: NodeConnection, entity: Any, deliver: Callable[[Completion], None]) -> None: ...
    def greeted(self, node: NodeConnection) -> None: ...


class Handshake:
    """Greets brokers, and keeps the features that the cluster as a whole has agreed on (KIP-584)."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._features_epoch = -1
        self.finalized_features: dict[str, int] = {}  # name: level

    def begin(self, node: NodeConnection, version: int = NEWEST_API_VERSIONS) -> None:
        node.state = State.HANDSHAKING
        entity = messages.build_request(
            messages.API_VERSIONS,
            version,
            client_software_name=SOFTWARE_NAME,
            client_software_version=__version__,
        )
        self._network.submit(node, entity, partial(self._greeted, node))

    def _greeted(self, node: NodeConnection, completion: Completion) -> None:
        if completion.error is not None:
            return  # the connection is gone already
        response = completion.decode()
        if response.error_code == UNSUPPORTED_VERSION and completion.request.version > 0:
            self.begin(node, 0)
            return
        if response.error_code:
            raise error_for_code(int(response.error_code), f"{node} refused the handshake: {response.error_code!r}")
        node.speaks({int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys})
        self._learn_features(response)
        self._network.greeted(node)

    def _learn_features(self, response: Any) -> None:
        """Older brokers, and older versions of the response, name no features."""
        epoch = getattr(response, "finalized_features_epoch", -1)
        if epoch >= self._features_epoch:
            self._features_epoch = epoch
            features = getattr(response, "finalized_features", ())
            self.finalized_features = {str(feature.name): int(feature.max_version_level) for feature in features}
