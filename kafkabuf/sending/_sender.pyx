# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Drain ready batches into Produce requests, poll, handle the responses. Thread: Sender."""

cimport cython

from collections import deque

from libc.math cimport INFINITY
from libc.stdint cimport int64_t
from posix.unistd cimport usleep

from kafkabuf._pool cimport BufferPool
from kafkabuf.network._metrics cimport ProducerStats, TopicStats
from kafkabuf.cpython._sealed cimport seal
from kafkabuf.process._time cimport kb_monotonic
from kafkabuf.batches._accumulator cimport PartitionQueue
from kafkabuf.batches._batch cimport PENDING, Batch
from kafkabuf.batches._drain cimport DrainCore, Ready, Room
from kafkabuf.network._client cimport ClientCore
from kafkabuf.network._node cimport NodeCore
from kafkabuf.network._request cimport Completion, Request, new_request
from kafkabuf.protocol._frame cimport Frame
from kafkabuf.sending._produce cimport PartitionResponse, ProduceResponse, build_request, parse_response

from kafkabuf.clock import SystemClock
from kafkabuf.errors import (
    AuthenticationError, CorruptMessageError, NetworkError, UnsupportedVersionError, error_for_code, shown,
)
from kafkabuf.process.producer_log import producer_log
from kafkabuf.process.threads import new_waiter
from kafkabuf.sending._produce import PRODUCE

# Seconds. Metadata forgets topics that were not used for minutes, so a report each second is often enough.
cdef double KEEP_FRESH_EVERY = 1.0

# So many requests of full batches go ahead in a row. Then one request takes open batches too, that may go as well: the
# in-flight table stays full for as long as full batches come.
cdef int MOST_FULL_IN_A_ROW = 8

cdef enum:
    PRODUCE_API = 0
    DUPLICATE_SEQUENCE_NUMBER = 46

cdef object logger = producer_log("kafkabuf.producer")

cdef tuple LEADS_NO_MORE = (6, 74)  # NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH


@cython.final
cdef class ProduceRequest:
    """The batches of a Produce request: the context of the request's Completion."""

    cpdef Frame build(self, int correlation_id):
        cdef SenderCore s = self.sender
        cdef Frame frame = build_request(self.version, correlation_id, s.client_id, s.acks, s.request_timeout_ms,
                                         self.batches, s.transactional_id)
        self.built = True
        return frame


seal(ProduceRequest)


cdef class RecoveryPolicy:
    """What becomes of a batch that failed. Recovery in recovery.py defines the methods."""

    def __cinit__(self):
        self.errands = deque()
        self.tell_at = INFINITY

    cpdef object expire(self, double now):
        raise NotImplementedError

    cpdef object run_errands(self):
        raise NotImplementedError

    cpdef object tell(self):
        raise NotImplementedError

    cpdef object retry_or_fail(self, Batch batch, object error, PartitionResponse response=None):
        raise NotImplementedError

    cpdef object retry_or_fail_all(self, list batches, object error):
        raise NotImplementedError

    cpdef object go_again(self, list batches, object error, bint sent):
        raise NotImplementedError

    cpdef object fail_unsupported(self, list batches, object error):
        raise NotImplementedError

    cpdef object fail_unauthenticated(self, list queues, object error):
        raise NotImplementedError


cdef class UpkeepPolicy:
    """The steps that few turns have and that are about no batch. Upkeep in upkeep.py defines the methods."""

    cpdef object ask_for_leaders(self, set topics):
        raise NotImplementedError

    cpdef object on_leaders(self, dict leaders, ProduceResponse response):
        raise NotImplementedError

    cpdef double update_producer_state(self, double now) except? -1:
        raise NotImplementedError

    cpdef double run_transactions(self, double now) except? -1:
        raise NotImplementedError

    cpdef bint is_finished(self) except -1:
        raise NotImplementedError

    cpdef double wait_while_closing(self, double now) except? -1:
        raise NotImplementedError


