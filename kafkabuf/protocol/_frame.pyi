class Frame:
    """One request as a list of spans, in wire order, its 4-byte length included.

    Spans are not copied: the caller keeps the bytes of a span alive and unchanged until the frame is `written` or its
    connection is closed. `own` and `add_bytes` tie an object's lifetime to the frame's. Once a connection has the
    frame, setting an attribute or adding bytes raises ValueError.
    """

    notify: bool
    """`Poller.poll` reports the connection when the last byte is written, because no response will come (acks=0)."""

    correlation_id: int
    """The correlation id of the response: only the response with this id lets the next waiting frame start."""

    largest_response: int
    """How many bytes the response may have. A longer response fails the connection."""

    @property
    def untouched(self) -> bool:
        """Neither the kernel nor TLS has taken a byte of the frame: the peer has not seen any of it."""

    @property
    def nbytes(self) -> int: ...
    @property
    def written(self) -> bool:
        """The kernel has taken every byte; no span is read again."""

    def add_bytes(self, data: bytes) -> int: ...
    def own(self, owner: object) -> int: ...
    def to_bytes(self) -> bytes:
        """A copy of all spans. Raises ValueError once a connection has the frame."""
