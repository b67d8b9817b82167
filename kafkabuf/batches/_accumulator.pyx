# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Opening, sealing and compressing of batches, and their places in the queues."""

cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint64_t

from collections import OrderedDict, deque
from threading import get_ident

from kafkabuf._pool cimport SCRATCH, BufferPool
from kafkabuf._records cimport LARGEST_BATCH, Record, has_room, size_upper_bound
from kafkabuf.batches._batch cimport PENDING, Batch, give_back_claims

from kafkabuf.batches.compression import scratch_size
from kafkabuf.errors import ClosedError, ConfigError, RecordTooLargeError


cdef object uninitialized(object self):
    return TypeError(f"{type(self).__name__}.__init__ was not called")


@cython.final
cdef class PartitionQueue:
    """Batches of one partition, oldest first."""

    def __cinit__(self, str topic not None, int partition):
        self.topic = topic
        self.partition = partition
        self.batches = deque()
        self.in_sequence = []
        self.leader = self.leader_epoch = self.producer_id = self.producer_epoch = self.last_acked = -1
        self.last_acked_offset = -1
        self.drained_at = INFINITY

    cpdef int follow(self, int leader, int leader_epoch=-1) except -1:
        """The partition's leader is this node, elected in this epoch, -1: unknown. A new one has yet to prove itself.

        So has the same node that was elected anew: it may have followed another meanwhile, or lost the end of its log.
        """
        if leader != self.leader or (leader_epoch != self.leader_epoch >= 0):
            self.proven = False
        self.leader = leader
        self.leader_epoch = leader_epoch
        return 0

    cdef int begin_again(self) except -1:
        """The topic was deleted and made again: what is known of offsets and leaders was of another log.

        Numbers go on: a log that knows nothing of the producer takes whatever comes first, and one batch comes first.
        """
        cdef Batch batch
        self.proven = False
        self.leader_epoch = -1
        self.last_acked_offset = -1
        for batch in self.batches:
            batch.leader_epoch = -1
        return 0

    cdef int seal(self) except -1:
        """The open batch takes no further record."""
        if self.open is not None:
            self.filled += <int64_t>self.open.builder.position
            self.open.close()
            self.open = None
        return 0

    @property
    def head(self):
        """The oldest batch, or None."""
        return self.batches[0] if self.batches else None

    @property
    def claimed(self):
        """Whether a bulk append is writing to the oldest batch."""
        return len(self.batches) > 0 and (<Batch>self.batches[0]).claimed

    def __repr__(self):
        return f"PartitionQueue({self.topic}-{self.partition}, {len(self.batches)} batches)"


cdef bint comes_before(Batch one, Batch other) noexcept:
    return one.first < other.first if one.number == other.number else one.number < other.number


