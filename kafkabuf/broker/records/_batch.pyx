# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: extra_compile_args = -O1
"""The header of a batch of magic 2, checked on arrival: one pass, for each of the thousands of batches of a request.

batch.py has the layout. The checks are those of Kafka's UnifiedLog and LogValidator that need only the header.
validator.py has those that may need the records.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int32_t, int64_t, uint32_t

from kafkabuf.broker.wire._numbers cimport load_int16, load_int32, load_int64, load_uint32, store_int64, store_uint32

from kafkabuf.broker.wire.crc import crc32c
from kafkabuf.broker.records import batch, compression
from kafkabuf.errors import (
    CorruptMessageError,
    InvalidRecordError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)

# The layout, which batch.py has, in C.
cdef int HEADER_SIZE = batch.HEADER_SIZE
cdef int OVERHEAD = batch.OVERHEAD
cdef int MAGIC_AT = batch.MAGIC_AT
cdef int CRC_AT = batch.CRC_AT
cdef int ATTRIBUTES_AT = batch.ATTRIBUTES_AT
cdef int CODEC_MASK = batch.CODEC_MASK
cdef int LOG_APPEND_TIME = batch.LOG_APPEND_TIME
cdef int TRANSACTIONAL = batch.TRANSACTIONAL
cdef int CONTROL = batch.CONTROL
cdef int SMALLEST_RECORD = batch.SMALLEST_RECORD
cdef int CODECS = len(compression.NAMES)
cdef int NONE = compression.NONE
cdef int ZSTD = compression.ZSTD

cdef enum:
    LENGTH_AT = 8
    LAST_DELTA_AT = 23
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    COUNT_AT = 57
    FIRST_WITH_ZSTD = 7


@cython.final
cdef class BatchInfo:
    """The facts of a batch that the log keeps beside its bytes. Its records have the offsets base to base + `count` -
    1."""

    def __init__(
        self,
        int64_t count,
        int64_t max_timestamp,
        int magic,
        int64_t producer_id=-1,
        int producer_epoch=-1,
        int32_t base_sequence=-1,
        bint transactional=False,
        bint append_time=False,
    ):
        self.count = count
        self.max_timestamp = max_timestamp
        self.magic = magic
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.transactional = transactional
        self.append_time = append_time

    @property
    def last_sequence(self):
        return last_sequence(self)


cdef int32_t last_sequence(BatchInfo info) noexcept:
    return <int32_t> ((info.base_sequence + info.count - 1) & 0x7FFFFFFF)


cpdef BatchInfo check_batch(object records, int version, object limits):
    """Checks the one magic 2 batch of a Produce request, version 3 or later. Raises the error of the response."""
    cdef Py_buffer view
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        return checked(records, <const unsigned char*> view.buf, view.len, version, limits)
    finally:
        PyBuffer_Release(&view)


cdef BatchInfo checked(
    object records, const unsigned char* at, Py_ssize_t size, int version, object limits
):
    cdef BatchInfo info
    cdef int attributes
    if size == 0:
        raise InvalidRecordError("there must be one record batch for the partition, found none")
    if size > MAGIC_AT and at[MAGIC_AT] != 2:
        raise InvalidRecordError(f"Produce version {version} takes magic 2 only, found {at[MAGIC_AT]}")
    if size < HEADER_SIZE:
        raise CorruptMessageError(f"{size} bytes are not a record batch: a header takes {HEADER_SIZE} bytes")
    check_length(size, load_int32(at + LENGTH_AT), limits)
    check_crc(records, load_uint32(at + CRC_AT))
    attributes = load_int16(at + ATTRIBUTES_AT)
    info = BatchInfo.__new__(BatchInfo)
    info.count = load_int32(at + COUNT_AT)
    info.max_timestamp = load_int64(at + MAX_TIMESTAMP_AT)
    info.magic = 2
    info.producer_id = load_int64(at + PRODUCER_ID_AT)
    info.producer_epoch = load_int16(at + PRODUCER_EPOCH_AT)
    info.base_sequence = load_int32(at + BASE_SEQUENCE_AT)
    info.transactional = attributes & TRANSACTIONAL != 0
    info.append_time = attributes & LOG_APPEND_TIME != 0
    check_fields(info, load_int32(at + LAST_DELTA_AT))
    if attributes & CONTROL:
        raise InvalidRecordError("clients may not write control batches")
    check_codec(attributes & CODEC_MASK, version)
    check_count(info.count, attributes & CODEC_MASK, size - HEADER_SIZE, limits)
    return info


cdef int check_length(Py_ssize_t size, int64_t length, object limits) except -1:
    cdef int64_t allowed
    if length < HEADER_SIZE - OVERHEAD or length + OVERHEAD > size:
        raise CorruptMessageError(f"the batch length is {length}, but {size - OVERHEAD} bytes follow it")
    if length + OVERHEAD < size:
        raise InvalidRecordError(f"{size - length - OVERHEAD} bytes follow the batch: exactly one batch is allowed")
    allowed = limits.max_message_bytes
    if size > allowed:
        raise RecordTooLargeError(f"the batch has {size} bytes, max.message.bytes is {allowed}")
    return 0


cdef int check_crc(object records, uint32_t expected) except -1:
    cdef uint32_t actual = crc32c(PyMemoryView_FromObject(records)[ATTRIBUTES_AT:])
    if actual != expected:
        raise CorruptMessageError(f"the batch header has CRC {expected:#010x}, its bytes have CRC {actual:#010x}")
    return 0


cdef int check_fields(BatchInfo info, int64_t last_delta) except -1:
    if info.count <= 0 or last_delta != info.count - 1:
        raise InvalidRecordError(f"the batch has {info.count} records, but its last offset delta is {last_delta}")
    if info.producer_id >= 0 and (info.base_sequence < 0 or info.producer_epoch < 0):
        raise InvalidRecordError(
            f"producer id {info.producer_id} needs an epoch and a base sequence, found epoch {info.producer_epoch} "
            f"and sequence {info.base_sequence}"
        )
    return 0


cdef int check_codec(int codec, int version) except -1:
    if codec >= CODECS:
        raise UnsupportedCompressionTypeError(f"compression type {codec} is unknown")
    if codec == ZSTD and version < FIRST_WITH_ZSTD:
        raise UnsupportedCompressionTypeError(f"zstd needs Produce version 7 or later, this is version {version}")
    return 0


cdef int check_count(int64_t count, int codec, Py_ssize_t size, object limits) except -1:
    """A batch takes as many offsets as it says to have records: a segment ends after 2^31 of them."""
    cdef int64_t most = size
    if count * SMALLEST_RECORD <= size:
        return 0
    if codec != NONE:
        most = compression.max_unpacked(codec, size, limits.max_message_bytes)
    if count * SMALLEST_RECORD > most:
        raise InvalidRecordError(f"the batch says {count} records, its records may take {most} bytes")
    return 0


cpdef int stamp(bytearray data, int64_t base_offset, int32_t leader_epoch) except -1:
    """Writes the two fields of a magic 2 batch that the leader sets. The CRC covers neither."""
    cdef unsigned char* at
    if data is None or PyByteArray_GET_SIZE(data) < HEADER_SIZE:
        raise ValueError("a batch begins with a header")
    at = <unsigned char*> PyByteArray_AS_STRING(data)
    store_int64(at, base_offset)
    store_uint32(at + OVERHEAD, <uint32_t> leader_epoch)
    return 0
