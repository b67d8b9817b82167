"""CRC-32C from a library: the broker must not check batches with the client's own code."""

from __future__ import annotations

from kafkabuf.extras import needs

# The broker cannot do without kio either. `messages` imports kio only when a request needs it: too late for an advice.
with needs("broker", "kafkabuf.broker"):
    import kio  # noqa: F401
    from crc32c import crc32c as crc32c
