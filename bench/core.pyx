# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""C functions of the package, called from Python: loops for the benches, and leaves for the tests.

The package has no such functions of its own: it exports the C functions in its .pxd files, for this module too.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t

from cpython.bytes cimport PyBytes_AS_STRING
from kafkabuf._pool cimport BufferPool
from kafkabuf._records cimport (
    Headers, Record, RecordsBuilder, append, attach, attach_none, builder_init, finish, has_room, hold_headers, measure,
    size_upper_bound,
)
from kafkabuf.arrow._array cimport ArrowArray, ArrowSchema, check_table
from kafkabuf.arrow._exported cimport visit_arrays
from kafkabuf.arrow._schema cimport describe
from kafkabuf.formats.rows._encoder cimport RowEncoder, new_encoder
from kafkabuf.memory._held cimport field_of, release_headers, view_or_none
from kafkabuf.memory._view cimport items_of, length_of, view_of
from kafkabuf.process._time cimport kb_monotonic
from kafkabuf.sending._produce cimport took_all
from kafkabuf.wire._wire cimport kb_crc32_init, kb_crc32_portable, kb_crc32c_init, kb_crc32c_portable

kb_crc32_init()
kb_crc32c_init()


# ---- loops, without the GIL ------------------------------------------------------------------------------------------

def append_records(int magic, bytearray memory not None, int64_t timestamp_ms, key, value, Py_ssize_t count):
    """Append `count` times one record: has_room, append, finish when full. Returns the seconds and the last batch."""
    cdef Record r
    cdef RecordsBuilder b
    cdef Py_ssize_t _i
    cdef uint8_t* base = memory
    cdef size_t capacity = <size_t> len(memory)
    r.timestamp = timestamp_ms
    views = view_or_none(key), view_or_none(value)
    r.key, r.value = field_of(views[0]), field_of(views[1])
    attach_none(&r)
    if size_upper_bound(magic, &r) > <int64_t> capacity:
        raise ValueError("the memory must hold one of these records")
    builder_init(&b, base, capacity, capacity, magic)
    started = kb_monotonic()
    with nogil:
        for _i in range(count):
            if not has_room(&b, &r):
                finish(&b, -1, -1, -1, False)
                builder_init(&b, base, capacity, capacity, b.magic)
                measure(&b, &r)
            append(&b, &r)
        finish(&b, -1, -1, -1, False)
    return kb_monotonic() - started, bytes(memory[:b.position])


def allocate_pairs(BufferPool pool not None, Py_ssize_t pairs, nbytes=None):
    """The seconds that `pairs` allocations and releases of `nbytes` (None: a slab) take."""
    cdef Py_ssize_t _i, slab
    cdef Py_ssize_t extent = 1 if nbytes is None else pool.extent_for(nbytes)
    started = kb_monotonic()
    with nogil:
        for _i in range(pairs):
            slab = pool.try_allocate(extent)
            if slab >= 0:
                pool.release(slab, extent)
    return kb_monotonic() - started


cdef class Rounds:
    """One call of encode_rows()."""
    cdef object format
    cdef int64_t rounds, nbytes


def encode_rows(format, data, int64_t rounds):
    """Encode each row of one Arrow array `rounds` times. Returns the size of all that was encoded."""
    cdef Rounds work = Rounds()
    work.format = format
    work.rounds = rounds
    visit_arrays(data, encode_array, work, "encode_rows")
    return work.nbytes


cdef int encode_array(object visitor, ArrowSchema* schema, ArrowArray* array) except -1:
    cdef Rounds work = visitor
    cdef RowEncoder encoder
    cdef int64_t _i, row = 0, size = 0
    check_table(schema, array)
    encoder = new_encoder(work.format.table_program(list(enumerate(describe(schema).children))), 0x7FFFFFFF)
    encoder.bind(schema, array)
    with nogil:
        for _i in range(work.rounds):
            for row in range(encoder.rows):
                size = encoder.encode(row)
                if size < 0:
                    break
                work.nbytes += size
            if size < 0:
                break
    if size < 0:
        raise encoder.refusal(row)
    return 0


# ---- leaves ----------------------------------------------------------------------------------------------------------

def release_run(BufferPool pool not None, Py_ssize_t first, Py_ssize_t extent):
    """Release a run, whoever holds it. Raises ValueError if `release` returns -1."""
    if pool.release(first, extent) < 0:
        raise ValueError(f"the run of extent {extent} from {first} on is not all in use: some of it was released "
                         f"already, or never taken")


def says_all_were_taken(int version, bytes frame not None, int partitions):
    """Whether the poll call takes `frame` for a response without errors about that many partitions."""
    return len(frame) > 0 and took_all(<const uint8_t*> PyBytes_AS_STRING(frame), len(frame), version, partitions)


def estimate_size_upper_bound(int magic, key, value, headers=()):
    """Bytes that a batch of this one record never exceeds (Kafka's `estimateSizeInBytesUpperBound`)."""
    cdef Record r
    cdef Headers held
    views = view_or_none(key), view_or_none(value)
    r.key, r.value = field_of(views[0]), field_of(views[1])
    hold_headers(&held, headers)
    attach(&r, &held)
    release_headers(&held)
    return size_upper_bound(magic, &r)


def crc32c_portable(data, uint32_t crc=0):
    """CRC-32C by table, as CPUs without the instruction compute it."""
    view = view_of(data, 1, False)
    return kb_crc32c_portable(crc, <const uint8_t*> items_of(view), <size_t> length_of(view))


def crc32_portable(data, uint32_t crc=0):
    """CRC-32 by table, as CPUs without carry-less multiplication or a CRC-32 instruction compute it."""
    view = view_of(data, 1, False)
    return kb_crc32_portable(crc, <const uint8_t*> items_of(view), <size_t> length_of(view))