@cython.final
cdef class TopicQueues:
    """The partitions of one topic, and which of them is sticky now (KIP-480, KIP-794)."""

    def __cinit__(self, str name not None, int partitions, uint64_t seed=0x9E3779B97F4A7C15, int64_t batch_size=16384,
                  bint adaptive=True, set slow_nodes=None):
        if partitions < 1:
            raise ValueError(f"a topic has at least one partition, found {partitions}")
        self.name = name
        self.queues = []
        self.random = seed | 1
        self.batch_size = batch_size
        self.adaptive = adaptive
        self.slow_nodes = slow_nodes if slow_nodes is not None else set()
        self.grow(partitions)

    def grow(self, int partitions):
        """There are so many partitions at least; the queues of those there are stay."""
        cdef PartitionQueue queue
        while len(self.queues) < partitions:
            # Making a queue may run the collector, and that another thread that grows the topic.
            queue = PartitionQueue(self.name, len(self.queues))
            if queue.partition == len(self.queues):
                self.queues.append(queue)
        self.partitions = max(self.partitions, partitions)
        if self.sticky is None and self.partitions:
            self.next_sticky()

    def follow(self, list leaders not None, list epochs not None, topic_id=None):
        """What metadata says now: each partition's leader and its epoch, -1 where unknown. Thread: Sender.

        Another id, or fewer partitions, mean that the topic was deleted and made again.
        """
        # Copied, for the caller's may change, by an __int__ of theirs for one.
        cdef list nodes = [<int>leader for leader in leaders], elected = [<int>epoch for epoch in epochs]
        cdef Py_ssize_t number, count = len(nodes)
        cdef bint other_id = topic_id is not None and self.topic_id is not None and topic_id != self.topic_id
        cdef bint made_again = other_id or count < self.partitions
        if count == 0:
            raise ValueError(f"topic {self.name!r} has a partition at least")
        if len(elected) != count:
            raise ValueError(f"topic {self.name!r} has {count} leaders and {len(elected)} epochs: one each belongs to "
                             f"a partition")
        if topic_id is not None:
            self.topic_id = topic_id
        self.grow(count)
        # No Python runs from here until the sticky partition is one of those there are.
        for number in range(len(self.queues)):
            if made_again:
                (<PartitionQueue>self.queues[number]).begin_again()
            if number < count:
                (<PartitionQueue>self.queues[number]).follow(nodes[number], elected[number])
            else:
                (<PartitionQueue>self.queues[number]).follow(-1)
        self.partitions = count
        if self.sticky.partition >= count:
            self.sticky = <PartitionQueue>self.queues[0]
            self.next_sticky()

    def forget_leaders(self):
        """Metadata has forgotten the topic, which nobody has used for long: it is asked for before more is sent."""
        cdef PartitionQueue queue
        for queue in self.queues:
            queue.follow(-1)

    @property
    def sticky_partition(self):
        return self.sticky.partition

    cdef int leave(self, PartitionQueue queue, int64_t size) except -1:
        cdef int64_t given = queue.filled - self.sticky_from
        if queue is self.sticky and given > 0 and given + size >= self.batch_size:
            self.next_sticky()
        return 0

    cdef int next_sticky(self) except -1:
        """Draw a partition: the fewer batches wait for it, the likelier, among those whose leader takes requests."""
        cdef PartitionQueue queue
        cdef Py_ssize_t longest = 0
        cdef uint64_t total = 0, drawn
        cdef list able = self.able()
        # No object is made from here on, so that no other thread changes a queue between adding up and drawing.
        if self.adaptive:
            for queue in able:
                longest = max(longest, len(queue.batches))
        for queue in able:
            total += self.weight(queue, longest)
        self.random ^= self.random << 13
        self.random ^= self.random >> 7
        self.random ^= self.random << 17
        drawn = self.random % total
        for queue in able:
            if drawn < self.weight(queue, longest):
                break
            drawn -= self.weight(queue, longest)
        self.sticky = queue
        self.sticky_from = queue.filled
        return 0

    cdef list able(self):
        """Those with a leader that takes requests; or with any leader; or all there are, where none has one."""
        cdef list led = [queue for queue in self.queues if (<PartitionQueue>queue).leader >= 0]
        if self.adaptive and self.slow_nodes:
            quick = [queue for queue in led if (<PartitionQueue>queue).leader not in self.slow_nodes]
            return quick or led or self.queues[:self.partitions]
        return led or self.queues[:self.partitions]

    cdef uint64_t weight(self, PartitionQueue queue, Py_ssize_t longest) except 0:
        return <uint64_t>(longest + 1 - len(queue.batches)) if self.adaptive else 1


