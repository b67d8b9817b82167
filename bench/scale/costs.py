"""What the model is fed with: costs that were measured once, by short runs of a real producer and a real Kafka.

The runs sent the same bytes in different portions: few and many records in a batch, few and many batches in a request,
few and many requests, with and without waits for memory. A cost is what fitted the CPU times of all runs best.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.scale.load import VALUE_BYTES, Load


@dataclass(frozen=True)
class Costs:
    """Seconds of CPU time, and bytes. The producer's costs come first, then the broker's."""

    call_s: float
    """A call of send_arrow()."""
    nap_s: float
    """A pause of the load between two calls: the sleep, and the cold caches after it."""
    memory_wait_s: float
    """The caller's wait for memory, in which it sleeps."""
    record_s: float
    """A record of a table, without a key."""
    key_s: float
    """The key of a record and its choice among several partitions."""
    batch_s: float
    request_s: float
    turn_s: float
    """A turn of the Sender: it wakes up, looks for batches that may go, and polls."""
    byte_s: float
    """A byte of a request: checksum and socket."""
    connection_s: float
    """Opening a connection: the handshake, and the socket."""
    broker_batch_s: float
    broker_request_s: float
    broker_byte_s: float
    wait_s: float
    """How long a message between a producer and a broker takes, apart from CPU time: on one machine, a wake-up."""
    record_bytes: float
    """A record of 16 bytes of key and 100 bytes of value in a batch."""
    value_overhead_bytes: float
    """What a record without a key adds to its value in a batch."""
    batch_bytes: float
    """An empty batch."""
    request_bytes: float
    """An empty Produce request."""
    entry_bytes: float
    """A partition of a Produce request, without its batch."""
    slab_bytes: float
    """The memory that a batch of one record takes, where batch.size is 16 KiB."""
    other_connections: float
    """Connections of a producer beside those to leaders."""

    def size(self, load: Load) -> float:
        """The bytes of a record of this load in a batch."""
        if load.keyed:
            return self.record_bytes + load.value_bytes - VALUE_BYTES
        return self.value_overhead_bytes + load.value_bytes


# Of 2026-11-23, on two cores; the broker is Apache Kafka. Two were not measured. `entry_bytes` follows from the layout
# of Produce 9: an index of 4 bytes, a size of 2, a tag section of 1. `wait_s` is assumed: only a laptop's row depends
# on it.
MEASURED = Costs(
    call_s=9.05e-6, nap_s=94.3e-6, memory_wait_s=381e-6, record_s=0.0894e-6, key_s=0.0201e-6, batch_s=3.66e-6,
    request_s=7.09e-6, turn_s=28.5e-6, byte_s=0.199e-6 / 1024, connection_s=406e-6,
    broker_batch_s=9.91e-6, broker_request_s=91.4e-6, broker_byte_s=3.36e-6 / 1024, wait_s=20e-6,
    record_bytes=125.937, value_overhead_bytes=9.937, batch_bytes=61.0, request_bytes=49.0,
    entry_bytes=7.0, slab_bytes=1024.0, other_connections=1.0,
)  # fmt: skip
