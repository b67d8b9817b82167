# cython: language_level=3
"""The Sender's turn: what is done in every one. What is done when something went wrong is sender.py's."""

from libc.stdint cimport int64_t

from kafkabuf.batches._accumulator cimport PartitionQueue
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._drain cimport DrainCore
from kafkabuf._metrics cimport ProducerStats
from kafkabuf.batches._sequences cimport SequenceCore
from kafkabuf.protocol._frame cimport Frame
from kafkabuf.sending._produce cimport ProduceAnswer


cdef class ProduceRequest:
    """What a Produce request carries: the context of its Completion."""
    cdef readonly int version
    cdef readonly list batches
    cdef SenderCore sender
    cdef bint built                     # its batches have a reader, and may be on their way
    cdef bint in_flight                 # it counts as one in flight for each partition

    cpdef Frame build(self, int correlation_id)


cdef class SenderCore:
    # ---- fixed at construction
    cdef readonly DrainCore _accumulator
    cdef readonly object _metadata, _client, _clock
    cdef readonly SequenceCore _producer_state      # None: idempotence is off
    cdef public object _transactions        # a TransactionManager, or None
    cdef readonly ProducerStats stats
    cdef bytes client_id
    cdef readonly bytes transactional_id    # or None
    cdef int acks
    cdef int request_timeout_ms
    cdef double retry_backoff           # seconds
    cdef bint goes_ahead                # full batches queue up behind a full in-flight table
    cdef bint ordered                   # max.in.flight.requests.per.connection is 1
    # ---- thread: Sender
    cdef public tuple produce_versions  # what batches of our magic may travel in
    cdef public double tell_at          # when to tell of failures that nobody has looked at; infinite: there are none
    cdef public bint closing            # set by any thread, before it wakes us
    cdef set fresh_topics               # metadata has been told in this second that they are in use
    cdef double fresh_until

    cdef double send_to(self, object node_id, list queues, double now) except? -1
    cdef double delay(self, object node_id, list queues) except? -1
    cdef double send_to_all(self, dict queues_by_node, double now) except? -1
    cdef int send(self, object node_id, list batches) except -1
    cdef int not_sent(self, object node_id, ProduceRequest request, object error) except -1
    cdef int count_sent(self, list batches, double now) except -1
    cdef int keep_fresh(self, list batches, double now) except -1
    cdef int count_in_flight(self, Batch batch, int change) except -1
    cdef int count_request(self, ProduceRequest request, int change) except -1
    cdef int on_completions(self, list completions) except -1
    cdef int clean_up(self, object completion, object error) except -1
    cdef int end_request(self, object completion) except -1
    cdef bint settle(self, ProduceRequest request, object completion) except -1
    cdef bint on_answer(self, ProduceRequest request, object completion) except -1
    cdef bint on_partitions(self, list batches, ProduceAnswer answers) except -1
    cdef bint on_partition(self, Batch batch, ProduceAnswer answers) except -1
    cdef int learn_leaders(self, list batches, ProduceAnswer answers) except -1
    cdef int take_back(self, object node_id) except -1
    cdef int take_back_one(self, ProduceRequest request) except -1
    cdef int put_back(self, ProduceRequest request) except -1
    cdef int complete(self, PartitionQueue queue, Batch batch, int64_t base_offset, int64_t log_append_time) except -1
