# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: extra_compile_args = -O1
"""A batch that the broker finds too large goes again in two halves, down to single records (KIP-126). Thread: Sender.

A split takes no memory, so it never waits for memory: both halves are Batches over the slab in which the records lie.
The front half keeps the header. The header of the other half (the rest) overwrites the end of the front's records::

    before  | header | record 0 | ... | record k - 1 | record k | ... | record n - 1 |
    front   | header | record 0 | ... | record k - 1 |
    rest                             | header        | record 0 | ... | record n-k-1 |

So the parts go one at a time, in order: the front claims the rest, and a claimed batch stays in the queue and holds
back the batches behind it. When the front is done and no socket reads it, the rest gets its header and may go. The rest
is the refused batch itself: it keeps the slab, the deadline and its place in `incomplete`, where flush() and expiry
find it, and it gets its outcome last. A future keeps pointing at the whole, and `holder` finds its part. Compressed
records are decompressed from the scratch into the slab that they came from. The Sender does not remember the limit for
the next batch: the topic's limit may have been raised meanwhile.

Parts of a batch in doubt get no new numbers (`Batch.whole_doubtful`). A broker may have appended a batch whose response
was lost, and refuse the retry as too large: the topic's limit was lowered meanwhile, and the broker checks the size
before the numbers. That broker knows the numbers of the whole. It refuses the numbers of each part, and would append a
part under new numbers a second time. So such a part fails, and its error says that the outcome is unknown. A broker
that has not appended the whole takes the parts under their own numbers.

With a file each part has an entry in its table, and the next process finds the parts as they are. The split itself is
one step there: the records of the rest are written to the scratch first, and StoredTables.divide has both halves count
at once. So the scratch is needed without a codec, too.

Records keep their timestamps relative to the base timestamp of the whole. They get new offsets from 0 on, which never
take more room than the old offsets.

Java splits at batch.size, which does not help if the topic's limit is lower. Java does not split a plain batch of magic
1, where the limit holds for each message. kafkabuf splits such a batch too, to find the message that is too large.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memmove

from kafkabuf.errors import KafkaError

from kafkabuf.process._lock cimport enter_lock, leave_lock
from kafkabuf._records cimport MESSAGE_SIZE, MESSAGE_TIMESTAMP, RecordsBuilder, records_start, wrap_overhead
from kafkabuf.wire._wire cimport get_i32, get_i64, put_i64, put_varint, varint_size
from kafkabuf.batches._accumulator cimport AccumulatorCore, PartitionQueue
from kafkabuf.batches._batch cimport PENDING, Batch, RecordFuture
from kafkabuf.batches._stored cimport (
    StoredBatch, cast_shadow, seal_of, seal_records, sequence_after, unseal, unshadow,
)


def split(AccumulatorCore accumulator not None, Batch refused not None):
    """Put a drained batch of several records back into its queue as two halves.

    Also halves the waiting parts of the same batch that are no smaller than the refused part. Raises the codec's error
    if the records do not decompress; then the batch is in no queue.
    """
    cdef PartitionQueue queue = accumulator.queue_for(refused)
    cdef Batch whole = refused if refused.whole is None else refused.whole
    cdef Batch part, front
    cdef size_t limit
    if refused.stored.builder.codec:
        decompress(accumulator, refused)
    limit = refused.stored.builder.position
    # A part counts as a batch that was never sent: it is compressed again, and has all its attempts, as in Java.
    refused.attempts = 0
    refused.tried = False
    refused.retry_at = 0
    for part in [refused] if whole.parts is None else list(whole.parts):
        if part.outcome == PENDING and part.stored.builder.count > 1 and part.stored.builder.position >= limit:
            part.whole_doubtful = part.whole_doubtful or part.doubtful
            front = halve(accumulator, part, whole)
            if front.stored.base_sequence >= 0:
                queue.in_sequence.insert(queue.in_sequence.index(part), front)
            accumulator.put_back(queue, front)
    accumulator.put_back(queue, refused)


cdef int decompress(AccumulatorCore accumulator, Batch batch) except -1:
    """Decompress the records in place. A batch of several records fits batch.size, and so the scratch."""
    from kafkabuf.batches.compression import DECOMPRESS  # late: a producer without compression needs no cramjam

    cdef RecordsBuilder* b = &batch.stored.builder
    cdef uint8_t* records = b.base + records_start(b)
    cdef size_t size = b.position - records_start(b) - wrap_overhead(b)
    cdef uint8_t* scratch = accumulator.scratch
    memcpy(scratch, records + wrap_overhead(b), size)
    if batch.tables is not None:
        cast_shadow(batch.stored, scratch - accumulator.pool.base, <int64_t>size, b.codec)
        unseal(batch.stored)
    frame = PyMemoryView_FromMemory(<char*>scratch, size, PyBUF_READ)
    target = PyMemoryView_FromMemory(<char*>records, b.capacity - records_start(b), PyBUF_WRITE)
    b.position = records_start(b) + <size_t>DECOMPRESS[b.codec](frame, target)
    b.codec = 0
    if batch.tables is not None:
        seal_records(batch.stored)
        unshadow(batch.stored)
    return 0


cdef Batch halve(AccumulatorCore accumulator, Batch batch, Batch whole):
    """Make a batch of the first half of a batch's records, with the users' objects and waiting threads.

    Its sequence numbers are the first of the batch's, so that the later batches keep theirs.
    """
    cdef Batch front = Batch.__new__(Batch, batch.topic, batch.partition, batch.created, batch.pool, batch.slab,
                                     batch.extent, 0, batch.stored.builder.magic, batch.incomplete)
    cdef list parts = [whole], thunks = [], opaques = [], sleepers = []
    front.on_acknowledged = batch.on_acknowledged
    front.thunks = []
    front.opaques = []
    front.sleepers = []
    # The code makes no object below, so that no other thread runs and finds a record in both batches or in neither.
    enter_lock(&batch.pool.guard)
    try:
        divide(accumulator, batch, front)
        front.closed = True
        front.recovered = batch.recovered
        front.doubtful = batch.doubtful
        front.whole_doubtful = batch.whole_doubtful
        front.whole = whole
        if whole.parts is None:
            whole.parts = parts
        stand_in_front(whole.parts, batch, front)
        hand_over(batch, front, thunks, opaques, sleepers)
    finally:
        leave_lock(&batch.pool.guard)
    return front


cdef int divide(AccumulatorCore accumulator, Batch batch, Batch front) except -1:
    """Divide the records, and what is stored of them: `batch` keeps the rest."""
    cdef StoredBatch ahead = batch.stored[0], rest = batch.stored[0]
    cdef StoredBatch* entry = NULL
    if batch.tables is not None:
        entry = batch.tables.take_for_part()
        if entry == NULL:
            raise KafkaError(f"the file of kafkabuf.buffer.path holds {batch.tables.batch_count} batches, and no more")
    cut(&batch.stored.builder, &ahead.builder, &rest.builder, NULL if entry == NULL else accumulator.scratch)
    rest.first += ahead.builder.count
    rest.offset += rest.builder.base - ahead.builder.base
    if rest.base_sequence >= 0:
        rest.base_sequence = sequence_after(rest.base_sequence, ahead.builder.count)
    if entry == NULL:
        front.stored[0] = ahead
        batch.stored[0] = rest
        return 0
    ahead.seal = seal_of(&ahead, ahead.builder.base + records_start(&ahead.builder))
    rest.seal = seal_of(&rest, accumulator.scratch)
    batch.tables.divide(batch.stored, entry, &ahead, &rest)
    front.stored = entry
    front.tables = batch.tables
    return 0


cdef int stand_in_front(list parts, Batch batch, Batch front) except -1:
    """Insert `front` before `batch`. The part that claimed `batch` now claims `front`, and `front` claims `batch`."""
    cdef Py_ssize_t place = 0
    cdef Batch ahead = None
    while parts[place] is not batch:
        ahead = <Batch>parts[place]
        place += 1
    parts.insert(place, front)
    front.behind = batch
    if ahead is not None and ahead.behind is batch:
        ahead.behind = front
        front.claim()
    else:
        batch.claim()
    return 0


cdef int hand_over(Batch batch, Batch front, list thunks, list opaques, list sleepers) except -1:
    """Divide the user's objects and waiting threads. `batch` gets the given empty lists, filled with its part."""
    cdef Py_ssize_t i
    cdef RecordFuture future
    if batch.thunks is not None:
        for i in range(0, len(batch.thunks), 2):
            future = <RecordFuture>batch.thunks[i + 1]
            receiver = front.thunks if future.index < batch.stored.first else thunks
            receiver.append(batch.thunks[i])
            receiver.append(future)
    if batch.sleepers is not None:
        for sleeper in batch.sleepers:
            future = (<tuple>sleeper)[1]
            if future is not None and future.index < batch.stored.first:
                front.sleepers.append(sleeper)
            else:
                sleepers.append(sleeper)
    if batch.opaques is not None:
        for i in range(len(batch.opaques)):
            (front.opaques if i < front.stored.builder.count else opaques).append(batch.opaques[i])
    batch.thunks = thunks
    batch.opaques = opaques
    batch.sleepers = sleepers
    return 0


