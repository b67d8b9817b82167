# cython: language_level=3
"""The Sender's turn: the steps of every turn, and the contracts of the two policies that decide the rest.

A turn calls its policies, which are Python, where a batch has failed or where something is due that few turns have.
For the rest it keeps to C: no Python call, no lookup of an attribute by its name, no clock object. After each pause the
caches are cold, and an instruction costs five times as much as under load. A Sender whose client, clock or Poller is a
test's calls these by their methods.

An exception affects only its own batch or node: each completion, each partition of a response and each node to send to
is served in a try block of its own. What a turn leaves half done for want of memory stays in a field that needs no new
memory, and the next turn goes on there.
"""

from libc.stdint cimport int64_t

from kafkabuf.network._metrics cimport ProducerStats
from kafkabuf.batches._accumulator cimport PartitionQueue
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._drain cimport DrainCore, OpenShare
from kafkabuf.batches._sequences cimport SequenceCore
from kafkabuf.network._client cimport ClientCore
from kafkabuf.network._request cimport Completion, Request
from kafkabuf.protocol._frame cimport Frame
from kafkabuf.sending._produce cimport PartitionResponse, ProduceResponse


cdef class RecoveryPolicy:
    """What becomes of a batch that failed: recovery.py. Thread: Sender, if nothing else is said."""
    cdef readonly object errands        # deque of callables, for the Sender's next turn. Any thread appends, and then
    #                                     wakes the Sender
    cdef public double tell_at          # when to warn of failures that the user has not seen; infinite: no failure

    cpdef object expire(self, double now)   # fail the batches whose delivery.timeout.ms is over
    cpdef object run_errands(self)          # call those in `errands`
    cpdef object tell(self)                 # warn of the failures that the user has not seen
    # The request failed, or `response` reports an error of the batch: put it back into its queue, or fail it.
    cpdef object retry_or_fail(self, Batch batch, object error, PartitionResponse response=*)
    cpdef object retry_or_fail_all(self, list batches, object error)
    # After an error within the Sender, put those batches back that have neither an outcome nor a place in a queue.
    # `sent`: a broker may have them.
    cpdef object go_again(self, list batches, object error, bint sent)
    # The broker supports no Produce version that carries these batches.
    cpdef object fail_unsupported(self, list batches, object error)
    # Fail the batches that wait for a node that refuses the client, or whose certificate the client refuses.
    cpdef object fail_unauthenticated(self, list queues, object error)


cdef class UpkeepPolicy:
    """Leaders, the producer's id, transactions, and a close: upkeep.py. Thread: Sender."""
    cdef public object transactions         # a TransactionManager, or None
    cdef public tuple produce_versions      # lowest and highest Produce version that carry batches of this magic

    cpdef object ask_for_leaders(self, set topics)      # request metadata of topics whose batches have no leader
    # A response names new leaders; (topic, partition): (node id, leader epoch).
    cpdef object on_leaders(self, dict leaders, ProduceResponse response)
    # Get a producer id, resolve the sequences in doubt. Returns the seconds until the next call is due.
    cpdef double update_producer_state(self, double now) except? -1
    # Send the next request of a transaction. Returns the seconds until the next call is due.
    cpdef double run_transactions(self, double now) except? -1
    cpdef bint is_finished(self) except -1              # while the producer closes: nothing is left to do
    cpdef double wait_while_closing(self, double now) except? -1    # seconds that the poll may last; 0: the last turn?


cdef class ProduceRequest:
    """The batches of a Produce request: the context of the request's Completion."""
    cdef readonly int version
    cdef readonly list batches
    cdef SenderCore sender
    cdef bint built                     # the frame counts as a reader of each batch, and may be on its way
    cdef OpenShare share                # the node's, if the request took open batches while memory was scarce; or None
    cdef int64_t share_taken            # bytes of these batches
    cdef bint in_flight                 # each partition counts this request as in flight

    cpdef Frame build(self, int correlation_id)


