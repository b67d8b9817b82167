# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Reads what a killed process has left in the tables of its file, and mends what the kill cut off.

The file may be damaged, and anybody may have written it: every field is checked before it is used.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from kafkabuf._pool cimport BufferPool
from kafkabuf._records cimport (
    BATCH_ATTRIBUTES, BATCH_CRC, MESSAGE_CRC, MESSAGE_MAGIC, MESSAGE_OVERHEAD, MESSAGE_SIZE, MESSAGE_TIMESTAMP,
    RecordsBuilder, records_start, wrap,
)
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._stored cimport (
    IN_LINE, IN_NO_LINE, MOST_PARTITIONS, StoredBatch, StoredTables, extent_of, life_of, seal_of, seal_records,
    slab_of, unshadow,
)
from kafkabuf.wire._wire cimport get_i32, get_i64, kb_crc32, kb_crc32_init, kb_crc32c, kb_crc32c_init

kb_crc32_init()
kb_crc32c_init()

cdef enum:
    LAST_CODEC = 4          # zstd


class DamagedError(Exception):
    """An entry, or the records that it names, cannot be what a producer has written."""


def live_entries(StoredTables tables not None):
    """The places of the entries that hold a batch, in the order in which the batches were opened."""
    cdef Py_ssize_t place
    live, places = [], []
    for place in range(tables.batch_count):
        if tables.batches[place].live:
            live.append((tables.batches[place].number, tables.batches[place].first, place))
        tables.after_entry(place)
    for _, _, place in sorted(live):
        places.append(place)
    return places


def impostors(StoredTables tables not None, BufferPool pool not None, list places not None):
    """Of `places`, the entries that name memory in which another batch, with a right seal, lies.

    The disk may have an entry in an earlier state, from before its batch ended and the next batch got the memory.
    """
    cdef StoredBatch* entry
    cdef StoredBatch* other
    cdef Py_ssize_t place, start, i, k
    spans, disproved = [], set()
    for place in places:
        entry = &tables.batches[place]
        if pool.exists(slab_of(entry.run), extent_of(entry.run)):
            start = pool.address(slab_of(entry.run), extent_of(entry.run)) - pool.base
            spans.append((start, start + pool.size_of(extent_of(entry.run)), place))
    spans.sort()
    for i in range(len(spans)):
        entry = &tables.batches[<Py_ssize_t>spans[i][2]]
        for k in range(i + 1, len(spans)):
            if spans[k][0] >= spans[i][1]:
                break
            other = &tables.batches[<Py_ssize_t>spans[k][2]]
            if not are_parts(entry, other) and is_sealed(entry, pool) != is_sealed(other, pool):
                disproved.add(spans[k if is_sealed(entry, pool) else i][2])
    return sorted(disproved)


cdef bint are_parts(const StoredBatch* entry, const StoredBatch* other) noexcept nogil:
    """Whether both may be parts of one split batch: no record is in both."""
    if entry.run != other.run or entry.number != other.number:
        return False
    if entry.offset > other.offset:
        entry, other = other, entry
    return entry.offset + <int64_t>entry.builder.position <= other.offset + <int64_t>records_start(&other.builder)


cdef bint is_sealed(const StoredBatch* entry, BufferPool pool) noexcept:
    cdef const RecordsBuilder* b = &entry.builder
    cdef int64_t size = pool.size_of(extent_of(entry.run))
    if entry.seal == 0 or entry.live != life_of(entry) or not 0 <= entry.offset < size:
        return False
    if not records_start(b) <= b.position <= <size_t>(size - entry.offset):
        return False
    return entry.seal == seal_of(
        entry, pool.address(slab_of(entry.run), extent_of(entry.run)) + entry.offset + records_start(b))