# ---- the records themselves ------------------------------------------------------------------------------------------

cdef int64_t read_varint(const uint8_t** p) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    while p[0][0] & 0x80:
        value |= <uint64_t>(p[0][0] & 0x7F) << shift
        shift += 7
        p[0] += 1
    value |= <uint64_t>p[0][0] << shift
    p[0] += 1
    return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)


cdef const uint8_t* end_of(int magic, const uint8_t* p) noexcept nogil:
    cdef int64_t size
    if magic < 2:
        return p + MESSAGE_SIZE + 4 + get_i32(p + MESSAGE_SIZE)
    size = read_varint(&p)
    return p + size


cdef int64_t timestamp_of(const RecordsBuilder* b, const uint8_t* p) noexcept nogil:
    if b.magic < 2:
        return get_i64(p + MESSAGE_TIMESTAMP)
    read_varint(&p)
    p += 1
    return b.base_timestamp + read_varint(&p)


cdef uint8_t* move(
    int magic, uint8_t* target, const uint8_t* record, const uint8_t* end, int32_t offset
) noexcept nogil:
    """Copy a record to `target` with another offset within its batch. Returns the end of the copy."""
    cdef const uint8_t* attributes
    cdef const uint8_t* old_offset
    cdef const uint8_t* key
    cdef int64_t body
    if magic < 2:
        memmove(target, record, <size_t>(end - record))
        put_i64(target, offset)
        return target + (end - record)
    attributes = record
    body = read_varint(&attributes)
    old_offset = attributes + 1
    read_varint(&old_offset)
    key = old_offset
    read_varint(&key)
    # No piece grows, so each piece ends no later than before: no byte is overwritten before it is read.
    target = put_varint(target, body - (key - old_offset) + varint_size(offset))
    memmove(target, attributes, <size_t>(old_offset - attributes))
    target = put_varint(target + (old_offset - attributes), offset)
    memmove(target, key, <size_t>(end - key))
    return target + (end - key)


