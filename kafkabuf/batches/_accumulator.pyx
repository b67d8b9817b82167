# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Opens, closes and compresses batches, and keeps them in order in their queues."""

cimport cython
from cpython.dict cimport PyDict_Keys
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from collections import OrderedDict, deque

from kafkabuf.process._lock cimport enter_lock, leave_lock, resume, suspend
from kafkabuf._pool cimport SCRATCH, BufferPool
from kafkabuf._records cimport (
    BATCH_BASE_SEQUENCE, BATCH_PRODUCER_EPOCH, BATCH_PRODUCER_ID, LARGEST_BATCH, Record, RecordsBuilder, finish,
    has_room, measure, records_start, size_upper_bound,
)
from kafkabuf.batches._batch cimport PENDING, Batch, give_back_claims
from kafkabuf.batches._stored cimport (
    StoredBatch, extent_of, pack_run, put_numbers, seal_of, sequence_after, slab_of,
)
from kafkabuf.process._time cimport kb_time_ms, kb_time_ms_init
from kafkabuf.wire._wire cimport get_i16, get_i32, get_i64

from kafkabuf.batches.codec import scratch_size
from kafkabuf.errors import ClosedError, ConfigError, KafkaError, RecordTooLargeError
from kafkabuf.process.threads import get_ident


kb_time_ms_init()


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
        """Set the partition's leader and its epoch; -1: unknown. A new leader is not proven.

        The same node is not proven in a new epoch either: it may have followed another leader, or lost the end of its
        log.
        """
        if leader != self.leader or (leader_epoch != self.leader_epoch >= 0):
            self.proven = False
        self.leader = leader
        self.leader_epoch = leader_epoch
        return 0

    cdef int begin_again(self) except -1:
        """The topic was deleted and made again: forget the offsets and leaders of the old log.

        The sequence numbers go on: a log that does not know the producer takes any first number, and the unproven
        leader gets one batch alone.
        """
        cdef Batch batch
        self.proven = False
        self.leader_epoch = -1
        self.last_acked_offset = -1
        for batch in self.batches:
            batch.leader_epoch = -1
        return 0

    cdef int close_open_batch(self) except -1:
        """Close the open batch: it takes no further record."""
        if self.open is not None:
            self.count_filled(self.open)
            self.open.close()
            self.open = None
        return 0

    cdef int count_filled(self, Batch batch) except -1:
        self.filled_last = <int64_t>batch.stored.builder.position
        self.filled += self.filled_last
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


cdef list ints(list numbers):
    cdef list checked = []
    cdef int number
    for item in numbers:
        number = item
        checked.append(number)
    return checked


cdef bint comes_before(Batch batch, Batch other) noexcept:
    if batch.stored.number == other.stored.number:
        return batch.stored.first < other.stored.first
    return batch.stored.number < other.stored.number


cdef Batch part_ahead(PartitionQueue queue, const StoredBatch* entry):
    """The newest batch of the queue, if it is the part of a split batch before the part in `entry`; else None."""
    cdef Batch ahead
    if not queue.batches:
        return None
    ahead = <Batch>queue.batches[len(queue.batches) - 1]
    if (ahead.stored.run == entry.run and ahead.stored.number == entry.number
            and ahead.stored.offset + <int64_t>ahead.stored.builder.position
            <= entry.offset + <int64_t>records_start(&entry.builder)):
        return ahead
    return None


