class Frame:
    """One request as a list of spans, in wire order, its 4-byte length included.

    Spans are not copied: whoever adds one keeps it alive and unchanged until the frame is `written` or its connection
    is closed; `own` and `add_bytes` tie an object's lifetime to the frame's. Once it is handed to a connection, setting
    an attribute raises ValueError, as adding bytes does.
    """

    notify: bool
    """Report the connection from `Poller.poll` when the last byte has gone out (for acks=0)."""

    correlation_id: int
    """What the answer must bear: no other frame that comes makes room for the next one that waits to be started."""

    largest_answer: int
    """Bytes that the answer may have; a longer one fails the connection."""

    @property
    def untouched(self) -> bool:
        """No byte of it has been given to the kernel, or to the cipher: no peer has seen any of it."""

    @property
    def nbytes(self) -> int: ...
    @property
    def written(self) -> bool:
        """The kernel has taken every byte; no span is read again."""

    def add_bytes(self, data: bytes) -> int: ...
    def own(self, owner: object) -> int: ...
    def to_bytes(self) -> bytes:
        """A copy of all spans. Raises ValueError once the frame was handed to a connection."""