cdef void cut(const RecordsBuilder* b, RecordsBuilder* front, RecordsBuilder* rest, uint8_t* target) noexcept nogil:
    """Divide the records of `b` into the first half (by bytes, and at least one record) and the rest.

    Writes nothing but the records of the rest, and no header: to `target`, or where they lie if it is NULL.
    """
    cdef const uint8_t* p = b.base + records_start(b)
    cdef const uint8_t* end = b.base + b.position
    cdef const uint8_t* half = p + (end - p) // 2
    cdef const uint8_t* following = end_of(b.magic, p)
    cdef uint8_t* written
    front[0] = rest[0] = b[0]
    front.count = rest.count = 0
    front.max_timestamp = rest.max_timestamp = -1
    while front.count == 0 or following <= half:
        front.max_timestamp = max(front.max_timestamp, timestamp_of(b, p))
        front.count += 1
        p = following
        following = end_of(b.magic, p)
    front.position = front.capacity = <size_t>(p - b.base)
    rest.base = b.base + front.position - records_start(b)
    rest.capacity = b.capacity - front.position + records_start(b)
    rest.first_timestamp = timestamp_of(b, p)
    if target == NULL:
        target = b.base + front.position
    written = target
    while p < end:
        following = end_of(b.magic, p)
        rest.max_timestamp = max(rest.max_timestamp, timestamp_of(b, p))
        written = move(b.magic, written, p, following, rest.count)
        rest.count += 1
        p = following
    rest.position = records_start(b) + <size_t>(written - target)