cdef class SenderCore:
    # ---- fixed at construction
    cdef readonly DrainCore _accumulator
    cdef readonly object _metadata, _client, _clock
    cdef ClientCore core                # the client, unless a test has put another in its place
    cdef bint system_clock              # the clock is the machine's, and `now` reads it in C
    cdef readonly RecoveryPolicy recovery
    cdef readonly UpkeepPolicy upkeep
    cdef readonly SequenceCore _producer_state      # None: idempotence is off
    cdef readonly ProducerStats stats
    cdef bytes client_id
    cdef public bytes transactional_id      # or None; changes only while no batch is under way (sharing.py)
    cdef int acks
    cdef int request_timeout_ms
    cdef double retry_backoff           # seconds
    cdef bint goes_ahead                # the Sender queues full batches behind a full in-flight table
    cdef double longest_wait            # seconds of one poll: a request from another thread may fall due earlier
    cdef public int many_queues         # with this many queues a turn asks the nodes for room first; tests lower it
    cdef bint ordered                   # max.in.flight.requests.per.connection is 1
    # ---- thread: Sender
    cdef public bint closing            # any thread sets it before it wakes the Sender
    cdef set fresh_topics               # topics that the Sender has reported to metadata as in use, until fresh_until
    cdef double fresh_until
    cdef dict full_in_a_row             # node id -> requests since the last one that took open batches too
    # The request that a borrower of the Sender's place (_direct.pyx) could not hand over: the next turn ends it.
    # Or the request that a turn of the Sender could not, and for whose batches there was no memory yet.
    cdef ProduceRequest unsent          # None: there is no such request
    cdef ProduceRequest spare_request   # for the next batches: made before they leave their queues
    cdef object unsent_node, unsent_error
    cdef bint looks_again               # batches went back to their queues in this turn, after `wait` was computed
    # What the last poll has brought, and how many of these the Sender has handled. Where memory was short, the next
    # turn goes on with the completion that `failed` with `failure`.
    cdef list completions
    cdef Py_ssize_t handled
    cdef object failed, failure         # None: there is no such completion

    cdef double now(self) except? -1
    cdef int turn(self, double max_wait) except -1
    cdef void pause_after(self, object failure) noexcept
    cdef int handle_completions(self) except -1
    cdef int end_failed(self) except -1
    cdef bint is_ready(self, object node_id) except -1
    cdef int api_version(self, object node_id) except -1
    cdef int hand_over(self, object node_id, Request request) except -1
    cdef list poll(self, double wait)
    cdef int keep_pause(self, Completion completion, int throttle_ms) except -1
    cdef dict rooms(self)
    cdef double send_to(self, object node_id, list queues, bint left_out, double now) except? -1
    cdef bint owes_open(self, object node_id) except -1
    cdef int count_full(self, object node_id, bint full) except -1
    cdef double delay(self, object node_id, list queues) except? -1
    cdef double send_to_all(self, dict queues_by_node, set left_out, double now) except? -1
    cdef int send(self, object node_id, list batches) except -1
    cdef ProduceRequest new_produce_request(self, list batches)
    cdef int start(self, object node_id, ProduceRequest request) except -1
    cdef int end_unsent(self) except -1
    cdef int not_sent(self, object node_id, ProduceRequest request, object error) except -1
    cdef int count_sent(self, list batches, double now) except -1
    cdef int keep_fresh(self, list batches, double now) except -1
    cdef int count_in_flight(self, Batch batch, int change) except -1
    cdef int count_request(self, ProduceRequest request, int change) except -1
    cdef int on_completions(self, list completions) except -1
    cdef int clean_up(self, object completion, object error) except -1
    cdef int end_request(self, Completion completion) except -1
    cdef bint end_batches(self, ProduceRequest request, Completion completion) except -1
    cdef bint on_response(self, ProduceRequest request, Completion completion) except -1
    cdef bint on_partitions(self, list batches, ProduceResponse response) except -1
    cdef bint on_partition(self, Batch batch, ProduceResponse response) except -1
    cdef int learn_leaders(self, list batches, ProduceResponse response) except -1
    cdef int take_back(self, object node_id) except -1
    cdef int take_back_one(self, ProduceRequest request) except -1
    cdef int put_back(self, ProduceRequest request) except -1
    cdef int complete(self, PartitionQueue queue, Batch batch, int64_t base_offset, int64_t log_append_time) except -1
