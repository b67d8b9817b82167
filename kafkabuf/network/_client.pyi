from collections.abc import Callable
from typing import Any

from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import KafkaError
from kafkabuf.network._io import Poller
from kafkabuf.network._metrics import ProducerStats
from kafkabuf.network._request import Completion, InFlight, Request
from kafkabuf.network.authenticator import Authenticator
from kafkabuf.network.connection_state import NodeConnection
from kafkabuf.network.metadata_updater import MetadataSource, MetadataUpdater

def broken(node: NodeConnection, error: Exception) -> KafkaError:
    """The error of the requests on a connection whose broker breaks the protocol. It is retriable."""

class ClientCore:
    _clock: Clock
    _metadata: MetadataSource
    _updater: MetadataUpdater
    _poller: Poller
    most_ahead: int
    _authenticator: Authenticator | None
    _nodes: dict[int, NodeConnection]
    stats: ProducerStats | None
    on_throttle: Callable[[int, int], object] | None
    _completions: list[Completion]
    _resolving: set[NodeConnection]
    _decoding: list[Any]
    _next_check: float
    def __init__(self, config: ProducerConfig, clock: Clock, metadata: MetadataSource, poller: Poller) -> None: ...
    def ready(self, node_id: int) -> bool: ...
    def takes_ahead(self, node_id: int) -> bool: ...
    def send(self, node_id: int, request: Request) -> None: ...
    def take_back(self, node_id: int, api_key: int) -> list[Request]: ...
    def throttle(self, node_id: int, request: Request, throttle_ms: int) -> None: ...
    def fail_connection(self, node_id: int, error: KafkaError) -> None: ...
    def api_version(self, node_id: int, api_key: int, supported: range | tuple[int, int]) -> int: ...
    def _connected(self, node_id: int) -> NodeConnection: ...
    def _send(
        self, node: NodeConnection, request: Request, deliver: Callable[[Completion], None] | None = None
    ) -> None: ...
    def wakeup(self) -> None: ...
    def poll(self, timeout: float | None = None) -> list[Completion]: ...
    unfinished: bool
    def _completed(self, entry: InFlight) -> bool: ...
    def _take_completions(self) -> list[Completion]: ...
    def _on_decoded(self, node: NodeConnection, entry: InFlight, frame: bytes, entity: Any) -> None: ...
    def _complete(
        self,
        node: NodeConnection,
        entry: InFlight,
        response: bytes | None,
        error: KafkaError | None,
        entity: Any = None,
        never_left: bool = False,
    ) -> int: ...
