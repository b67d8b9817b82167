# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Finds the batches that are ready and takes them, at most one batch of a partition into each request."""

cimport cython
from libc.math cimport INFINITY

from kafkabuf.process._lock cimport enter_lock, leave_lock
from kafkabuf._records cimport LARGEST_BATCH, PARTITION_OVERHEAD, finish
from kafkabuf.batches._accumulator cimport AccumulatorCore, PartitionQueue
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._sequences cimport SequenceCore
from kafkabuf.memory._order cimport kb_in_order

# Seconds. While a partition gets no batch its topic may be deleted and made again, long before metadata reports it. The
# leader then does not know the producer's numbers. So after this time a leader is not proven and first gets one batch
# alone, which costs the batches behind it one round trip.
cdef double PROOF_LASTS = 1.0

# With this number of queues or more, open batches may take all memory along, unless their leaders have shares of it.
cdef Py_ssize_t MANY_QUEUES = 8

# The compression thread leaves LEFT_TO_SENDER batches at the front to the Sender, which would
# else wait for them. It looks at FARTHEST_AHEAD places at most: a look must not cost more than a batch.
cdef enum:
    LEFT_TO_SENDER = 4
    FARTHEST_AHEAD = 64


@cython.final
cdef class Ready:
    """The result of `RecordAccumulator.ready`."""

    def __cinit__(self):
        self.queues_by_node = {}
        self.leaderless_topics = set()
        self.left_out = set()
        self.next_check = INFINITY


@cython.final
cdef class Room:
    """What a node takes in this turn, in bytes of batches."""

    def __cinit__(self, int64_t any_batches, int64_t full_batches):
        self.any_batches = any_batches
        self.full_batches = full_batches


@cython.final
cdef class OpenShare:
    """The memory that one node's open batches take while memory is scarce.

    Small batches must leave memory to grow in. A batch may go before it is full, because a thread waits for memory or
    linger.ms is over. Ten thousand partitions then fill requests with batches of one record, each in 1 KiB. If such
    requests hold all memory, the next batches find none to grow in and have one record again, for as long as the load
    lasts. This needs no waiting thread: each response frees memory, the next turn sees that no thread waits, and takes
    the crumbs that linger.ms has let go. So a batch in a block counts by the memory that it holds (`cost`), and where
    less than three quarters of the slabs are free, the open batches in flight hold at most half of the memory, each
    leader's an equal share: many nodes with five requests each would else hold all of it. Full batches need no share.
    A leader with no open batch in flight gets one batch.
    """

    cdef int begin_turn(self, int64_t turn) except -1:
        if self.turn != turn:
            self.turn = turn
            self.promised = 0
        return 0


