import socket

from kafkabuf.errors import KafkaError
from kafkabuf.protocol._frame import Frame

BACKENDS: tuple[str, ...]  # names of the back-ends of this platform, the default first

class Connection:
    """A non-blocking stream socket, made by `Poller.register`. Thread: the Poller's owner."""

    @property
    def peer(self) -> str: ...
    @property
    def context(self) -> object: ...
    @property
    def connected(self) -> bool: ...
    @property
    def reached(self) -> bool:
        """The peer's host has accepted the TCP connection. The peer may not have sent a byte."""

    @property
    def closed(self) -> bool: ...
    @property
    def error(self) -> KafkaError | None:
        """Why the Poller closed the connection; None while open and after `close()`."""

    @property
    def queued(self) -> int:
        """How many frames are not written in full."""

    def send(self, frame: Frame) -> int:
        """Queue a frame; the next `poll` writes it.

        Raises NetworkError if the connection is closed, ValueError for a frame that is empty or was sent before,
        TypeError for None.
        """

    def take_back(self) -> list[Frame]:
        """Remove the frames that are not started from the queue. Returns them, oldest first; they may be sent again."""

    def take_frames(self) -> list[bytes]:
        """The whole frames received since the last call, without their 4-byte lengths, oldest first."""

    def close(self) -> None:
        """Close the socket and drop the queue: no span of a queued frame is read any more. Idempotent."""

class Poller:
    """A set of connections. Thread: one owner, except `wakeup`.

    A forked child must drop its copy and call nothing on it: it shares the sockets with its parent. The environment
    variable KAFKABUF_POLLER chooses a back-end, for tests; the constructor raises ConfigError for an unknown name.
    """

    def __init__(self) -> None: ...
    @property
    def backend_name(self) -> str: ...
    def register(
        self,
        sock: socket.socket,
        peer: str,
        context: object = None,
        *,
        max_frame: int = 100_000_000,
        max_in_flight: int = 0x7FFFFFFF,
        connection: Connection | None = None,
    ) -> Connection:
        """Take over a connecting or connected stream socket. `sock` is detached: the caller cannot use it any more.

        `connection`: a TlsConnection that never had a socket, to encrypt the traffic. Raises ValueError if it had one.

        `peer` names the connection in messages. A frame without a request fails the connection if its announced length
        is more than `max_frame` bytes; a response fails it if it is longer than its request allows. `max_in_flight`
        frames that expect a response (without `notify`) are started and the others wait. For every response to the
        oldest request `poll` starts one more, without returning.
        """

    def poll(self, timeout: float | None = None) -> list[Connection]:
        """Write the queued frames, wait up to `timeout` seconds (None: for ever) for news, read what has arrived.

        Returns the connections that became connected, have frames, finished a frame with `notify`, or failed. A failed
        connection is already closed and has its `error` set. The list is empty after a time-out, a wake-up, or a part
        of a frame. Raises ValueError while another call of `poll` is under way.
        """

    @property
    def waited_ns(self) -> int:
        """How long the last `poll` waited for sockets."""

    @property
    def worked_ns(self) -> int:
        """How long the last `poll` wrote and read."""

    def wakeup(self) -> None:
        """Any thread: end the current or the next `poll`. Costs a system call only while the owner waits."""

    def close(self) -> None:
        """Close every connection, and the descriptors of the Poller itself. It can do nothing more afterwards."""
