# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encodes records in place: measure, write, and patch the batch header at the end. _records.pxd has the layouts."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.number cimport PyNumber_Index
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kafkabuf.memory._held cimport Held, hold_nothing, release_held
from kafkabuf.memory._order cimport kb_in_order
from kafkabuf.memory._view cimport items_of, length_of, view_of
from kafkabuf.wire._wire cimport (
    kb_crc32, kb_crc32_init, kb_crc32c, kb_crc32c_init, murmur2, put_bytes, put_i8, put_i16, put_i32, put_i64,
)

from kafkabuf.errors import ClosedError, InvalidTimestampError, RecordTooLargeError, SerializationError

kb_crc32_init()
kb_crc32c_init()

cdef int64_t INT32_MAX = 0x7FFFFFFF


cdef void builder_init(
    RecordsBuilder* b, uint8_t* base, size_t capacity, size_t write_limit, int8_t magic
) noexcept nogil:
    b.base = base
    b.capacity = capacity
    b.write_limit = min(write_limit, capacity)
    b.limit = capacity
    b.magic = magic
    b.codec = 0
    b.position = records_start(b)
    b.count = 0
    b.base_timestamp = b.first_timestamp = b.max_timestamp = -1


cdef inline uint8_t* _put_message_head(
    uint8_t* p, int64_t offset, int64_t size, int8_t codec, int64_t timestamp
) noexcept nogil:
    """Write the fields before the key of a message of `size` bytes; `_write_crc` writes the CRC."""
    p = put_i64(p, offset)
    p = put_i32(p, <int32_t>(size - 12))
    p += 4
    p = put_i8(p, 1)
    p = put_i8(p, codec)
    return put_i64(p, timestamp)


cdef inline void _write_crc(uint8_t* start, const uint8_t* end) noexcept nogil:
    put_i32(start + MESSAGE_CRC, <int32_t>kb_crc32(0, start + MESSAGE_MAGIC, <size_t>(end - start) - MESSAGE_MAGIC))


cdef void append_message(RecordsBuilder* b, const Record* r) noexcept nogil:
    cdef uint8_t* start = b.base + b.position
    cdef uint8_t* p = _put_message_head(start, b.count, r.size, 0, r.timestamp)
    p = put_i32(p, <int32_t>r.key.size)
    if r.key.size > 0:
        p = put_bytes(p, r.key.data, <size_t>r.key.size)
    p = put_i32(p, <int32_t>r.value.size)
    if r.value.size > 0:
        p = put_bytes(p, r.value.data, <size_t>r.value.size)
    _write_crc(start, p)
    kb_in_order()
    b.position = <size_t>(p - b.base)


cdef void wrap(RecordsBuilder* b, const uint8_t* data, size_t n, int8_t codec) noexcept nogil:
    cdef uint8_t* p = b.base + records_start(b)
    if b.magic < 2:
        p = _put_message_head(p, b.count - 1, MESSAGE_OVERHEAD + <int64_t>n, codec, b.max_timestamp)
        p = put_i32(p, -1)
        p = put_i32(p, <int32_t>n)
    p = put_bytes(p, data, n)
    if b.magic < 2:
        _write_crc(b.base, p)
    b.codec = codec
    b.position = <size_t>(p - b.base)


cdef void finish(
    RecordsBuilder* b, int64_t producer_id, int16_t epoch, int32_t base_sequence, bint transactional
) noexcept nogil:
    """Patch the batch header. May run again with other producer fields, as a retry under a new epoch needs."""
    cdef uint8_t* p = b.base
    if b.magic < 2:
        return  # each message is complete already
    p = put_i64(p, 0)
    p = put_i32(p, <int32_t>(b.position - BATCH_LEADER_EPOCH))
    p = put_i32(p, -1)
    p = put_i8(p, 2)
    p += 4
    p = put_i16(p, b.codec | (TRANSACTIONAL if transactional else 0))
    p = put_i32(p, b.count - 1)
    p = put_i64(p, b.base_timestamp)
    p = put_i64(p, b.max_timestamp)
    p = put_i64(p, producer_id)
    p = put_i16(p, epoch)
    p = put_i32(p, base_sequence)
    put_i32(p, b.count)
    put_i32(b.base + BATCH_CRC,
            <int32_t>kb_crc32c(0, b.base + BATCH_ATTRIBUTES, b.position - BATCH_ATTRIBUTES))


# ---- for Python ------------------------------------------------------------------------------------------------------

