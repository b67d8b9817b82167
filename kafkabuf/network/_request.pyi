from collections.abc import Callable
from typing import Any, final

from kafkabuf.errors import KafkaError
from kafkabuf.protocol._frame import Frame

@final
class Request:
    api_key: int
    version: int
    build: Callable[[int], Frame]
    context: Any
    expects_response: bool
    timeout: float | None
    def __init__(
        self,
        api_key: int,
        version: int,
        build: Callable[[int], Frame],
        context: Any = None,
        expects_response: bool = True,
        timeout: float | None = None,
    ) -> None: ...

@final
class Completion:
    request: Request
    node_id: int
    response: bytes | None
    error: KafkaError | None
    latency: float
    never_left: bool
    def __init__(
        self,
        request: Request,
        node_id: int,
        response: bytes | None,
        error: KafkaError | None,
        latency: float,
        never_left: bool = False,
    ) -> None: ...
    def decode(self) -> Any: ...

@final
class InFlight:
    request: Request
    correlation_id: int
    frame: Frame
    sent_at: float
    deadline: float

def decoded(request: Request, frame: bytes) -> Any:
    """Any thread: the response as a kio entity. Raises CorruptMessageError."""