def mend(StoredTables tables not None, BufferPool pool not None, Py_ssize_t place):
    """Make an entry say what its records are. Returns the number of records; 0: no record was appended.

    Raises DamagedError. Behind the records of a batch without a seal may lie what is no record: see `damaged_end`.
    """
    cdef StoredBatch* entry = &tables.batches[place]
    cdef RecordsBuilder* b = &entry.builder
    cdef int64_t run_size
    require(entry.live == life_of(entry) or entry.seal, "what it says of itself is damaged, or it has ended")
    require(0 <= entry.partition < tables.partition_count and tables.knows_partition(entry.partition),
            "it names a partition that the table lacks")
    require(pool.exists(slab_of(entry.run), extent_of(entry.run)), "it names memory outside of the arena")
    require(entry.other_run == ~entry.run or is_copied(entry, pool), "it names two places for its memory")
    require(b.magic == 1 or b.magic == 2, "its records have an unknown format")
    require(entry.base_sequence < 0 or min(entry.producer_id, entry.producer_epoch) >= 0, "its numbers are damaged")
    run_size = pool.size_of(extent_of(entry.run))
    require(0 <= entry.offset < run_size, "its records begin outside of their memory")
    b.base = pool.address(slab_of(entry.run), extent_of(entry.run)) + entry.offset
    b.capacity = min(b.capacity, <size_t>(run_size - entry.offset))
    if entry.shadowed and entry.seal == 0:  # a batch with a seal needs no shadow
        finish_compression(entry, tables, pool)
    require(records_start(b) <= b.position <= b.capacity, "its records do not fit their memory")
    if entry.renumbered and not has_header(b):
        entry.renumbered = False  # a part that has not gone: the numbers of the whole's header are not its own
    require(0 <= b.codec <= LAST_CODEC, "its records have an unknown compression")
    if entry.seal:
        require(entry.seal == seal_of(entry, b.base + records_start(b)), "its checksum is wrong")
    else:
        require(b.codec == 0, "it is compressed and has no checksum")
        read_records(b)
    entry.other_run = ~entry.run
    entry.live = life_of(entry)
    require(b.count >= 0 and (b.count == 0 or min(b.base_timestamp, b.first_timestamp, b.max_timestamp) >= 0),
            "it counts no records, or has negative timestamps")
    return b.count


def damaged_end(StoredTables tables not None, Py_ssize_t place, Py_ssize_t position):
    """The bytes between the last record of an entry and the `position` that it had before `mend`."""
    cdef RecordsBuilder* b = &tables.batches[place].builder
    if b.codec:  # the records were compressed by `mend`, and are all there
        return b""
    return (<const char*>b.base)[b.position:max(<Py_ssize_t>b.position, position)]


def facts_of(StoredTables tables not None, Py_ssize_t place):
    """What an entry says, in words of JSON. None of it may be true."""
    cdef StoredBatch* entry = &tables.batches[place]
    try:
        topic, partition = partition_of(tables, place)
    except DamagedError:
        topic = partition = None
    return {"topic": topic, "partition": partition, "producer_id": entry.producer_id, "epoch": entry.producer_epoch,
            "base_sequence": entry.base_sequence, "number": entry.number, "count": entry.builder.count,
            "magic": entry.builder.magic, "base_timestamp": entry.builder.base_timestamp,
            "entry": (<const char*>entry)[:sizeof(StoredBatch)].hex()}


def bytes_of(StoredTables tables not None, BufferPool pool not None, Py_ssize_t place):
    """The bytes of a damaged batch, or all of its memory; none if that lies outside of the arena."""
    cdef StoredBatch* entry = &tables.batches[place]
    cdef Py_ssize_t slab = slab_of(entry.run), extent = extent_of(entry.run)
    cdef int64_t size, offset = entry.offset
    if not pool.exists(slab, extent):
        return b""
    size = pool.size_of(extent)
    if not 0 <= offset < size:
        offset = 0
    size -= offset
    if records_start(&entry.builder) <= entry.builder.position <= <size_t>size:
        size = <int64_t>entry.builder.position
    return (<const char*>pool.address(slab, extent) + offset)[:size]


def occupy(StoredTables tables not None, BufferPool pool not None, Py_ssize_t place):
    """Keep the memory of a damaged batch from other batches, where nobody has it."""
    cdef int64_t run = tables.batches[place].run
    if pool.exists(slab_of(run), extent_of(run)):
        pool.occupy(slab_of(run), extent_of(run))


def holds_batch(StoredTables tables not None, Py_ssize_t place):
    """Whether the entry has not been dropped."""
    return tables.batches[place].live != 0


