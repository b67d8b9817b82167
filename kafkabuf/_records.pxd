# cython: language_level=3
"""The record formats; records are encoded in place.

Magic 1: each record is one message (Kafka 0.10 to 3.x, Produce v2)::

    offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | timestamp i64
    | key size i32 | key | value size i32 | value
    crc: CRC-32 from magic to the end; a size of -1 means null
    compressed: the encoded messages are the value of one outer message without key. Their offsets count from 0; the
    outer message has the offset of the last inner message and the largest timestamp

Magic 2: one batch of records (KIP-98)::

    base offset i64 | batch length i32 | leader epoch i32 | magic i8 | crc u32 | attributes i16 | last offset delta i32
    | base timestamp i64 | max timestamp i64 | producer id i64 | producer epoch i16 | base sequence i32 | count i32
    | records...
    crc: CRC-32C from attributes to the end

    record: length varint | attributes i8 | timestamp delta varlong | offset delta varint
            | key size varint | key | value size varint | value | header count varint | headers...
    header: key size varint | key | value size varint | value

Capacity contract: `measure` computes the exact size of the next record; `has_room` measures the record and tells
whether it fits; `append` writes the measured record without a check. One thread at a time uses a builder: a thread that
holds the GIL, or the walker that claims the batch.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t

from kafkabuf.memory._held cimport Headers, Held, hold, hold_headers
from kafkabuf.memory._order cimport kb_in_order
from kafkabuf.wire._wire cimport (
    Field, field_size, payload, put_field, put_i8, put_uvarint, put_varint, uvarint_size, varint_size,
)


cdef enum:
    # Magic 2 batch header: each field begins where the previous field ends.
    BATCH_BASE_OFFSET = 0
    BATCH_LENGTH = BATCH_BASE_OFFSET + 8
    BATCH_LEADER_EPOCH = BATCH_LENGTH + 4
    BATCH_MAGIC = BATCH_LEADER_EPOCH + 4
    BATCH_CRC = BATCH_MAGIC + 1
    BATCH_ATTRIBUTES = BATCH_CRC + 4
    BATCH_LAST_OFFSET_DELTA = BATCH_ATTRIBUTES + 2
    BATCH_BASE_TIMESTAMP = BATCH_LAST_OFFSET_DELTA + 4
    BATCH_MAX_TIMESTAMP = BATCH_BASE_TIMESTAMP + 8
    BATCH_PRODUCER_ID = BATCH_MAX_TIMESTAMP + 8
    BATCH_PRODUCER_EPOCH = BATCH_PRODUCER_ID + 8
    BATCH_BASE_SEQUENCE = BATCH_PRODUCER_EPOCH + 2
    BATCH_COUNT = BATCH_BASE_SEQUENCE + 4
    BATCH_RECORDS = BATCH_COUNT + 4
    # A bit of the attributes.
    TRANSACTIONAL = 0x10
    # Magic 1 message: offsets of fields, and the bytes of a message besides key and value.
    MESSAGE_SIZE = 8
    MESSAGE_CRC = 12
    MESSAGE_MAGIC = 16
    MESSAGE_TIMESTAMP = 18
    MESSAGE_OVERHEAD = 34
    # Sizes are int32 on the wire, also the size of a whole request. LARGEST_BATCH leaves room for the request's fields
    # before the batch. In a request of several batches each takes PARTITION_OVERHEAD more, for its topic's name.
    LARGEST_BATCH = 0x7FFFFFFF - 0x20000
    PARTITION_OVERHEAD = 512
    # The most that a magic 2 record adds to key, value and headers: length varint, attributes, timestamp delta varlong,
    # offset delta varint, the sizes of key and value, header count.
    RECORD_MAX_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5


cdef struct Record:
    int64_t timestamp
    Field key
    Field value
    # As in `Headers`: two Fields for each header, and the size of the encoded headers without the header count.
    const Field* headers
    int64_t headers_size
    int32_t header_count
    # Set by `measure`, for the next position of one batch.
    int32_t size             # encoded bytes; the caller has checked size_upper_bound, so they are less than 2^31
    int32_t body_size        # magic 2: the bytes after the length varint


cdef struct RecordsBuilder:
    # Set by builder_init, and when the batch moves to larger memory.
    uint8_t* base
    size_t capacity          # bytes of memory at `base`; the first record must end within them
    size_t write_limit       # each further record must end within these bytes; at most `capacity`
    size_t limit             # the one of both that holds for the next record
    int8_t magic
    # Set by `wrap`.
    int8_t codec             # compression, bits 0 to 2 of the attributes; 0: no compression
    # Changed by every append.
    size_t position          # bytes written, including the space for the batch header
    int32_t count
    int64_t base_timestamp   # the one from which the records' timestamps count: of the batch's first record
    int64_t first_timestamp  # of the first record that is left: after a split, it may differ from base_timestamp
    int64_t max_timestamp


cdef void builder_init(
    RecordsBuilder* b, uint8_t* base, size_t capacity, size_t write_limit, int8_t magic
) noexcept nogil
# Magic 1; `append` calls it.
cdef void append_message(RecordsBuilder* b, const Record* r) noexcept nogil
# Replace the records by `n` compressed bytes, which must take no more space.
cdef void wrap(RecordsBuilder* b, const uint8_t* data, size_t n, int8_t codec) noexcept nogil
cdef void finish(
    RecordsBuilder* b, int64_t producer_id, int16_t epoch, int32_t base_sequence, bint transactional
) noexcept nogil
cdef inline void attach(Record* r, const Headers* held) noexcept nogil:
    r.headers = held.fields
    r.headers_size = held.size
    r.header_count = held.count


cdef inline void attach_none(Record* r) noexcept nogil:
    r.headers = NULL
    r.headers_size = r.header_count = 0


# Point a record at the caller's key, value and headers; `held` holds them until release_held. Call hold_nothing first.
cdef inline int hold_record(Held* held, Record* r, object key, object value, object headers) except -1:
    attach_none(r)
    if headers is not None:
        hold_headers(&held.headers, headers)
        held.has_headers = True
        attach(r, &held.headers)
    held.has_key = hold(key, &r.key, &held.key, "key")
    held.has_value = hold(value, &r.value, &held.value, "value")
    return 0


# The most bytes that a batch with this record alone can take: a new batch needs that much memory.
cdef inline int64_t size_upper_bound(int8_t magic, const Record* r) noexcept nogil:
    cdef int64_t variable = payload(&r.key) + payload(&r.value)
    if magic < 2:
        return MESSAGE_OVERHEAD + variable
    return BATCH_RECORDS + RECORD_MAX_OVERHEAD + variable + r.headers_size


cdef inline void measure(const RecordsBuilder* b, Record* r) noexcept nogil:
    cdef int64_t delta = r.timestamp - b.base_timestamp if b.count else 0
    if b.magic < 2:
        r.size = <int32_t>(MESSAGE_OVERHEAD + payload(&r.key) + payload(&r.value))
        return
    r.body_size = <int32_t>(1 + varint_size(delta) + uvarint_size(<uint64_t>b.count << 1)
                            + field_size(&r.key) + field_size(&r.value)
                            + uvarint_size(<uint64_t>r.header_count << 1) + r.headers_size)
    r.size = uvarint_size(<uint64_t>r.body_size << 1) + r.body_size


# Where the records begin, after the batch header, which is never compressed.
cdef inline size_t records_start(const RecordsBuilder* b) noexcept nogil:
    return BATCH_RECORDS if b.magic >= 2 else 0


# The bytes that `wrap` adds to compressed records: in magic 1 they become the value of an outer message.
cdef inline size_t wrap_overhead(const RecordsBuilder* b) noexcept nogil:
    return 0 if b.magic >= 2 else MESSAGE_OVERHEAD


# Kafka's hasRoomFor: the first record may exceed write_limit, since the memory was allocated for it.
cdef inline bint has_room(const RecordsBuilder* b, Record* r) noexcept nogil:
    measure(b, r)
    return b.position + <size_t>r.size <= b.limit


# The record must have been measured for the builder's present position. One store makes it part of the batch, that of
# the position, behind its bytes and behind the timestamp from which it counts.
cdef inline void append(RecordsBuilder* b, const Record* r) noexcept nogil:
    if b.count == 0:
        b.base_timestamp = b.first_timestamp = r.timestamp
        b.limit = b.write_limit
    if r.timestamp > b.max_timestamp:
        b.max_timestamp = r.timestamp
    if b.magic >= 2:
        append_record_v2(b, r)
    else:
        append_message(b, r)
    b.count += 1


cdef inline void append_record_v2(RecordsBuilder* b, const Record* r) noexcept nogil:
    cdef uint8_t* p = b.base + b.position
    cdef int32_t i
    p = put_uvarint(p, <uint64_t>r.body_size << 1)
    p = put_i8(p, 0)
    p = put_varint(p, r.timestamp - b.base_timestamp)
    p = put_uvarint(p, <uint64_t>b.count << 1)
    p = put_field(p, &r.key)
    p = put_field(p, &r.value)
    p = put_uvarint(p, <uint64_t>r.header_count << 1)
    for i in range(2 * r.header_count):
        p = put_field(p, &r.headers[i])
    kb_in_order()
    b.position = <size_t>(p - b.base)


cdef class MemoryRecordsBuilder:
    cdef RecordsBuilder builder
    cdef object memory       # the bytearray at builder.base
    cdef bint closed
    cdef object _append(self, Record* r)
    cdef int _reserve(self, int magic, Py_ssize_t capacity, Py_ssize_t write_limit) except -1
