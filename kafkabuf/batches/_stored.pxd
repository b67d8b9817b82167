# cython: language_level=3
"""What a batch needs to outlive its process: its records' place, and the numbers under which it was sent. Plain C.

The struct lies in its Batch, or with `buffer_path` in the table of a mapped file, where the next process finds it. The
code that writes it is the same. Each step that may be cut off by the end of the process becomes visible by one store,
behind all stores that the step needs (_order.h):

    a record        builder.position, behind the record's bytes. Count and timestamps follow from the records
    a larger run    run, behind the copy of the records
    numbers         base_sequence, behind id and epoch
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

from kafkabuf._records cimport RecordsBuilder
from kafkabuf.memory._order cimport kb_in_order


cdef struct StoredBatch:
    # ---- the records; of a batch that is open, only base_timestamp and position are what they say at any instant
    RecordsBuilder builder
    int64_t run                     # the run of the pool, packed by `pack_run`
    # ---- its place among the batches of its producer
    int64_t number                  # rises in the order in which batches are opened
    int32_t first                   # index of the first record, as its future counts; 0 except in parts
    # ---- under which it was sent; base_sequence -1: it has no numbers
    int32_t base_sequence           # number of its first record
    int64_t producer_id
    int16_t producer_epoch


cdef inline int64_t pack_run(Py_ssize_t slab, Py_ssize_t extent) noexcept nogil:
    return <int64_t>slab << 32 | <uint32_t>extent


# Number the batch anew. An end of the process in between leaves a batch without numbers: nobody numbers a batch anew
# that a broker may have taken under the numbers before.
cdef inline void put_numbers(
    StoredBatch* stored, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence
) noexcept nogil:
    stored.base_sequence = -1
    kb_in_order()
    stored.producer_id = producer_id
    stored.producer_epoch = producer_epoch
    kb_in_order()
    stored.base_sequence = base_sequence
