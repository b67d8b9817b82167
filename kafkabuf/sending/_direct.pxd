# cython: language_level=3
"""A record that is sent alone goes out from its own thread."""

from kafkabuf.batches._accumulator cimport Shortcut
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._drain cimport DrainCore
from kafkabuf.network._client cimport Requests
from kafkabuf.network._io cimport Poller
from kafkabuf.network._node cimport NodeCore
from kafkabuf.network._socket cimport Wire
from kafkabuf.sending._sender cimport SenderCore


cdef class DirectSend(Shortcut):
    # ---- fixed at construction
    cdef SenderCore sender
    cdef DrainCore accumulator
    cdef Requests requests
    cdef Poller poller

    # The batch's leader, if nothing but this batch is under way to it; else None. The caller holds the GIL and nothing
    # else: it reads only what the Sender changes with the GIL.
    cdef NodeCore idle_leader(self, Batch batch, double now)
    # The caller has borrowed the Sender's place. Runs no Python code. False: the Sender must send the batch.
    cdef bint put_on_connection(self, Batch batch, NodeCore node, double now) noexcept
