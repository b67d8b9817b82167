# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: extra_compile_args = -O1
"""Facts of a file's entries, for programs that look at the file and change nothing in it.

The process that has the file may change an entry while it is read. So a reader copies the entry, reads what it names,
and then sees whether the entry in the file is still the same: `is_unchanged`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from kafkabuf._pool cimport BufferPool
from kafkabuf._records cimport (
    BATCH_BASE_SEQUENCE, BATCH_PRODUCER_EPOCH, BATCH_PRODUCER_ID, LARGEST_BATCH, RecordsBuilder, finish, records_start,
)
from kafkabuf.batches._stored cimport (
    LONGEST_NAME, StoredBatch, StoredPartition, StoredSplit, StoredTables, extent_of, slab_of,
)
from kafkabuf.memory._view cimport items_of, length_of, view_of
from kafkabuf.wire._wire cimport get_i16, get_i32, get_i64

from kafkabuf.spool._entries import DamagedError

cdef extern from "<sys/mman.h>" nogil:
    int MAP_NORESERVE

NO_RESERVE = MAP_NORESERVE


# ---- entries as bytes, copied from the file --------------------------------------------------------------------------

def live_entries_in(entries, Py_ssize_t first):
    """(number, first record, place, bytes) of each batch in a piece of the table, which begins with the entry `first`.

    Nobody has checked the numbers yet.
    """
    view = view_of(entries, 1, False)
    cdef const StoredBatch* batches = <const StoredBatch*>items_of(view)
    cdef Py_ssize_t i
    live = []
    for i in range(length_of(view) // <Py_ssize_t>sizeof(StoredBatch)):
        if batches[i].live:
            live.append((batches[i].number, batches[i].first, first + i, <Py_ssize_t>batches[i].builder.position))
    return live


def is_unchanged(bytes before not None, bytes after not None):
    """Whether what was read of the batch held from `before` to `after`: at most, records were appended meanwhile."""
    cdef const StoredBatch* a = <const StoredBatch*><const char*>before
    cdef const StoredBatch* b = <const StoredBatch*><const char*>after
    return bool(
        b.live and a.number == b.number and a.first == b.first and a.run == b.run and a.offset == b.offset
        and a.partition == b.partition
        and a.builder.codec == b.builder.codec and a.builder.base_timestamp == b.builder.base_timestamp
        and a.builder.position <= b.builder.position and a.shadowed == b.shadowed
        and a.base_sequence == b.base_sequence and a.producer_id == b.producer_id
        and a.producer_epoch == b.producer_epoch and a.renumbered == b.renumbered
    )


def is_behind(bytes ahead not None, bytes entry not None):
    """Whether two batches are parts of one, in its run, and `ahead` goes first."""
    cdef const StoredBatch* a = <const StoredBatch*><const char*>ahead
    cdef const StoredBatch* b = <const StoredBatch*><const char*>entry
    return bool(a.number == b.number and a.run == b.run and a.offset <= b.offset and a.builder.capacity
                <= <size_t>(b.offset - a.offset) + records_start(&b.builder))


def places_of_split(bytes split not None):
    """The places of both halves in the table, while a batch is being split; else none. Nobody has checked them yet."""
    cdef const StoredSplit* halves = <const StoredSplit*><const char*>split
    return (halves.front_place, halves.rest_place) if halves.decided else ()


# ---- an entry in tables of the reader's own --------------------------------------------------------------------------

def is_shadowed(StoredTables tables not None, Py_ssize_t place):
    return bool(tables.batches[place].shadowed)


def occupy(StoredTables tables not None, BufferPool pool not None, Py_ssize_t place):
    """Take the run of an entry. False, and no change, if a part of it belongs to another entry. `mend` comes first."""
    cdef StoredBatch* entry = &tables.batches[place]
    return bool(pool.occupy(slab_of(entry.run), extent_of(entry.run)))


def vacate(BufferPool pool not None, bytes entry not None):
    """Give back the run of an entry that was copied before `occupy`."""
    cdef const StoredBatch* batch = <const StoredBatch*><const char*>entry
    pool.release(slab_of(batch.run), extent_of(batch.run))


def facts_of(StoredTables tables not None, Py_ssize_t place):
    """(magic, codec, bytes, time of opening in ms, whether it is not sent before it has numbers, whether it belongs to
    a transaction). `mend` comes first."""
    cdef StoredBatch* entry = &tables.batches[place]
    return (entry.builder.magic, entry.builder.codec, entry.builder.position, entry.created_ms,
            bool(entry.idempotent), bool(entry.transactional))


def numbers_of(StoredTables tables not None, Py_ssize_t place):
    """(producer id, epoch, first sequence) under which the batch may have been sent, or -1 each. `mend` comes first."""
    cdef StoredBatch* entry = &tables.batches[place]
    cdef const uint8_t* header = entry.builder.base
    if entry.base_sequence < 0:
        return -1, -1, -1
    if entry.renumbered and entry.builder.magic >= 2:
        return (get_i64(header + BATCH_PRODUCER_ID), get_i16(header + BATCH_PRODUCER_EPOCH),
                get_i32(header + BATCH_BASE_SEQUENCE))
    return entry.producer_id, entry.producer_epoch, entry.base_sequence


def records_of(StoredTables tables not None, Py_ssize_t place):
    """A copy of the batch as a log has it, with a header of its own. `mend` comes first.

    Raises DamagedError for more bytes than a batch can have.
    """
    cdef StoredBatch* entry = &tables.batches[place]
    cdef RecordsBuilder copied = entry.builder
    if copied.position > LARGEST_BATCH:
        raise DamagedError("it has more bytes than a batch can have")
    cdef bytes data = PyBytes_FromStringAndSize(<const char*>copied.base, <Py_ssize_t>copied.position)
    copied.base = <uint8_t*><char*>data     # nobody else has the bytes yet
    finish(&copied, -1, -1, -1, False)
    return data


def partition_at(StoredTables tables not None, Py_ssize_t place):
    """(topic, partition, producer id, epoch, last acknowledged sequence, its offset).

    None for an entry that no partition has, or that names a topic which the table lacks.
    """
    cdef StoredPartition* entry = &tables.partitions[place]
    if not (entry.used and 0 <= entry.topic < tables.topic_count
            and 0 < tables.topics[entry.topic].name_size <= LONGEST_NAME):
        return None
    return (tables.name_of(entry.topic), entry.partition, entry.producer_id, entry.producer_epoch, entry.last_acked,
            entry.last_acked_offset)