@cython.final
cdef class TopicQueues:
    """The partitions of one topic, with the sticky partition (KIP-480, KIP-794)."""

    def __cinit__(self, str name not None, int partitions, uint64_t seed=0x9E3779B97F4A7C15, int64_t batch_size=16384,
                  bint adaptive=True, set slow_nodes=None, set near_nodes=None):
        if partitions < 1:
            raise ValueError(f"a topic has at least one partition, found {partitions}")
        self.name = name
        self.queues = []
        self.random = seed | 1
        self.batch_size = batch_size
        self.adaptive = adaptive
        self.slow_nodes = slow_nodes if slow_nodes is not None else set()
        self.near_nodes = near_nodes if near_nodes is not None else set()
        self.grow(partitions)

    def grow(self, int partitions):
        """Make queues until there are at least `partitions`. Existing queues stay."""
        cdef PartitionQueue queue
        while len(self.queues) < partitions:
            # Making a queue may run the garbage collector, and with it another thread that grows the topic.
            queue = PartitionQueue(self.name, len(self.queues))
            if queue.partition == len(self.queues):
                self.queues.append(queue)
        self.partitions = max(self.partitions, partitions)
        if self.sticky is None and self.partitions:
            self.next_sticky()

    def follow(self, list leaders not None, list epochs not None, topic_id=None):
        """Take over from metadata each partition's leader and its epoch; -1: unknown. Thread: Sender.

        Another id, or fewer partitions, means that the topic was deleted and made again.
        """
        # These are copies: the caller's lists may change, for example in an element's __int__.
        cdef list nodes = ints(leaders), elected = ints(epochs)
        cdef Py_ssize_t number, count = len(nodes)
        cdef bint other_id = topic_id is not None and self.topic_id is not None and topic_id != self.topic_id
        cdef bint made_again = other_id or count < self.partitions
        if count == 0:
            raise ValueError(f"topic {self.name!r} has at least one partition, found no leaders")
        if len(elected) != count:
            raise ValueError(f"topic {self.name!r} has {count} leaders and {len(elected)} epochs: give each partition "
                             f"one leader and one epoch")
        if topic_id is not None:
            self.topic_id = topic_id
        self.grow(count)
        # No Python code runs from here until the sticky partition is valid again.
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
        elif self.near_nodes and self.sticky.leader not in self.near_nodes:  # drawn before the leaders were known
            self.next_sticky()

    def forget_leaders(self):
        """Metadata has forgotten the topic after long disuse: the next record requests metadata before it goes."""
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
        """Draw a partition whose leader takes requests. A partition with a shorter queue is drawn more often."""
        cdef PartitionQueue queue
        cdef Py_ssize_t longest = 0
        cdef uint64_t total = 0, drawn
        cdef list able = self.able()
        # The code makes no object from here on, so that no other thread changes a queue between the sum and the draw.
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
        """The queues whose leader takes requests; else the queues that have a leader; else all queues.

        Of these, the queues whose leader is near, if there are any.
        """
        cdef list able = [queue for queue in self.queues if (<PartitionQueue>queue).leader >= 0]
        if self.adaptive and self.slow_nodes:
            able = [queue for queue in able if (<PartitionQueue>queue).leader not in self.slow_nodes] or able
        if self.near_nodes:
            able = [queue for queue in able if (<PartitionQueue>queue).leader in self.near_nodes] or able
        return able or self.queues[:self.partitions]

    cdef uint64_t weight(self, PartitionQueue queue, Py_ssize_t longest) except 0:
        return <uint64_t>(longest + 1 - len(queue.batches)) if self.adaptive else 1


cdef class Shortcut:
    """A way for a batch past the Sender's thread."""

    cdef bint send_now(self, Batch batch) noexcept:
        return False