cdef class AccumulatorCore:
    """State and the steps taken with every batch. `RecordAccumulator` adds the Sender's questions."""

    def __init__(self, BufferPool pool not None, clock, *, magic=2, batch_size=16384, wakeup=lambda: None,
                 availability_timeout=0.0):
        if self.pool is not None:
            raise ValueError("an accumulator is initialized once: batches of before may be under way")
        self.pool = pool
        pool.on_exhausted = wakeup
        self.clock = clock
        self.wakeup = wakeup
        self.magic = magic
        self.batch_size = min(<Py_ssize_t>batch_size, <Py_ssize_t>LARGEST_BATCH)
        self.availability_timeout = availability_timeout
        self.topics = {}
        self.nonwaiting_allocators = {}
        self.waits_since = {}
        self.slow_nodes = set()
        self.active = OrderedDict()
        self.incomplete = OrderedDict()

    cdef Batch open_batch(self, PartitionQueue queue, Record* r, object deadline):
        cdef Py_ssize_t n_slabs = self.slabs_for(r)
        cdef Py_ssize_t slab
        if queue.open is not None:
            if has_room(&queue.open.builder, r):
                return queue.open
            queue.seal()
        self.require_open()
        if n_slabs > self.pool.slab_count - self.scratch_slabs:
            raise RecordTooLargeError(f"the record needs up to {size_upper_bound(self.magic, r)} bytes, more than "
                                      f"buffer.memory ({self.pool.total}) holds")
        slab = self.pool.try_allocate(n_slabs)
        if slab < 0:
            allocate = self.nonwaiting_allocators.get(get_ident())
            give_back_claims()
            slab = self.pool.wait_allocate(n_slabs, deadline) if allocate is None else allocate(n_slabs)
            # The GIL was free meanwhile. Whoever opened a batch here in that time has room for this record too, or not.
            if queue.open is not None:
                if has_room(&queue.open.builder, r):
                    self.pool.release(slab, n_slabs)
                    return queue.open
                queue.seal()
        return self.new_batch(queue, slab, n_slabs)

    def refuse_callback(self, n_slabs):
        """The entry of the Sender's thread in `nonwaiting_allocators`."""
        self.require_pool()
        raise self.pool.no_memory(
            f"buffer.memory ({self.pool.total} bytes) is full, and a callback's send() cannot wait: memory is freed by "
            f"the thread that runs the callbacks. Send from another thread, or raise buffer.memory{self.pool.why()}")

    cdef int require_pool(self) except -1:
        if self.pool is None:
            raise uninitialized(self)
        return 0

    cdef int require_open(self) except -1:
        if self.closed:
            raise ClosedError("the producer is closed")
        if self.refusal is not None:
            raise self.refusal()
        return 0

    def seal_all(self):
        """No open batch takes a further record."""
        cdef PartitionQueue queue
        for queue in list(self.active):
            queue.seal()

    cdef Batch new_batch(self, PartitionQueue queue, Py_ssize_t slab, Py_ssize_t n_slabs):
        # Asking the clock may run another thread, and so may making the object, by way of the garbage collector;
        # nothing after that does. A batch that came after `closed` might find no Sender left to end it.
        cdef Batch batch
        try:
            batch = Batch.__new__(Batch, queue.topic, queue.partition, self.clock.monotonic(), self.pool, slab, n_slabs,
                                  self.batch_size, self.magic, self.incomplete)
            self.require_open()
        except BaseException:
            self.pool.release(slab, n_slabs)
            raise
        batch.number = self.opened
        queue.seal()
        self.opened += 1
        queue.batches.append(batch)
        queue.open = batch
        self.active[queue] = None
        self.incomplete[batch] = None
        return batch

    cdef int compress(self, Batch batch) except -1:
        """A batch larger than the scratch takes a run for as long as it lasts; where there is none it goes plain."""
        cdef Py_ssize_t needed = self.pool.slabs_for(scratch_size(batch.builder.position))
        cdef Py_ssize_t scratch = self.scratch
        if needed > self.scratch_slabs:
            scratch = self.pool.try_allocate(needed)
            if scratch < 0:
                return 0
            self.pool.set_state(scratch, needed, SCRATCH)
        cdef Py_ssize_t room = max(needed, self.scratch_slabs) * self.pool.slab_size
        try:
            batch.compress(self.codec, self.pool.address(scratch), room)
        finally:
            if scratch != self.scratch:
                self.pool.release(scratch, needed)
        return 0

    def use_codec(self, codec):
        """Compress batches from now on, with work space out of the pool. Raises ConfigError where it has none."""
        cdef Py_ssize_t needed
        self.require_pool()
        needed = self.pool.slabs_for(scratch_size(self.batch_size))
        self.scratch = self.pool.try_allocate(needed) if needed < self.pool.slab_count else -1
        if self.scratch < 0:
            raise ConfigError(
                f"buffer.memory ({self.pool.total}) has no room for a batch and the {needed * self.pool.slab_size} "
                "bytes that compression.type needs beside it: raise buffer.memory or lower batch.size")
        self.pool.set_state(self.scratch, needed, SCRATCH)
        self.scratch_slabs = needed
        self.codec = codec

    def release_scratch(self):
        """The Sender has ended: nothing will be compressed."""
        if self.scratch_slabs:
            self.pool.release(self.scratch, self.scratch_slabs)
            self.scratch_slabs = 0
            self.codec = None

    def put_back(self, PartitionQueue queue not None, Batch batch not None):
        """Queue a batch again, before all that were opened after it and the parts behind it (Thread: Sender)."""
        cdef Py_ssize_t place = 0
        while place < len(queue.batches) and (comes_before(<Batch>queue.batches[place], batch)
                                              or queue.batches[place] is queue.asked):
            place += 1
        queue.batches.insert(place, batch)
        self.active[queue] = None

    cdef PartitionQueue queue_for(self, Batch batch):
        cdef TopicQueues topic = self.topics[batch.topic]
        if batch.incomplete is not self.incomplete or <size_t>batch.partition >= <size_t>len(topic.queues):
            raise KeyError(f"{batch!r} is of another accumulator")
        return <PartitionQueue>topic.queues[batch.partition]

    cdef int remove(self, PartitionQueue queue, Batch batch) except -1:
        """Take a batch out of the queue, wherever it stands in it."""
        if batch is queue.open:
            queue.seal()
        if batch in queue.batches:
            queue.batches.remove(batch)
            if not queue.batches:
                self.active.pop(queue, None)
        return 0

    cdef int claim(self, PartitionQueue queue) except -1:
        queue.open.claim()
        queue.open = None
        return 0

    cdef int unclaim(self, PartitionQueue queue, Batch batch) except -1:
        batch.unclaim()
        if batch.outcome == PENDING:
            if queue.batches[len(queue.batches) - 1] is batch:
                queue.open = batch
            else:
                queue.filled += <int64_t>batch.builder.position
                batch.close()
        return 0

    def fail(self, Batch batch not None, error, dict record_errors=None, error_of_others=None, bint refused=False):
        """It will not be delivered (Thread: Sender). Whether that was its first outcome. Arguments: Batch.fail, and
        `refused`: it is certain that the broker does not have what the last attempt sent.

        Deciding and leaving the queue are one stretch without Python: a bulk append that gives the batch back meanwhile
        finds it in the queue and pending, or neither. It is counted next, before a callback or a waiting thread acts on
        the failure: a batch that had failed and was not counted would hold up its partition for ever.
        """
        cdef PartitionQueue queue = self.queue_for(batch)
        if not batch.decide(error, record_errors, error_of_others):
            return False
        try:
            self.remove(queue, batch)
            if self.on_failed is not None:
                self.on_failed(batch, refused)
        finally:
            batch.announce()
        return True

    def oldest(self):
        """The oldest batch without an outcome, or None."""
        return self.first_incomplete()

    cdef Batch first_incomplete(self):
        # Other threads add batches. The iterator is made first, which may let them run, and only then looks; from there
        # to its first answer no object is made. Called from Python, iter() and next() would be two steps.
        return next(iter(self.incomplete), None)

    def discard(self, Batch batch not None):
        """Forget a batch that waits here, because its outcome has been decided otherwise."""
        self.remove(self.queue_for(batch), batch)

    def close(self):
        """No record after this; threads that wait for memory get a ClosedError."""
        self.closed = True
        self.pool.close()