def drop(StoredTables tables not None, Py_ssize_t place):
    """Free an entry: its records are nobody's any more."""
    tables.give_back(&tables.batches[place])


def is_transactional(StoredTables tables not None, Py_ssize_t place):
    return bool(tables.batches[place].transactional)


def is_idempotent(StoredTables tables not None, Py_ssize_t place):
    return bool(tables.batches[place].idempotent)


def size_of(StoredTables tables not None, Py_ssize_t place):
    """The bytes of an entry's records, the batch header included. `mend` comes first."""
    return tables.batches[place].builder.position


def magic_of(StoredTables tables not None, Py_ssize_t place):
    """The format of an entry's records."""
    return tables.batches[place].builder.magic


def is_credible(StoredTables tables not None, Py_ssize_t place):
    """Whether what an entry says from its beginning on is undamaged: format, transaction, partition."""
    return tables.batches[place].live == life_of(&tables.batches[place])


def line_of(StoredTables tables not None, Py_ssize_t place):
    """Whether an entry's batch is in line; None if no process before this one has decided it."""
    return None if tables.batches[place].line == 0 else tables.batches[place].line == IN_LINE


def put_in_line(StoredTables tables not None, Py_ssize_t place, bint in_line):
    tables.batches[place].line = IN_LINE if in_line else IN_NO_LINE


def timestamps_of(Batch batch not None):
    """(base, largest): milliseconds, as in the header of a closed batch."""
    return batch.stored.builder.base_timestamp, batch.stored.builder.max_timestamp


def partition_place_of(StoredTables tables not None, Py_ssize_t place):
    """The place of the partition's entry. `mend` comes first."""
    return tables.batches[place].partition


def partition_of(StoredTables tables not None, Py_ssize_t place):
    """(topic, partition) of an entry. Raises DamagedError."""
    cdef int32_t partition = tables.batches[place].partition
    cdef int32_t topic
    require(0 <= partition < tables.partition_count and tables.knows_partition(partition),
            "it names a partition that the table lacks")
    topic = tables.partitions[partition].topic
    require(0 <= topic < tables.topic_count and tables.knows_topic(topic)
            and 0 <= tables.partitions[partition].partition < MOST_PARTITIONS, "it names a topic that the table lacks")
    return tables.name_of(topic), tables.partitions[partition].partition


cdef int require(bint holds, str otherwise) except -1:
    if not holds:
        raise DamagedError(otherwise)
    return 0


cdef int finish_compression(StoredBatch* entry, StoredTables tables, BufferPool pool) except -1:
    """A kill came while compressed records were copied or decompressed in place: copy them from the shadow."""
    cdef RecordsBuilder* b = &entry.builder
    cdef int64_t at = entry.shadow.at, size = entry.shadow.size
    cdef size_t needed = records_start(b) + <size_t>size + MESSAGE_OVERHEAD
    cdef int64_t scratch = tables.scratch - pool.base
    require(0 <= size and (0 <= at <= pool.total - size or scratch <= at <= scratch + 2 * tables.scratch_size - size)
            and needed <= b.capacity + MESSAGE_OVERHEAD, "the copy of its records lies outside of the file")
    require(entry.shadow.codec != 0, "the copy of its records is not compressed")
    require(b.magic >= 2 or needed <= b.capacity, "the copy of its records is too large")
    wrap(b, pool.base + at, <size_t>size, entry.shadow.codec)
    seal_records(entry)
    unshadow(entry)
    return 0


cdef bint is_copied(const StoredBatch* entry, BufferPool pool) noexcept:
    """Whether a kill came while the batch moved: both places have its records."""
    cdef int64_t runs[2]
    cdef uint8_t* places[2]
    cdef int i
    runs[:] = [entry.run, ~entry.other_run]
    for i in range(2):
        if not pool.exists(slab_of(runs[i]), extent_of(runs[i])):
            return False
        if entry.builder.position > <size_t>pool.size_of(extent_of(runs[i])):
            return False
        places[i] = pool.address(slab_of(runs[i]), extent_of(runs[i]))
    return places[0] != places[1] and memcmp(places[0], places[1], entry.builder.position) == 0