cdef class AccumulatorCore:
    """The steps that every batch takes. DrainCore and RecordAccumulator add the Sender's steps."""

    def __init__(self, BufferPool pool not None, clock, *, magic=2, batch_size=16384, wakeup=lambda: None,
                 availability_timeout=0.0):
        if self.pool is not None:
            raise ValueError("an accumulator can only be initialized once: its batches may be under way")
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
        self.near_nodes = set()
        self.active = {}
        self.incomplete = OrderedDict()

    cdef Batch open_batch(self, PartitionQueue queue, Record* r, double patience):
        cdef Py_ssize_t slab, extent
        if queue.open is not None and has_room(&queue.open.stored.builder, r):
            return queue.open
        extent = self.next_extent(queue, r)
        self.require_open()
        if extent > self.pool.slab_count - self.scratch_slabs:
            raise RecordTooLargeError(f"the record needs up to {size_upper_bound(self.magic, r)} bytes, more than "
                                      f"buffer.memory ({self.pool.total}) holds: raise buffer.memory, or send smaller "
                                      f"records")
        slab = self.pool.try_allocate(extent)
        if slab < 0:
            slab = self.await_run(&extent, patience)
        return self.new_batch(queue, slab, extent) if queue.open is None else self.use_run(queue, r, slab, extent)

    cdef Py_ssize_t await_run(self, Py_ssize_t* extent, double patience) except -1:
        deadline = self.clock.monotonic() + (0.0 if self.refuses_when_full else patience)
        cdef int depth = suspend(&self.pool.guard)
        try:
            if patience == NEVER_WAITS:
                allocate = self.loop_allocator
            else:
                allocate = self.nonwaiting_allocators.get(get_ident())
            give_back_claims()
            if allocate is None:
                return self.pool.wait_allocate(extent[0], deadline)
            slab, extent[0] = allocate(self.pool.size_of(extent[0]))
            return slab
        finally:
            resume(&self.pool.guard, depth)

    cdef Py_ssize_t grown(self, Batch batch, Record* r) noexcept:
        cdef int64_t needed
        if batch.extent > 0 or batch.closed or batch.outcome != PENDING:
            return 0
        measure(&batch.stored.builder, r)
        needed = <int64_t>batch.stored.builder.position + r.size
        # As the first record of another batch `r` takes no more: the Sender may take this batch during a wait.
        if needed > self.batch_size:
            return 0
        return 1 if self.pool.plenty() else self.pool.extent_for(needed)

    cdef bint try_grow(self, Batch batch, Record* r) noexcept:
        cdef Py_ssize_t extent = self.grown(batch, r)
        cdef Py_ssize_t slab = self.pool.try_allocate(extent)
        if slab >= 0:
            batch.move(slab, extent, self.batch_size)
        return slab >= 0

    cdef Py_ssize_t next_extent(self, PartitionQueue queue, Record* r) except 0:
        cdef int64_t needed = size_upper_bound(self.magic, r)
        cdef Py_ssize_t extent
        if queue.open is not None:
            extent = self.grown(queue.open, r)
            if extent != 0:
                return extent
            queue.close_open_batch()
        if needed <= self.pool.slab_size < 2 * queue.filled_last:
            return 1
        return self.pool.extent_for(needed)

    cdef Batch use_run(self, PartitionQueue queue, Record* r, Py_ssize_t slab, Py_ssize_t extent):
        cdef Batch batch = queue.open
        cdef Py_ssize_t grown
        if batch is not None:
            if has_room(&batch.stored.builder, r):
                self.pool.release(slab, extent)
                return batch
            grown = self.grown(batch, r)
            if grown != 0 and self.pool.size_of(extent) >= self.pool.size_of(grown):
                batch.move(slab, extent, self.batch_size)
                return batch
        return self.new_batch(queue, slab, extent)

    def refuse_callback(self, nbytes):
        """Raise: a callback must not wait for memory. The Sender's thread has this in `nonwaiting_allocators`."""
        self.require_pool()
        raise self.pool.no_memory(
            f"buffer.memory ({self.pool.total} bytes) is full, and a callback's send() cannot wait: the thread that "
            f"runs callbacks frees the memory. Send from another thread, or raise buffer.memory{self.pool.why()}")

    cdef int require_pool(self) except -1:
        if self.pool is None:
            raise uninitialized(self)
        return 0

    cdef int require_open(self) except -1:
        cdef int depth
        if self.closed:
            raise ClosedError(self.closed_because or "the producer is closed")
        if self.refusal is not None:
            depth = suspend(&self.pool.guard)  # the refusal may take a lock of its own
            try:
                refusal = self.refusal()
            finally:
                resume(&self.pool.guard, depth)
            raise refusal
        return 0

    def follow(self, TopicQueues topic not None, list leaders not None, list epochs not None, topic_id=None):
        """The topic takes over leaders, epochs and id from metadata (Thread: Sender, or the topic's maker)."""
        self.require_pool()
        enter_lock(&self.pool.guard)
        try:
            topic.follow(leaders, epochs, topic_id)
        finally:
            leave_lock(&self.pool.guard)

    def forget_leaders(self, TopicQueues topic not None):
        """Metadata has forgotten the topic after long disuse: the next record requests metadata before it goes."""
        self.require_pool()
        enter_lock(&self.pool.guard)
        try:
            topic.forget_leaders()
        finally:
            leave_lock(&self.pool.guard)

    def close_open_batches(self):
        """Close all open batches."""
        cdef PartitionQueue queue
        self.require_pool()
        enter_lock(&self.pool.guard)
        try:
            for queue in PyDict_Keys(self.active):
                queue.close_open_batch()
        finally:
            leave_lock(&self.pool.guard)

    cdef list active_queues(self):
        enter_lock(&self.pool.guard)
        try:
            return PyDict_Keys(self.active)
        finally:
            leave_lock(&self.pool.guard)

    def waiting_batches(self, PartitionQueue queue=None):
        """The batches that wait in `queue`; None: in all queues."""
        cdef PartitionQueue each
        cdef list waiting = []
        self.require_pool()
        enter_lock(&self.pool.guard)
        try:
            # Copies: making an iterator may run the garbage collector, and with it a thread that changes the queues.
            for each in [queue] if queue is not None else PyDict_Keys(self.active):
                waiting += list(each.batches)
            return waiting
        finally:
            leave_lock(&self.pool.guard)

    def incomplete_batches(self):
        """The batches without an outcome, oldest first."""
        self.require_pool()
        enter_lock(&self.pool.guard)
        try:
            return list(self.incomplete)
        finally:
            leave_lock(&self.pool.guard)

    cdef Batch new_batch(self, PartitionQueue queue, Py_ssize_t slab, Py_ssize_t extent):
        # Three steps may let another thread run: reading the clock, and making the object and the partition's entry,
        # which may run the garbage collector. No step after require_open does. A batch that was opened after `close`
        # might find no Sender.
        cdef Batch batch = None
        try:
            batch = Batch.__new__(Batch, queue.topic, queue.partition, self.clock.monotonic(), self.pool, slab, extent,
                                  self.batch_size, self.magic, self.incomplete)
            batch.thunks = []
            if self.on_acknowledged is not None:
                batch.opaques = []
                batch.on_acknowledged = self.on_acknowledged
            if self.tables is not None and queue.entry == NULL:
                queue.entry = self.tables.enter(queue.topic, queue.partition)
            self.require_open()
            batch.stored.number = self.opened
            if self.tables is not None:
                self.keep(queue, batch)
            self.enlist(queue, batch)
        except BaseException:
            if batch is not None:
                batch.come_home()
            self.pool.release(slab, extent)
            raise
        self.opened += 1
        queue.open = batch
        return batch

    cdef int keep(self, PartitionQueue queue, Batch batch) except -1:
        if not batch.outlive(self.tables, self.tables.place_of(queue.entry), kb_time_ms(), self.transactional,
                             self.idempotent):
            raise KafkaError(f"the file of kafkabuf.buffer.path holds {self.tables.batch_count} batches, and no more: "
                             "raise batch.size or buffer.memory")
        return 0

    def adopt(self, PartitionQueue queue not None, Py_ssize_t place):
        """Queue the batch in an entry of the file's table, behind those that the queue has (at opening).

        The caller has checked the entry, and mended its builder: count and timestamps are those of the records. A batch
        with numbers may have been sent under them: it keeps them. The queue is muted until `spool.settling` knows
        which of its batches the broker has. None, and no change, if a part of its run belongs to another batch.
        """
        cdef StoredBatch* entry = &self.tables.batches[place]
        cdef RecordsBuilder* b = &entry.builder
        cdef Py_ssize_t slab = slab_of(entry.run), extent = extent_of(entry.run)
        cdef Batch batch, ahead = part_ahead(queue, entry)
        if ahead is None and not self.pool.occupy(slab, extent):
            return None
        created = self.clock.monotonic()
        if self.since_send:
            created -= max(0, kb_time_ms() - entry.created_ms) / 1000.0
        batch = Batch.__new__(Batch, queue.topic, queue.partition, created, self.pool, slab, extent, self.batch_size,
                              b.magic, self.incomplete)
        b.base = batch.own.builder.base + entry.offset
        b.write_limit = b.limit = b.capacity
        batch.stored = entry
        batch.recovered = True
        if ahead is not None:
            batch.stand_behind(ahead)
        batch.tables = self.tables
        batch.thunks = []
        # A batch that has gone is not compressed any more: its header says that it is plain.
        batch.tried = b.codec != 0 or entry.base_sequence >= 0
        batch.close()
        queue.entry = &self.tables.partitions[entry.partition]
        queue.muted = True
        if entry.base_sequence >= 0:
            if entry.renumbered:
                put_numbers(entry, get_i64(b.base + BATCH_PRODUCER_ID), get_i16(b.base + BATCH_PRODUCER_EPOCH),
                            get_i32(b.base + BATCH_BASE_SEQUENCE))
                entry.renumbered = False
            queue.in_sequence.append(batch)
            queue.producer_id, queue.producer_epoch = entry.producer_id, entry.producer_epoch
            queue.next_sequence = sequence_after(entry.base_sequence, b.count)
            if ahead is None:  # else it has not gone, and the end of the records of `ahead` lies where its header will
                batch.attempts = 1
                batch.doubtful = True
                finish(b, entry.producer_id, entry.producer_epoch, entry.base_sequence, False)
        self.enlist(queue, batch)
        self.opened = max(self.opened, entry.number + 1)
        return batch

    def leave_behind(self, Batch batch not None, *, bint unsent=False):
        """Leave the batch, or its parts, to the next process that opens the file; without a file, leave nothing.

        Returns what the caller is to fail here: the parts without an outcome. A part for which there is no room alone
        stays with all parts of its whole. `unsent`: no broker has this one, so the next process need not ask for it.
        """
        cdef Batch whole = batch if batch.whole is None else batch.whole
        cdef Batch part
        enter_lock(&self.pool.guard)
        try:
            if batch.parts is not None or not self.set_apart(batch):
                staying = [batch] if whole.parts is None else list(whole.parts)
            else:
                staying = [batch]
            for part in staying:
                part.leave(unsent and part is batch)
        finally:
            leave_lock(&self.pool.guard)
        return [part for part in staying if part.outcome == PENDING]

    cdef bint set_apart(self, Batch part) noexcept:
        """Give a part a run of its own in the file, so that it can stay there while the parts behind it go.

        Their header overwrites the end of the part's records. False, and no change, if no run is free. A kill leaves
        the part in the one run or in the other: the step is that of a split, whose rest stays as it is.
        """
        cdef Batch behind = part.behind
        cdef StoredBatch alone, rest
        cdef Py_ssize_t slab, extent
        if behind is None or part.stored == &part.own:
            return True
        alone, rest = part.stored[0], behind.stored[0]
        extent = self.pool.extent_for(alone.builder.position)
        slab = self.pool.try_allocate(extent)
        if slab < 0:
            return False
        alone.builder.base = self.pool.address(slab, extent)
        memcpy(alone.builder.base, part.stored.builder.base, alone.builder.position)
        alone.run = pack_run(slab, extent)
        alone.other_run = ~alone.run
        alone.offset = 0
        alone.seal = seal_of(&alone, alone.builder.base + records_start(&alone.builder))
        memcpy(self.scratch, rest.builder.base + records_start(&rest.builder),
               rest.builder.position - records_start(&rest.builder))
        self.tables.divide(behind.stored, part.stored, &alone, &rest)
        part.slab, part.extent = slab, extent
        part.generation = self.pool.generation(slab, extent)
        return True

    cdef int enlist(self, PartitionQueue queue, Batch batch) except -1:
        """Put a new batch into all lists, or into no list if the memory for an entry is missing."""
        queue.close_open_batch()
        self.incomplete[batch] = None
        try:
            self.active[queue] = None
            queue.batches.append(batch)
        except BaseException:
            del self.incomplete[batch]
            if not queue.batches:
                self.active.pop(queue, None)
            raise
        return 0

    cdef int compress(self, Batch batch) except -1:
        """Compress a batch. A batch larger than the scratch borrows a run; if no run is free the batch goes plain."""
        cdef Py_ssize_t size = scratch_size(batch.stored.builder.position), slab, needed
        if size <= self.scratch_size:
            return batch.compress(self.codec, self.scratch, self.scratch_size)
        needed = self.pool.slabs_for(size)
        slab = self.pool.try_allocate(needed)
        if slab < 0:
            return 0
        self.pool.set_state(slab, needed, SCRATCH)
        try:
            batch.compress(self.codec, self.pool.address(slab, needed), needed * self.pool.slab_size)
        finally:
            self.pool.release(slab, needed)
        return 0

    def use_codec(self, codec, int scratches=1):
        """Compress batches from now on, in `scratches` of the pool or of the file: 2 if another thread compresses, too.

        Raises ConfigError if the pool is too small.
        """
        self.require_pool()
        if self.tables is None:
            self.take_scratches(scratches)
        self.scratches = scratches
        self.codec = codec

    cdef int take_scratches(self, int scratches) except -1:
        cdef Py_ssize_t each, needed
        each = self.pool.slabs_for(scratch_size(self.batch_size))
        needed = each * scratches
        self.scratch_slab = self.pool.try_allocate(needed) if needed < self.pool.slab_count else -1
        if self.scratch_slab < 0:
            raise ConfigError(
                f"buffer.memory ({self.pool.total}) has no room for a batch and the {needed * self.pool.slab_size} "
                "bytes that compression.type needs beside it: raise buffer.memory or lower batch.size")
        self.pool.set_state(self.scratch_slab, needed, SCRATCH)
        self.scratch = self.pool.address(self.scratch_slab, needed)
        self.scratch_size = each * self.pool.slab_size
        self.scratch_slabs = needed
        return 0

    def use_tables(self, StoredTables tables not None):
        """Batches outlive the process from now on, in the file of these tables. No batch or codec was there before."""
        self.require_pool()
        self.tables = tables
        self.scratch = tables.scratch
        self.scratch_size = tables.scratch_size

    def release_scratch(self):
        """Give the scratch back to the pool. The Sender has ended, and no thread compresses anything more."""
        self.codec = None
        if self.scratch_slabs:
            self.pool.release(self.scratch_slab, self.scratch_slabs)
            self.scratch_slabs = 0

    def put_back(self, PartitionQueue queue not None, Batch batch not None):
        """Queue a batch again, before the parts behind it and all batches opened after it (Thread: Sender)."""
        cdef Py_ssize_t place = 0
        self.require_pool()
        enter_lock(&self.pool.guard)
        try:
            while place < len(queue.batches) and (comes_before(<Batch>queue.batches[place], batch)
                                                  or queue.batches[place] is queue.asked):
                place += 1
            queue.batches.insert(place, batch)
            try:
                self.active[queue] = None
            except MemoryError:
                del queue.batches[place]  # the Sender would not look at it
                raise
        finally:
            leave_lock(&self.pool.guard)

    cdef PartitionQueue queue_for(self, Batch batch):
        cdef TopicQueues topic = self.topics[batch.topic]
        if batch.incomplete is not self.incomplete or <size_t>batch.partition >= <size_t>len(topic.queues):
            raise KeyError(f"{batch!r} belongs to another accumulator")
        return <PartitionQueue>topic.queues[batch.partition]

    cdef int remove(self, PartitionQueue queue, Batch batch) except -1:
        """Take a batch out of any place of its queue."""
        if batch is queue.open:
            queue.close_open_batch()
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
        enter_lock(&self.pool.guard)
        try:
            batch.unclaim()
            if batch.outcome == PENDING:
                if queue.batches[len(queue.batches) - 1] is batch:
                    queue.open = batch
                else:
                    queue.count_filled(batch)
                    batch.close()
        finally:
            leave_lock(&self.pool.guard)
        return 0

    def fail(self, Batch batch not None, error, dict record_errors=None, error_of_others=None, bint refused=False):
        """Fail a batch (Thread: Sender). False when another outcome came first. The arguments are those of Batch.fail.

        `refused`: it is certain that the broker did not append the batch in the last attempt.

        `decide` and `remove` are one stretch that runs no Python code: a bulk append that gives the batch back finds it
        pending and in the queue, or neither. `on_failed` counts the batch next, before a callback or a waiting thread
        acts on the failure: a batch that failed and was not counted would hold up its partition for ever. Without
        memory this raises MemoryError after the batch has failed. The Sender's next turn begins with `count_failed`.
        """
        cdef PartitionQueue queue = self.queue_for(batch)
        if not self.decide(queue, batch, error, record_errors, error_of_others):
            return False
        try:
            if self.on_failed is not None:
                self.on_failed(batch, refused)
        except MemoryError:
            self.count_later(batch, refused)
            raise
        finally:
            batch.announce()
        return True

    cdef void count_later(self, Batch batch, bint refused) noexcept:
        batch.refused = refused
        batch.next_uncounted = self.uncounted
        self.uncounted = batch

    cdef int count_failed(self) except -1:
        """Count the failed batches that `fail` had no memory to count (Thread: Sender)."""
        cdef Batch batch
        while self.uncounted is not None:
            batch = self.uncounted
            self.uncounted = batch.next_uncounted
            batch.next_uncounted = None
            try:
                self.on_failed(batch, batch.refused)
            except MemoryError:
                self.count_later(batch, batch.refused)
                raise
        return 0

    cdef bint decide(
        self, PartitionQueue queue, Batch batch, object error, dict record_errors, object error_of_others
    ) except -1:
        enter_lock(&self.pool.guard)
        try:
            if not batch.decide(error, record_errors, error_of_others):
                return False
            self.remove(queue, batch)
            return True
        finally:
            leave_lock(&self.pool.guard)

    def oldest(self):
        """The oldest batch without an outcome, or None."""
        return self.first_incomplete()

    cdef Batch first_incomplete(self):
        # Other threads add batches. Making the iterator may let them run. The iterator then reads the dict without
        # making an object. In Python code another thread could run between iter() and next().
        enter_lock(&self.pool.guard)
        try:
            return next(iter(self.incomplete), None)
        finally:
            leave_lock(&self.pool.guard)

    def discard(self, Batch batch not None):
        """Take a batch out of its queue, because it got its outcome elsewhere."""
        cdef PartitionQueue queue = self.queue_for(batch)
        enter_lock(&self.pool.guard)
        try:
            self.remove(queue, batch)
        finally:
            leave_lock(&self.pool.guard)

    def close(self):
        """Take no further record. Threads that wait for memory get a ClosedError."""
        self.require_pool()
        enter_lock(&self.pool.guard)
        self.closed = True
        leave_lock(&self.pool.guard)
        self.pool.close()