cdef class MemoryRecordsBuilder:
    """Builds one magic 1 message set or one magic 2 record batch in its own memory (Kafka's MemoryRecordsBuilder).

    The producer does not use this class: it calls the same C functions with slabs of the pool. The class is for tools,
    tests and benchmarks.

    Args:
        magic: 1 or 2.
        write_limit: bytes that the batch must not exceed; only its first record may, as in Kafka's `hasRoomFor`.
    """

    def __init__(self, int magic=2, Py_ssize_t write_limit=16384):
        if magic not in (1, 2):
            raise ValueError(f"magic must be 1 or 2, found {magic}")
        if not 0 <= write_limit <= INT32_MAX:
            raise ValueError(f"write_limit must be 0 to 2^31 - 1 bytes, found {write_limit}")
        self._reserve(magic, max(write_limit, BATCH_RECORDS), write_limit)

    cdef int _reserve(self, int magic, Py_ssize_t capacity, Py_ssize_t write_limit) except -1:
        self.memory = bytearray(capacity)
        builder_init(&self.builder, <uint8_t*><char*>self.memory, capacity, write_limit, magic)
        return 0

    def append(self, timestamp_ms, key, value, headers=None):
        """Append a record. Returns its offset within the batch, or None if the batch has no room for it.

        `key` and `value` are bytes-like or None; `headers` are pairs of (str, bytes or None), for magic 2 only. Raises
        RecordTooLargeError if the record exceeds the format's limit of 2^31 - 1 bytes, InvalidTimestampError for a
        negative timestamp (the distance between timestamps of different signs may overflow a delta), ClosedError after
        `close`.
        """
        cdef Record r
        cdef Held held
        if self.closed:
            raise ClosedError("the batch is closed")
        r.timestamp = PyNumber_Index(timestamp_ms)  # Cython's own conversion would cut the digits of a float off
        if r.timestamp < 0:
            raise InvalidTimestampError(f"timestamp_ms must not be negative, found {r.timestamp}")
        hold_nothing(&held)
        try:
            hold_record(&held, &r, key, value, headers)
            return self._append(&r)
        finally:
            release_held(&held)

    cdef object _append(self, Record* r):
        cdef int64_t needed = size_upper_bound(self.builder.magic, r)
        if r.header_count and self.builder.magic < 2:
            raise SerializationError("magic 1 has no headers: use magic 2")
        if needed > INT32_MAX:
            raise RecordTooLargeError(f"a record of {needed} bytes exceeds the format's limit of 2^31 - 1 bytes")
        if self.builder.count == 0 and needed > <Py_ssize_t>self.builder.capacity:
            self._reserve(self.builder.magic, needed, self.builder.write_limit)
        if not has_room(&self.builder, r):
            return None
        append(&self.builder, r)
        return self.builder.count - 1

    def close(self, int64_t producer_id=-1, int16_t producer_epoch=-1, int32_t base_sequence=-1,
              bint transactional=False):
        """Finish the batch and return its bytes; b"" for a batch without records, which brokers would refuse.

        A second call returns the same records with the new producer fields.
        """
        self.closed = True
        if self.builder.count == 0:
            return b""
        finish(&self.builder, producer_id, producer_epoch, base_sequence, transactional)
        return PyBytes_FromStringAndSize(<char*>self.builder.base, self.builder.position)

    @property
    def count(self):
        return self.builder.count

    @property
    def size(self):
        """Bytes written so far, including the space for the header."""
        return self.builder.position


# ---- inline functions made visible --------------------------------------------------------------

ctypedef uint32_t (*Crc)(uint32_t crc, const uint8_t* data, size_t n) noexcept


cdef uint32_t crc_of(Crc function, object data, uint32_t crc) except? 0:
    view = view_of(data, 1, False)
    return function(crc, <const uint8_t*>items_of(view), <size_t>length_of(view))


def crc32c(data, uint32_t crc=0):
    """CRC-32C (Castagnoli) of bytes, continuing from `crc`."""
    return crc_of(kb_crc32c, data, crc)


def crc32(data, uint32_t crc=0):
    """CRC-32 (IEEE) of bytes, continuing from `crc`."""
    return crc_of(kb_crc32, data, crc)


def murmur2_hash(data):
    """Java's `Utils.murmur2` of the bytes, as an unsigned 32-bit number."""
    view = view_of(data, 1, False)
    return murmur2(<const uint8_t*>items_of(view), length_of(view))