cdef bint has_header(const RecordsBuilder* b) noexcept nogil:
    """Whether the header of a batch of magic 2 is there, and belongs to these bytes."""
    if b.magic < 2:
        return False
    return get_i32(b.base + BATCH_CRC) == <int32_t>kb_crc32c(
        0, b.base + BATCH_ATTRIBUTES, b.position - BATCH_ATTRIBUTES)


# ---- the records themselves ------------------------------------------------------------------------------------------

cdef int read_records(RecordsBuilder* b) except -1:
    """Count the records up to `position`, or to the first that is no record, and find their timestamps."""
    cdef const uint8_t* p = b.base + records_start(b)
    cdef const uint8_t* end = b.base + b.position
    cdef const uint8_t* following
    cdef int64_t timestamp = 0
    b.count = 0
    b.first_timestamp = b.max_timestamp = -1
    while p < end:
        following = read_record_v2(b, p, end, &timestamp) if b.magic >= 2 else read_message(b, p, end, &timestamp)
        if following == NULL:
            break
        if b.count == 0:
            b.first_timestamp = timestamp
        b.max_timestamp = max(b.max_timestamp, timestamp)
        b.count += 1
        p = following
    require(b.count or p == end, "its first record is no record")
    b.position = <size_t>(p - b.base)
    return 0


cdef const uint8_t* read_varint(const uint8_t* p, const uint8_t* end, int64_t* value) noexcept nogil:
    """NULL: it does not end before `end`, or is longer than a number of 64 bits."""
    cdef uint64_t read = 0
    cdef int shift = 0
    while p < end and shift < 70:
        read |= <uint64_t>(p[0] & 0x7F) << min(shift, 63)
        shift += 7
        p += 1
        if not (p - 1)[0] & 0x80:
            value[0] = <int64_t>(read >> 1) ^ -<int64_t>(read & 1)
            return p
    return NULL


cdef const uint8_t* read_field(const uint8_t* p, const uint8_t* end, bint nullable) noexcept nogil:
    """Skip a length and as many bytes. NULL: they do not end before `end`."""
    cdef int64_t size = 0
    p = read_varint(p, end, &size)
    if p == NULL or size < -nullable or size > end - p:
        return NULL
    return p + max(size, 0)


cdef const uint8_t* read_record_v2(
    const RecordsBuilder* b, const uint8_t* p, const uint8_t* end, int64_t* timestamp
) noexcept nogil:
    cdef int64_t size = 0, delta = 0, offset = 0, headers = 0
    p = read_varint(p, end, &size)
    if p == NULL or size < 1 or size > end - p or p[0] != 0:
        return NULL
    end = p + size
    p = read_varint(p + 1, end, &delta)
    if p != NULL:
        p = read_varint(p, end, &offset)
    if p != NULL:
        p = read_field(p, end, True)
    if p != NULL:
        p = read_field(p, end, True)
    if p != NULL:
        p = read_varint(p, end, &headers)
    while p != NULL and headers > 0:
        p = read_field(p, end, False)
        if p != NULL:
            p = read_field(p, end, True)
        headers -= 1
    if p != end or offset != b.count or headers < 0 or b.base_timestamp < 0 or delta < -b.base_timestamp:
        return NULL
    if delta > INT64_MAX - b.base_timestamp:
        return NULL
    timestamp[0] = b.base_timestamp + delta
    return p


cdef const uint8_t* read_message(
    const RecordsBuilder* b, const uint8_t* p, const uint8_t* end, int64_t* timestamp
) noexcept nogil:
    cdef int64_t size
    if end - p < MESSAGE_OVERHEAD:
        return NULL
    size = get_i32(p + MESSAGE_SIZE)
    if size < MESSAGE_OVERHEAD - 12 or size > end - p - 12 or p[MESSAGE_MAGIC] != 1:
        return NULL
    timestamp[0] = get_i64(p + MESSAGE_TIMESTAMP)
    return p + 12 + size if timestamp[0] >= 0 and has_crc(p, p + 12 + size) else NULL


cdef bint has_crc(const uint8_t* message, const uint8_t* end) noexcept nogil:
    cdef uint32_t crc = kb_crc32(0, message + MESSAGE_MAGIC, <size_t>(end - message) - MESSAGE_MAGIC)
    return get_i32(message + MESSAGE_CRC) == <int32_t>crc
