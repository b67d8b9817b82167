import socket

from kafkabuf.errors import KafkaError
from kafkabuf.protocol._frame import Frame

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
        """The peer's host has taken the connection; that may be all it ever does."""

    @property
    def closed(self) -> bool: ...
    @property
    def error(self) -> KafkaError | None:
        """Why the Poller closed the connection; None while open and after `close()`."""

    @property
    def queued(self) -> int:
        """Frames not written entirely."""

    def send(self, frame: Frame) -> int:
        """Queue a frame; the next `poll` writes it.

        Raises NetworkError when the connection is closed, ValueError for a frame that is empty or was sent before,
        TypeError for None.
        """

    def take_back(self) -> list[Frame]:
        """The frames that wait to be started, oldest first. They may be sent again."""

    def take_frames(self) -> list[bytes]:
        """Whole frames received since the last call, without their 4-byte lengths, oldest first."""

    def close(self) -> None:
        """Close the socket and drop its queue: after this no span of a queued frame is read. Idempotent."""

class Poller:
    """An epoll set with its connections. Thread: one owner, except `wakeup`.

    A child made by fork must drop its copy without calling anything: the epoll set is shared with the parent.
    """

    def __init__(self) -> None: ...
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
        """Take over a connecting or connected stream socket: `sock` is detached and of no further use.

        `connection`: a TlsConnection that never had a socket, to encrypt what goes over it; ValueError if it had one.

        `peer` names it in messages; a frame that nobody asked for fails the connection when it is announced as longer
        than `max_frame` bytes, an answer when it is longer than its request allows. Of the frames that are to be
        answered (without `notify`) `max_in_flight` are started; the others wait, and `poll` starts one for every frame
        received that answers the oldest of these, without returning for it.
        """

    def poll(self, timeout: float | None = None) -> list[Connection]:
        """Write what is queued, wait up to `timeout` seconds (None: for ever) for news, read what came.

        Returns the connections that became connected, have frames, finished a frame with `notify`, or failed; a failed
        one is already closed and its `error` set. An empty list: time-out, wake-up, or part of a frame.
        Raises ValueError while another call of it is under way.
        """

    @property
    def waited_ns(self) -> int:
        """How long the last `poll` waited for sockets."""

    @property
    def worked_ns(self) -> int:
        """How long it wrote and read."""

    def wakeup(self) -> None:
        """Any thread: end the current or the next `poll`. Costs a system call only while the owner waits."""

    def close(self) -> None:
        """Close every connection."""