cdef class DrainCore(AccumulatorCore):
    """The Sender's steps of every turn. `RecordAccumulator` adds the rare steps."""

    def __init__(
        self, pool, clock, *, linger, delivery_timeout, max_request_size, SequenceCore producer_state=None, **core
    ):
        super().__init__(pool, clock, **core)
        self.linger = linger
        self.delivery_timeout = delivery_timeout
        self.max_request_size = max_request_size
        self.producer_state = producer_state
        self.flushes = set()
        self.open_shares = {}
        self.leaders = 1

    def ready(self, double now, dict rooms=None):
        """The queues with a batch that may go now, by their leader's node id. `rooms`: node id -> Room."""
        self.require_pool()
        return self.find_ready(now, rooms)

    cdef Ready find_ready(self, double now, dict rooms):
        cdef Ready answer = Ready.__new__(Ready)
        cdef PartitionQueue queue
        cdef Room room = None
        cdef OpenShare share = None
        cdef list queues = None
        cdef bint exhausted = self.pool.exhausted(), scarce = not self.pool.plenty()
        cdef bint shares = scarce and len(self.active) >= MANY_QUEUES
        cdef int64_t most_open = self.pool.total // 2 // self.leaders if shares else 0
        cdef double wait
        cdef int leader = -1, leaders = 0
        if self.returning is not None:
            self.put_back_all()
        self.turns += shares
        for queue in self.active_queues():  # a copy: send() adds queues while this loop runs
            if queue.leader < 0:
                answer.leaderless_topics.add(queue.topic)
                continue
            if leader != queue.leader:
                leader = queue.leader
                queues = answer.queues_by_node.get(leader)
                room = None if rooms is None else rooms.get(leader)
                if shares:
                    share = self.open_share(leader)
                    leaders += share.turn != self.turns
                    share.begin_turn(self.turns)
            if share is not None and share.in_flight + share.promised >= most_open and self.is_open(queue):
                continue  # a response will make room
            if room is not None and queues is not None and self.finds_no_room(queue, room):
                answer.left_out.add(leader)
                continue
            wait = self.time_until_sendable(queue, now, exhausted)
            if wait > 0:
                answer.next_check = min(answer.next_check, wait)
                continue
            if queues is None:
                queues = answer.queues_by_node[leader] = []
            queues.append(queue)
            if room is not None or share is not None:
                self.take_room(queue, room, share, exhausted)
        if leaders:
            self.leaders = leaders
        return answer

    cdef OpenShare open_share(self, object node_id):
        cdef OpenShare share = self.open_shares.get(node_id)
        if share is None:
            share = self.open_shares[node_id] = OpenShare.__new__(OpenShare)
        return share

    cdef bint is_open(self, PartitionQueue queue) noexcept:
        cdef bint answer
        enter_lock(&self.pool.guard)
        answer = queue.open is not None and len(queue.batches) == 1
        leave_lock(&self.pool.guard)
        return answer

    cdef bint finds_no_room(self, PartitionQueue queue, Room room) noexcept:
        if room.any_batches > 0:
            return False
        return room.full_batches <= 0 or self.is_open(queue)

    cdef int64_t cost(self, Batch batch, bint exhausted) noexcept:
        if exhausted or batch.extent < 0:
            return self.pool.size_of(batch.extent)
        return <int64_t>batch.stored.builder.position

    cdef int take_room(self, PartitionQueue queue, Room room, OpenShare share, bint exhausted) except -1:
        cdef int64_t size = 0
        cdef Batch batch
        enter_lock(&self.pool.guard)
        try:
            if queue.batches:  # another thread may have purged them since the check
                batch = <Batch>queue.batches[0]
                size = self.cost(batch, exhausted)
                if share is not None and not batch.closed:
                    share.promised += self.pool.size_of(batch.extent)
        finally:
            leave_lock(&self.pool.guard)
        if room is None:
            return 0
        if room.any_batches > 0:
            room.any_batches -= size
        else:
            room.full_batches -= size
        return 0

    cdef double time_until_sendable(self, PartitionQueue queue, double now, bint exhausted) except? -1:
        cdef Batch head
        cdef bint followed
        if queue.muted:
            return INFINITY  # an event, not time, will change that
        enter_lock(&self.pool.guard)
        try:
            if not queue.batches:
                return INFINITY
            head = <Batch>queue.batches[0]
            if head.claimed:
                return INFINITY
            followed = len(queue.batches) > 1
        finally:
            leave_lock(&self.pool.guard)
        if self.producer_state is not None and not self.producer_state.may_send(queue, head):
            return INFINITY
        if head.attempts:
            # The back-off is for the leader that refused the batch. A new leader gets the batch at once (KIP-951).
            return 0.0 if queue.leader_epoch > head.leader_epoch else max(head.retry_at - now, 0.0)
        if head.closed or exhausted or self.closed or self.flushes or followed:
            return 0.0
        return max(head.created + self.linger - now, 0.0)

    def drain(self, list queues not None, double now, bint full=False):
        """Take at most one batch of each queue: together at most max.request.size, unless the first alone is larger.

        `full`: take closed batches only.
        """
        self.require_pool()
        for queue in queues:
            if type(queue) is not PartitionQueue:
                raise TypeError(f"drain() takes PartitionQueues, found {type(queue).__name__}")
        return self.drain_from(queues, now, full)

    cdef list drain_from(self, list queues, double now, bint full):
        cdef list batches = []
        cdef PartitionQueue queue
        cdef Batch batch
        cdef int64_t size = 0, cost, most
        self.open_drained = 0
        cdef bint exhausted = self.pool.exhausted(), scarce = not self.pool.plenty(), empty
        if self.returning is not None:
            self.put_back_all()
        try:
            for queue in queues:
                if self.time_until_sendable(queue, now, exhausted) > 0:
                    continue
                most = min(self.max_request_size, <int64_t>LARGEST_BATCH - PARTITION_OVERHEAD * <int64_t>len(batches))
                enter_lock(&self.pool.guard)
                try:
                    # Another thread may have run since the check: a bulk append may have claimed the batch.
                    batch = <Batch>queue.batches[0]
                    if batch.claimed or (full and not batch.closed):
                        continue
                    cost = self.cost(batch, exhausted)
                    if batches and size + cost > most:
                        break
                    empty = batch.stored.builder.count == 0
                    if scarce and not batch.closed:
                        self.open_drained += self.pool.size_of(batch.extent)
                    if not empty:
                        batches.append(batch)  # first: if it fails for want of memory, the batch stays in its queue
                    self.take(queue)
                finally:
                    leave_lock(&self.pool.guard)
                if empty:  # the send() that opened it has failed for want of memory
                    batch.complete(-1, -1)
                    continue
                if queue.in_flight == 0 and now - queue.drained_at > PROOF_LASTS:
                    queue.proven = False
                queue.drained_at = now
                self.make_ready(queue, batch)
                size += cost
        except BaseException:
            self.returning = batches
            self.put_back_all()
            raise
        return batches

    cdef int put_back_all(self) except -1:
        """Queue the batches of a drain that failed. Those for which there is no memory stay in `returning`."""
        cdef PartitionQueue queue
        cdef Batch batch
        while self.returning:
            batch = <Batch>self.returning[len(self.returning) - 1]
            queue = self.queue_for(batch)
            if batch in queue.batches:  # the call before this one found no memory for `active`
                self.active[queue] = None
            else:
                self.put_back(queue, batch)
            self.returning.pop()
        self.returning = None
        return 0

    def drain_one(self, PartitionQueue queue not None):
        """Take, close and number the oldest batch. None if the queue is empty or a bulk append writes to the batch."""
        cdef Batch batch
        self.require_pool()
        enter_lock(&self.pool.guard)
        try:
            if not queue.batches or queue.claimed:
                return None
            batch = self.take(queue)
        finally:
            leave_lock(&self.pool.guard)
        try:
            self.make_ready(queue, batch)
        except BaseException:
            self.put_back(queue, batch)
            raise
        return batch

    cdef Batch take(self, PartitionQueue queue):
        cdef Batch batch = queue.batches.popleft()
        if batch is queue.open:
            queue.close_open_batch()
        del self.active[queue]
        if queue.batches:
            self.active[queue] = None
        return batch

    cdef int make_ready(self, PartitionQueue queue, Batch batch) except -1:
        cdef SequenceCore state = self.producer_state
        batch.close()
        batch.leader_epoch = max(batch.leader_epoch, queue.leader_epoch)
        if batch.attempts == 0 and self.codec is not None and not batch.tried:
            if self.wake_compression is not None and len(queue.batches) + len(self.active) > LEFT_TO_SENDER + 1:
                self.wake_compression()
            self.compress(batch)
        if state is not None:
            state.number(queue, batch)
        if batch.attempts == 0 or batch.stored.renumbered:
            # First: no broker has a batch that is drained again, under whatever numbers. Now its new numbers count.
            batch.stored.renumbered = False
            kb_in_order()
            finish(&batch.stored.builder, batch.stored.producer_id, batch.stored.producer_epoch,
                   batch.stored.base_sequence, state is not None and state.transactional)
        return 0

    def compress_ahead(self):
        """Compress a batch before the Sender takes it (Thread: compression). Returns False if no batch waits for that.

        The thread claims the batch meanwhile: the Sender leaves it alone, and if it expires or is purged it keeps its
        slab until the codec has returned.
        """
        cdef PartitionQueue queue
        cdef Batch batch
        cdef bint is_next
        self.require_pool()
        if self.scratches < 2:
            raise ValueError("use_codec() has made no scratch for a second thread")
        enter_lock(&self.pool.guard)
        try:
            batch = self.claim_ahead()
        finally:
            leave_lock(&self.pool.guard)
        if batch is None:
            return False
        queue = self.queue_for(batch)
        try:
            batch.compress(self.codec, self.scratch + self.scratch_size, self.scratch_size)
        finally:
            enter_lock(&self.pool.guard)
            batch.unclaim()
            is_next = len(queue.batches) > 0 and queue.batches[0] is batch
            leave_lock(&self.pool.guard)
            if is_next:
                self.wakeup()  # the Sender may have found the batch claimed
        return True

    cdef Batch claim_ahead(self):
        cdef PartitionQueue queue
        cdef Batch batch
        cdef Py_ssize_t i, place = 0
        for queue in self.active:
            for i in range(len(queue.batches)):
                place += 1
                if place > FARTHEST_AHEAD:
                    return None
                batch = <Batch>queue.batches[i]
                # A part of a split batch shares its slab with others. A larger batch does not fit the scratch.
                if (place > LEFT_TO_SENDER and batch.closed and not batch.claimed and not batch.tried
                        and batch.attempts == 0 and batch.whole is None and batch.parts is None
                        and <Py_ssize_t>batch.stored.builder.position <= self.batch_size):
                    batch.claim()
                    return batch
        return None

    cdef int note_taken(self, object node_id, bint taken, double now) except -1:
        enter_lock(&self.pool.guard)
        try:
            if taken:
                self.waits_since.pop(node_id, None)
                self.slow_nodes.discard(node_id)
            elif now - <double>self.waits_since.setdefault(node_id, now) > self.availability_timeout:
                self.slow_nodes.add(node_id)
        finally:
            leave_lock(&self.pool.guard)
        return 0

    cdef int forget_idle(self, dict queues_by_node) except -1:
        for node_id in [node_id for node_id in self.waits_since if node_id not in queues_by_node]:
            del self.waits_since[node_id]
            self.slow_nodes.discard(node_id)
        return 0

    def holds(self, Batch batch not None):
        """Whether the batch waits in its queue."""
        cdef PartitionQueue queue = self.queue_for(batch)
        enter_lock(&self.pool.guard)
        try:
            return batch in queue.batches
        finally:
            leave_lock(&self.pool.guard)

    def queue_of(self, Batch batch not None):
        """The queue that the batch came from."""
        return self.queue_for(batch)

    def time_to_expiry(self, double now):
        """Seconds until the oldest batch's delivery.timeout.ms is over."""
        return self.until_expiry(now)

    cdef double until_expiry(self, double now) except? -1:
        cdef Batch oldest = self.first_incomplete()
        return INFINITY if oldest is None else oldest.created + self.delivery_timeout - now
