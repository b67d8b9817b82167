from collections import deque
from typing import Any

from kafkabuf.network._io import Connection
from kafkabuf.network._request import InFlight

class NodeCore:
    @property
    def node_id(self) -> int: ...
    @property
    def agreed(self) -> dict[tuple[int, object], int]: ...
    state: Any
    connection: Connection | None
    in_flight: deque[InFlight]
    failing: Any
    last_used: float
    throttled_until: float
    def __new__(cls, node_id: int, *args: object) -> NodeCore: ...
