# cython: language_level=3
"""The Sender's turn: the steps of every turn. The steps after an error are sender.py's."""

from libc.stdint cimport int64_t

from kafkabuf._metrics cimport ProducerStats
from kafkabuf.batches._accumulator cimport PartitionQueue
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._drain cimport DrainCore
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
    cdef set fresh_topics               # reported to metadata as in use within this second
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
    cdef bint end_batches(self, ProduceRequest request, object completion) except -1
    cdef bint on_answer(self, ProduceRequest request, object completion) except -1
    cdef bint on_partitions(self, list batches, ProduceAnswer answers) except -1
    cdef bint on_partition(self, Batch batch, ProduceAnswer answers) except -1
    cdef int learn_leaders(self, list batches, ProduceAnswer answers) except -1
    cdef int take_back(self, object node_id) except -1
    cdef int take_back_one(self, ProduceRequest request) except -1
    cdef int put_back(self, ProduceRequest request) except -1
    cdef int complete(self, PartitionQueue queue, Batch batch, int64_t base_offset, int64_t log_append_time) except -1

    # ---- methods that the subclass defines
    # _expire(now: float) -> None: fail the batches whose delivery.timeout.ms is over
    # _tell_failures() -> None: warn of the failures that nobody has looked at
    # _update_producer_state(now: float) -> float: get a producer id, resolve the sequences in doubt; seconds until the
    #     next call is due
    # _run_transactions(now: float) -> float: send the next request of a transaction; seconds until the next call is due
    # _wait_while_closing(now: float) -> float: seconds that the poll may last; 0 where this turn may be the last
    # _ask_for_leaders(topics: set[str]) -> None: ask for metadata of topics whose batches have no leader
    # _on_leaders(leaders: dict[tuple[str, int], tuple[int, int]], answer: ProduceAnswer) -> None: an answer names
    #     new leaders; (topic, partition): (node id, leader epoch)
    # _retry_or_fail(batch: Batch, error: KafkaError, answer: PartitionAnswer | None = None) -> None: the batch goes
    #     back into its queue, or gets its outcome
    # _retry_or_fail_all(batches: list[Batch], error: KafkaError) -> None: the same for each batch
    # _go_again(batches: list[Batch], error: BaseException, sent: bool) -> None: the Sender failed: batches with neither
    #     an outcome nor a place in a queue go again. `sent`: a broker may have them
    # _fail_unsupported(batches: list[Batch], error: UnsupportedVersionError) -> None: the broker takes no such records
    # _fail_unauthenticated(queues: list[PartitionQueue], error: AuthenticationError) -> None: fail what waits for a
    #     node that refuses us, or that we refuse