@cython.final
cdef class SenderCore:
    """The steps of every turn."""

    def __init__(
        self, config, DrainCore accumulator not None, metadata, client, clock, ProducerStats stats not None,
        RecoveryPolicy recovery not None, UpkeepPolicy upkeep not None,
    ):
        accumulator.require_pool()
        self.recovery = recovery
        self.upkeep = upkeep
        self._accumulator = accumulator
        self._metadata = metadata
        self._client = client
        self.core = client if isinstance(client, ClientCore) else None
        self._clock = clock
        self.system_clock = type(clock) is SystemClock
        self._producer_state = accumulator.producer_state
        self.stats = stats
        self.client_id = config.client_id.encode()
        if config.transactional_id is not None:
            self.transactional_id = config.transactional_id.encode()
        self.acks = config.acks
        self.request_timeout_ms = config.request_timeout_ms
        self.retry_backoff = config.retry_backoff_ms / 1000
        # With acks=0 there is no response that could start a queued request. A Sender that compresses is seldom in the
        # poll call, which starts the queued requests.
        self.goes_ahead = config.acks != 0 and accumulator.codec is None
        self.ordered = config.max_in_flight_requests_per_connection == 1
        self.fresh_topics = set()
        self.full_in_a_row = {}
        self.many_queues = 8
        self.longest_wait = INFINITY
        self.completions = []

    cdef double now(self) except? -1:
        return kb_monotonic() if self.system_clock else self._clock.monotonic()

    def step(self):
        """Run one turn. False, without a turn, once there is nothing left to do."""
        if self._accumulator is None:
            raise TypeError(f"{type(self).__name__}.__init__ was not called")
        cdef object failure = None
        try:
            if self._accumulator.pool.disowned or (self.closing and self.upkeep.is_finished()):
                return False
            self.turn(INFINITY)
        except Exception as error:
            failure = error
        if failure is not None:
            self.pause_after(failure)
        return True

    cdef void pause_after(self, object failure) noexcept:
        """A turn has failed: log the error, and wait. A turn that fails at once each time must not use a whole core.

        Where there is no memory for words, wait without a word.
        """
        cdef bint paused = self._accumulator.pool.disowned
        try:
            if not paused:
                logger.error("the Sender's turn failed; the Sender goes on with the next turn", exc_info=failure)
                self._clock.wait(new_waiter(), self.retry_backoff)
                paused = True
        except BaseException:
            pass
        if not paused:
            with nogil:
                usleep(<unsigned int>(1e6 * min(max(self.retry_backoff, 0.001), 0.5)))

    def run_once(self, double max_wait=INFINITY):
        """Run one turn, which waits in `poll` for at most `max_wait` seconds."""
        self.turn(max_wait)

    cdef int turn(self, double max_wait) except -1:
        cdef double now = self.now()
        # A batch that another thread opens from here on does not change it: that thread ends the poll.
        cdef double until_expiry = self._accumulator.until_expiry(now)
        cdef double wait
        cdef Ready ready
        cdef BufferPool pool
        if self.unsent is not None:
            self.end_unsent()
        if self._accumulator.uncounted is not None:
            self._accumulator.count_failed()
        if self.failed is not None or self.handled < len(self.completions):
            self.handle_completions()
        if self.recovery.errands:
            self.recovery.run_errands()
        if self._accumulator.tables is not None:
            pool = self._accumulator.pool
            self._accumulator.tables.follow_use(pool.table.free_count * pool.slab_size)
        if until_expiry <= 0:
            self.recovery.expire(now)
            until_expiry = self._accumulator.until_expiry(now)
        if now >= self.recovery.tell_at:
            self.recovery.tell_at = INFINITY
            self.recovery.tell()
        if self._producer_state is not None and self._producer_state.needs_update:
            max_wait = min(max_wait, self.upkeep.update_producer_state(now))
        ready = self._accumulator.find_ready(now, self.rooms())
        if ready.leaderless_topics:
            self.upkeep.ask_for_leaders(ready.leaderless_topics)
        if self.upkeep.transactions is not None:
            max_wait = min(max_wait, self.upkeep.run_transactions(now))
        if self._accumulator.waits_since:
            self._accumulator.forget_idle(ready.queues_by_node)
        wait = min(max_wait, ready.next_check, until_expiry, self.recovery.tell_at - now)
        if ready.queues_by_node:
            wait = min(wait, self.send_to_all(ready.queues_by_node, ready.left_out, now))
        if self.looks_again:
            self.looks_again = False
            wait = 0.0
        if self.closing:
            # This turn may have ended the last batch: then nothing would wake the poll.
            wait = min(wait, self.upkeep.wait_while_closing(now))
        self.on_completions(self.poll(max(min(wait, self.longest_wait), 0.0)))
        return 0

    cdef dict rooms(self):
        """What each connected node takes in this turn. None where looking at every queue costs less."""
        cdef int64_t request = self._accumulator.max_request_size
        cdef NodeCore node
        cdef dict rooms
        cdef int slots, behind
        if self.core is None or len(self._accumulator.active) < self.many_queues:
            return None
        rooms = {}
        for node in list(self.core.requests.nodes.values()):
            slots = self.core.free_slots(node)
            if slots >= 0:
                behind = self.core.free_behind(node) if self.goes_ahead else 0
                if slots == 0 and behind > 0 and self.owes_open(node.node_id):
                    slots, behind = 1, behind - 1
                rooms[node.node_id] = Room(slots * request, behind * request)
        return rooms

    cdef double send_to_all(self, dict queues_by_node, set left_out, double now) except? -1:
        """Call send_to for each node. An error at one node must not delay other nodes or responses."""
        cdef double wait = INFINITY
        node_id = None
        try:
            for node_id, queues in queues_by_node.items():
                wait = min(wait, self.send_to(node_id, queues, node_id in left_out, now))
        except Exception:
            if self.unsent is not None:
                raise  # there is no memory to put its batches back: the next turn does that before it takes more
            logger.exception("sending to broker %s failed; the Sender tries again", node_id)
            nodes = list(queues_by_node)
            remaining = {other: queues_by_node[other] for other in nodes[nodes.index(node_id) + 1:]}
            wait = min(wait, self.retry_backoff, self.send_to_all(remaining, left_out, now))
        return wait

    cdef double send_to(self, object node_id, list queues, bint left_out, double now) except? -1:
        """Fill the node's in-flight table, and queue full batches behind it. Returns the seconds until the next try.

        `left_out`: the node has other queues, which found no room in this turn.
        """
        cdef list batches
        cdef double wait = INFINITY
        cdef bint taken = False, is_ready, full
        while True:
            is_ready = self.is_ready(node_id)
            if not is_ready and not (self.goes_ahead and self._client.takes_ahead(node_id)):
                wait = self.delay(node_id, queues)
                break
            taken = taken or is_ready
            full = not is_ready and not self.owes_open(node_id)
            if self.spare_request is None:
                self.spare_request = self.new_produce_request(None)
            batches = self._accumulator.drain_from(queues, now, full)
            if not batches:
                if is_ready and left_out:
                    wait = 0.0  # the batches took less room than was promised to them: they were compressed, or failed
                break
            taken = True
            # Send before anything that may raise: an error here would leave the drained batches in no queue.
            self.send(node_id, batches)
            self.count_full(node_id, full)
            self.keep_fresh(batches, now)
            self.count_sent(batches, now)
        if self._accumulator.availability_timeout > 0:
            self._accumulator.note_taken(node_id, taken, now)
        return wait

    cdef bint owes_open(self, object node_id) except -1:
        """Whether the node's open batches go next, because enough full batches went ahead of them."""
        return self.full_in_a_row.get(node_id, 0) >= MOST_FULL_IN_A_ROW

    cdef int count_full(self, object node_id, bint full) except -1:
        self.full_in_a_row[node_id] = self.full_in_a_row.get(node_id, 0) + 1 if full else 0
        return 0

    cdef double delay(self, object node_id, list queues) except? -1:
        """Seconds until the node may take requests. Fails the node's batches if the node refuses the client."""
        cdef double wait = INFINITY
        try:
            wait = self._client.connection_delay(node_id)
        except AuthenticationError as error:
            self.recovery.fail_unauthenticated(queues, error)
            wait = self.retry_backoff
        return wait

    cdef int keep_fresh(self, list batches, double now) except -1:
        """Tell metadata that the batches' topics are in use."""
        cdef Batch batch
        if now >= self.fresh_until:
            self.fresh_topics.clear()
            self.fresh_until = now + KEEP_FRESH_EVERY
        for batch in batches:
            if batch.topic not in self.fresh_topics:
                self.fresh_topics.add(batch.topic)
                self._metadata.add_topic(batch.topic)
        return 0

    cdef int count_sent(self, list batches, double now) except -1:
        """Count the batches of a Produce request in the metrics."""
        cdef ProducerStats stats = self.stats
        cdef Batch batch
        cdef TopicStats topic
        cdef int64_t records = 0
        cdef double size
        for batch in batches:
            size = <double>batch.stored.builder.position
            records += batch.stored.builder.count
            stats.batch_size.record(size, now)
            stats.compression.record(batch.compression, now)
            stats.queue_time.record((now - batch.created) * 1000.0, now)
            stats.record_size.record(size / batch.stored.builder.count, now)
            topic = stats.topic(batch.topic)
            topic.records.record(batch.stored.builder.count, now)
            topic.bytes.record(size, now)
            topic.compression.record(batch.compression, now)
        stats.records.record(<double>records, now)
        return 0

    cdef int send(self, object node_id, list batches) except -1:
        # No memory is needed from a failure on until the request is in `unsent`.
        cdef ProduceRequest request = self.spare_request
        cdef bint started = False
        self.spare_request = None
        request.batches = batches
        try:
            if self._accumulator.open_drained:
                request.share = self._accumulator.open_share(node_id)
                request.share_taken = self._accumulator.open_drained
            self.start(node_id, request)
            started = True
        except Exception as error:
            self.unsent_error = error
        if not started:
            self.looks_again = True
            self.unsent_node, self.unsent = node_id, request
            self.end_unsent()
        return 0

    cdef ProduceRequest new_produce_request(self, list batches):
        cdef ProduceRequest request = ProduceRequest.__new__(ProduceRequest)
        request.sender = self
        request.batches = batches
        return request

    cdef int start(self, object node_id, ProduceRequest request) except -1:
        self.count_request(request, 1)
        request.version = self.api_version(node_id)
        return self.hand_over(
            node_id, new_request(PRODUCE_API, request.version, request.build, request, self.acks != 0))

    cdef int end_unsent(self) except -1:
        """Without memory the request stays in `unsent`, for the next turn."""
        try:
            self.not_sent(self.unsent_node, self.unsent, self.unsent_error)
        except MemoryError:
            raise
        except BaseException:
            self.unsent = self.unsent_error = None
            raise
        self.unsent = self.unsent_error = None
        return 0

    cdef int not_sent(self, object node_id, ProduceRequest request, object error) except -1:
        """The client did not take the request: put its batches back, or fail them."""
        cdef Batch batch
        if request.in_flight:
            self.count_request(request, -1)
        if isinstance(error, UnsupportedVersionError):
            self.recovery.fail_unsupported(request.batches, error)
            return 0
        logger.error("a request to broker %s could not be sent; the Sender tries again", node_id, exc_info=error)
        if request.built:
            # The connection may hold the frame. A closed connection no longer reads the slabs.
            self._client.fail_connection(node_id, NetworkError(f"a request could not be sent: {shown(error)}"))
            for batch in request.batches:
                batch.end_read()
        self.recovery.go_again(request.batches, error, request.built)
        return 0

    cdef int count_request(self, ProduceRequest request, int change) except -1:
        cdef Batch batch
        request.in_flight = change > 0
        if request.share is not None:
            request.share.in_flight += change * request.share_taken
        for batch in request.batches:
            self.count_in_flight(batch, change)
        return 0

    cdef int count_in_flight(self, Batch batch, int change) except -1:
        """Count a batch in flight, and mute the partition if the Sender must send it one batch at a time.

        It must if max.in.flight.requests.per.connection is 1, and until the leader has taken a batch. A leader that
        was just elected, or that has just refused a batch, may refuse some of the next batches and take others: with
        several in flight the records would come out of order. The broker keeps the order of batches with numbers, and
        _sequences.pyx decides which of them may go.
        """
        cdef PartitionQueue queue = self._accumulator.queue_for(batch)
        queue.in_flight += change
        queue.muted = queue.doubted or (
            queue.in_flight > 0 and (self.ordered or not (queue.proven or self._producer_state is not None)))
        return 0

    # ---- the client: a real one without the cost of Python calls, any other (of a test) by its methods ---------------

    cdef bint is_ready(self, object node_id) except -1:
        return self._client.ready(node_id) if self.core is None else self.core.is_ready(node_id)

    cdef int api_version(self, object node_id) except -1:
        if self.core is None:
            return self._client.api_version(node_id, PRODUCE, self.upkeep.produce_versions)
        return self.core.agreed_version(node_id, PRODUCE_API, self.upkeep.produce_versions)

    cdef int hand_over(self, object node_id, Request request) except -1:
        if self.core is None:
            self._client.send(node_id, request)
        else:
            self.core.requests.send(self.core.connected_node(node_id), request)
        return 0

    cdef list poll(self, double wait):
        return self._client.poll(wait) if self.core is None else self.core.poll_for(wait)

    cdef int keep_pause(self, Completion completion, int throttle_ms) except -1:
        if self.core is None:
            self._client.throttle(completion.node_id, completion.request, throttle_ms)
        else:
            self.core.requests.keep_pause(completion.node_id, completion.request, throttle_ms)
        return 0

    # ---- responses ---------------------------------------------------------------------------------------------------

    cdef int on_completions(self, list completions) except -1:
        """Handle all completions of one poll."""
        if self.failed is not None or self.handled < len(self.completions):
            self.handle_completions()
        self.completions = completions
        self.handled = 0
        return self.handle_completions()

    cdef int handle_completions(self) except -1:
        """An error with one completion does not stop the others. The next turn goes on after a lack of memory."""
        while self.failed is not None or self.handled < len(self.completions):
            if self.failed is not None:
                self.end_failed()
            try:
                while self.handled < len(self.completions):
                    self.handled += 1
                    self.end_request(<Completion?>self.completions[self.handled - 1])
            except Exception as error:
                # No memory is needed from here to the end of the clause.
                self.failure = error
                self.failed = self.completions[self.handled - 1]
        return 0

    cdef int end_failed(self) except -1:
        logger.error("handling a request's completion failed", exc_info=self.failure)
        if self._accumulator.uncounted is not None:
            self._accumulator.count_failed()
        try:
            self.clean_up(self.failed, self.failure)
        except MemoryError:
            raise  # the next turn tries again
        except Exception:
            logger.exception("cleaning up after a request failed")
        self.failed = self.failure = None
        return 0

    def end_requests(self, list completions not None):
        """Handle the remaining completions at the Sender's end."""
        self.on_completions(completions)

    cdef int clean_up(self, object completion, object error) except -1:
        """After an error in end_request, handle the batches that have neither an outcome nor a place in a queue.

        A batch that the response names gets its outcome from the response. The other batches go again.
        """
        cdef ProduceRequest request
        cdef ProduceResponse response = None
        cdef Batch batch
        context = completion.request.context
        if type(context) is not ProduceRequest:
            if isinstance(error, MemoryError):
                context(completion)  # nobody would ask for the response again
            return 0
        request = <ProduceRequest>context
        if request.in_flight:
            self.count_request(request, -1)
        try:
            if completion.error is None and completion.response is not None:
                response = parse_response(request.version, completion.response)
        except CorruptMessageError:
            pass
        for batch in request.batches:
            try:
                if response is not None and batch.outcome == PENDING and not self._accumulator.holds(batch):
                    self.on_partition(batch, response)
            except MemoryError:
                raise  # the next turn tries again: the response says what the batch's outcome is
            except Exception:
                logger.exception("handling the response for %r failed", batch)
        self.recovery.go_again(request.batches, error, True)
        return 0

    cdef int end_request(self, Completion completion) except -1:
        """A request has ended: each of its batches gets its outcome, or goes back into its queue.

        The context of any other request is a callable that takes the Completion.
        """
        cdef ProduceRequest request
        cdef Batch batch
        if completion is None or completion.request is None:
            raise TypeError("there is no Completion, or the Completion has no request")
        context = completion.request.context
        if type(context) is not ProduceRequest:
            context(completion)
            return 0
        request = <ProduceRequest>context
        for batch in request.batches:
            batch.end_read()
        if not self.end_batches(request, completion):
            self.take_back(completion.node_id)
        self.count_request(request, -1)
        return 0

    cdef int take_back(self, object node_id) except -1:
        # A batch must be repeated, so the Sender takes back the requests that are queued behind the in-flight table. A
        # broker remembers only five batches: no further batches may be on their way before the repeated batch arrives.
        for request in reversed(self._client.take_back(node_id, PRODUCE)):
            self.take_back_one(<ProduceRequest?>request.context)
        return 0

    cdef int take_back_one(self, ProduceRequest request) except -1:
        # Nothing here runs Python code, so that no exception leaves a request half taken back.
        cdef Batch batch
        for batch in request.batches:
            batch.end_read()
        self.put_back(request)
        self.count_request(request, -1)
        return 0

    cdef int put_back(self, ProduceRequest request) except -1:
        """Put the batches of a request back as they were. Neither this request nor any later request was sent."""
        cdef PartitionQueue queue
        cdef Batch batch
        for batch in request.batches:
            if batch.outcome == PENDING:
                queue = self._accumulator.queue_for(batch)
                if self._producer_state is not None:
                    self._producer_state.unnumber(queue, batch)
                self._accumulator.put_back(queue, batch)
        return 0

    cdef bint end_batches(self, ProduceRequest request, Completion completion) except -1:
        """Each batch gets its outcome or goes back. True: the broker has all batches and takes further requests."""
        cdef Batch batch
        if completion.error is not None:
            if completion.never_left:
                self.put_back(request)
                return False
            self.recovery.retry_or_fail_all(request.batches, completion.error)
            return False
        if completion.response is None:  # acks=0: the client only knows that the request is written
            for batch in request.batches:
                self.complete(self._accumulator.queue_for(batch), batch, -1, -1)
            return True
        return self.on_response(request, completion)

    cdef bint on_response(self, ProduceRequest request, Completion completion) except -1:
        cdef ProduceResponse response = None
        cdef bint has_all
        try:
            response = parse_response(request.version, completion.response)
        except CorruptMessageError as error:
            self._client.fail_connection(completion.node_id, error)
            self.recovery.retry_or_fail_all(request.batches, error)
        if response is None:
            return False
        self.keep_pause(completion, response.throttle_ms)
        self.stats.answered(completion.node_id, completion.latency, self.now())
        has_all = self.on_partitions(request.batches, response)
        if not has_all:
            self.learn_leaders(request.batches, response)
        if len(response.partitions) != len(request.batches) or not (has_all or names_all(request.batches, response)):
            error = CorruptMessageError("a Produce response names other partitions than the request")
            self._client.fail_connection(completion.node_id, error)
        return has_all and response.throttle_ms == 0  # the pause holds for queued requests too: they are taken back

    cdef bint on_partitions(self, list batches, ProduceResponse response) except -1:
        cdef Batch batch
        cdef bint has_all = True
        for batch in batches:
            if not self.on_partition(batch, response):
                has_all = False
        return has_all

    cdef bint on_partition(self, Batch batch, ProduceResponse response) except -1:
        """Give the batch its outcome, or retry it. Returns whether the broker has the batch."""
        cdef PartitionResponse result = response.partitions.get((batch.topic, batch.partition))
        if result is None:
            text = f"the broker's response leaves out {batch.topic}-{batch.partition}"
            self.recovery.retry_or_fail(batch, CorruptMessageError(text))
            return False
        if result.error_code == 0:
            self.complete(self._accumulator.queue_for(batch), batch, result.base_offset, result.log_append_time)
        elif result.error_code == DUPLICATE_SEQUENCE_NUMBER:
            # The broker appended the batch long ago, and has forgotten the offset.
            self.complete(self._accumulator.queue_for(batch), batch, -1, -1)
        else:
            self.recovery.retry_or_fail(batch, error_for_code(result.error_code, result.message), result)
            return False
        return True

    cdef int learn_leaders(self, list batches, ProduceResponse response) except -1:
        """Tell metadata of the new leaders that the response names."""
        cdef Batch batch
        cdef PartitionResponse result
        cdef dict leaders = {}
        for batch in batches:
            result = response.partitions.get((batch.topic, batch.partition))
            if result is not None and result.leader >= 0 and result.error_code in LEADS_NO_MORE:
                leaders[batch.topic, batch.partition] = (result.leader, result.leader_epoch)
        if leaders:
            self.upkeep.on_leaders(leaders, response)
        return 0

    cdef int complete(
        self, PartitionQueue queue, Batch batch, int64_t base_offset, int64_t log_append_time
    ) except -1:
        queue.proven = True
        if queue.last_error is not None:
            queue.last_error = None
        if self._producer_state is not None:
            self._producer_state.completed(queue, batch, base_offset)
        batch.complete(base_offset, log_append_time)
        return 0


cdef bint names_all(list batches, ProduceResponse response) except -1:
    cdef Batch batch
    for batch in batches:
        if (batch.topic, batch.partition) not in response.partitions:
            return False
    return True
