"""What is asked of a broker, what comes back, and the record of what is under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafkabuf.errors import KafkaError
from kafkabuf.network._io import Frame
from kafkabuf.protocol import messages


@dataclass(slots=True, eq=False)
class Request:
    """A request still without a correlation id: `build` makes the frame for the one it gets.

    `context` is the sender's own; `timeout` in seconds replaces `request.timeout.ms`. With `expects_response` False
    (acks=0) the request is complete once written.
    """

    api_key: int
    version: int
    build: Callable[[int], Frame]
    context: Any = None
    expects_response: bool = True
    timeout: float | None = None


@dataclass(slots=True, eq=False)
class Completion:
    """The end of a request. From here on no socket reads the spans of its frame.

    `response` is the frame that answered it, header included; None with `error` set, or when no response was expected.
    `latency` in seconds is from `send` to here.
    """

    request: Request
    node_id: int
    response: bytes | None
    error: KafkaError | None
    latency: float

    def decode(self) -> Any:
        """The response as a kio entity. Raises `error` if there is one, CorruptMessageError for malformed bytes."""
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return messages.decode_response(self.request.api_key, self.request.version, self.response)[1]


@dataclass(slots=True, eq=False)
class InFlight:
    """A request handed to a connection. `deliver` takes its Completion; called once, in the Sender thread."""

    request: Request
    correlation_id: int
    frame: Frame
    sent_at: float
    deadline: float
    deliver: Callable[[Completion], None]
