# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A record that is sent alone goes out from its own thread, which takes the sleeping Sender's place.

send() would else wake the Sender's thread, which would write the same request some 20 µs later. Where the Sender sleeps
in its poll, the queues hold this batch alone, and its leader has nothing in flight, the thread of send() borrows the
Sender's place (`Poller.borrow`), puts the batch on the connection as the Sender's turn does, and writes it. In all
other cases it wakes the Sender. So a loop over send() sends its first record alone, and the others gather behind it.

What the way of one record costs was measured at 1,000 records a second on two virtual cores, from the call to the
callback: send() 5 µs; the eventfd wakes the Sender, 13; the turn drains the batch and frames the request, 12; sendmsg,
in which the kernel also wakes the broker's thread, 20 to 40; the broker, 70 to 130; recv, 2; the response is read and
the callback runs, 9. The Sender waits for the GIL for less than 1 µs in the median.

The thread keeps the GIL from its look at the Sender's state until the request is in the in-flight table. So the Sender
finds either no trace of the request, or all of it. Nothing in between runs Python code, which could wait for the
Sender, while the Sender waits for the thread without a time limit: the garbage collector is off, and an error is left
to the Sender's next turn (`SenderCore.end_unsent`). The thread gives the place back before it takes the GIL again.
"""

from kafkabuf.batches._accumulator cimport PartitionQueue, Shortcut
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._drain cimport DrainCore
from kafkabuf.network._client cimport ClientCore
from kafkabuf.network._io cimport Connection
from kafkabuf.network._node cimport NodeCore
from kafkabuf.network._socket cimport Wire
from kafkabuf.sending._sender cimport ProduceRequest, SenderCore

from kafkabuf.network.connection_state import State
from kafkabuf.sending._produce import PRODUCE

cdef extern from "Python.h":
    int PyGC_Disable()      # returns whether the collector was enabled
    int PyGC_Enable()

cdef object READY = State.READY


def shortcut_of(SenderCore sender not None):
    """The DirectSend of a Sender, or None where its batches seldom or never go alone and at once.

    The Sender's polls are bounded from here on: a request that another thread sends may be the first to fall due.
    """
    cdef ClientCore client = sender.core
    cdef DrainCore accumulator = sender._accumulator
    cdef DirectSend direct
    if (client is None or not client.plain_poller or not client.requests.system_clock or not sender.system_clock
            or sender.acks == 0 or sender.upkeep.transactions is not None or accumulator.linger > 0
            or accumulator.codec is not None or accumulator.availability_timeout > 0):
        return None
    direct = DirectSend.__new__(DirectSend)
    direct.sender = sender
    direct.accumulator = accumulator
    direct.requests = client.requests
    direct.poller = client._poller
    sender.longest_wait = min(client.requests.request_timeout, accumulator.delivery_timeout)
    return direct


cdef class DirectSend(Shortcut):
    """Sends a batch of one record from the thread that has opened it."""

    cdef bint send_now(self, Batch batch) noexcept:
        cdef double now = 0
        cdef NodeCore node = None
        cdef int collects
        cdef bint sent
        try:
            now = self.sender.now()
            node = self.idle_leader(batch, now)
        except Exception:
            pass  # the Sender meets the same error, and reports it
        if node is None or not self.poller.borrow():
            return False
        collects = PyGC_Disable()  # a collection runs the user's finalizers
        sent = self.put_on_connection(batch, node, now)
        if collects:
            PyGC_Enable()
        with nogil:
            self.poller.repay()
        return sent

    cdef NodeCore idle_leader(self, Batch batch, double now):
        cdef SenderCore sender = self.sender
        cdef DrainCore accumulator = self.accumulator
        cdef PartitionQueue queue
        cdef NodeCore node
        if (sender.closing or sender.recovery.errands or sender.unsent is not None
                or sender.upkeep.transactions is not None or len(accumulator.active) != 1
                or accumulator.pool.disowned or not accumulator.pool.plenty()
                or now >= sender.fresh_until or batch.topic not in sender.fresh_topics):
            return None
        if sender._producer_state is not None and sender._producer_state.needs_update:
            return None
        queue = accumulator.queue_for(batch)
        if queue.in_flight or len(queue.batches) != 1 or queue.batches[0] is not batch:
            return None
        node = self.requests.nodes.get(queue.leader)
        if (node is None or node.state is not READY or node.in_flight or self.requests.throttled(node)
                or type(node.connection) is not Connection or node.connection.queue
                or (PRODUCE, sender.upkeep.produce_versions) not in node.agreed):
            return None
        return node

    cdef bint put_on_connection(self, Batch batch, NodeCore node, double now) noexcept:
        cdef SenderCore sender = self.sender
        cdef Wire* wire = node.connection.frames
        cdef ProduceRequest request = None
        cdef list batches = None
        cdef object node_id = node.node_id, failure = None
        cdef bint started = False
        if wire.head != NULL or wire.armed or wire.held or wire.error or wire.news or wire.credit <= 0:
            return False
        try:
            request = sender.new_produce_request(None)
            batches = self.accumulator.drain_from([self.accumulator.queue_for(batch)], now, False)
            if batches:
                request.batches = batches
                sender.start(node_id, request)
                started = True
        except Exception as error:
            failure = error
        if not started:
            if batches:  # else the batch is in its queue
                # The Sender fails the batch or puts it back: callbacks run in its thread. There may be no memory here.
                sender.unsent_node, sender.unsent_error, sender.unsent = node_id, failure, request
            return False
        try:
            sender.count_full(node.node_id, False)
            sender.count_sent(batches, now)
        except Exception:
            pass  # the metrics lack a batch
        return True
