# cython: language_level=3
"""What of a batch and of its partition outlives the process. Plain C, in memory of this process or in a mapped file.

A StoredBatch lies in its Batch, or with `buffer_path` in the table of a file, where the next process finds it. The code
that writes it is the same. The process may be killed between any two instructions. So each step becomes visible by one
store, behind all stores that the step needs (memory/_order.h):

    a batch                 live, behind everything else
    a record                builder.position, behind its bytes. Count and timestamps follow from the records
    a larger run            run, behind the copy of the records
    numbers                 base_sequence, behind id and epoch. Of a renumbered batch the header has those that count:
                            it has not gone under the new ones
    records compressed      shadowed: set behind the shadow, the compressed records in a scratch, and cleared behind the
                            last byte of their copy in place. While it is set, and there is no seal, the shadow counts
    a split                 StoredSplit.decided, behind both halves. While it is set, the halves count, and not what the
                            table says of the whole. Each half then has an entry of its own, over the run of the whole
    the end of the batch    live = 0, before anybody else gets the memory

A kill takes no store back, but a loss of power does: the disk then has some pages of a state and lacks others. So a
batch that takes no further record has a checksum, `seal`, and each entry one of what never changes, `live`. Of the
records of an open batch a reader sees the form only.

The producer's lock guards the tables, and the comment of Batch names the owners of a StoredBatch's fields.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kafkabuf._records cimport RecordsBuilder, records_start
from kafkabuf.memory._order cimport kb_in_order


# The records of a batch as they lie elsewhere: in a scratch.
cdef struct Shadow:
    int64_t at                      # bytes from the beginning of the arena
    int64_t size
    int8_t codec


# Of a recovered batch without numbers (_sequences.pxd).
cdef enum Line:
    IN_LINE = 1                     # it goes under the id of its partition's entry, in the epoch of recovered batches
    IN_NO_LINE                      # it goes under the new id of whoever sends it


cdef struct StoredBatch:
    # ---- the records. Of an open batch only base_timestamp and position are true at every instant
    RecordsBuilder builder
    int64_t run                     # the run of the pool, packed by `pack_run`
    int64_t other_run               # ~run; while the batch moves, that of the run before
    int64_t offset                  # bytes from the beginning of the run to the builder's base; 0 except in parts
    # ---- its place among the batches of its producer
    int64_t number                  # rises in the order in which batches are opened
    int32_t first                   # index of the first record, as its future counts; 0 except in parts
    # ---- under which it was sent
    int32_t base_sequence           # number of its first record; -1: it has no numbers
    int64_t producer_id
    int16_t producer_epoch
    uint8_t renumbered              # the header, and the request in flight, still have the old numbers
    uint8_t line                    # a Line: 0 until a process after the one that wrote the batch opens the file
    # ---- in a file only
    uint32_t seal                   # the checksum of the records and of all fields but the numbers and those below; 0:
    #                                 none, as the batch is open, changes just now, or has ended
    uint32_t live                   # life_of() if the entry holds a batch, else 0
    uint8_t shadowed
    uint8_t transactional           # it belongs to a transaction
    uint8_t idempotent              # it is not sent before it has numbers
    int32_t partition               # its StoredPartition's place in the table
    int64_t created_ms              # time of day at which the batch was opened
    Shadow shadow


# A batch that falls into two halves (_split.pyx), from the decision until both halves lie in the table and in the run.
# The records of the rest lie in the scratch meanwhile.
cdef struct StoredSplit:
    StoredBatch front, rest
    int32_t front_place, rest_place     # in the table; the whole had the rest's
    int64_t at                      # where the rest's records belong: bytes from the beginning of the arena
    int64_t size
    uint32_t decided                # the checksum of all that; 0: no batch is being split


# What a partition's queue remembers of its log: the numbers that it gave last, and what the broker has acknowledged
# last. Thread: Sender.
cdef struct StoredPartition:
    int64_t last_acked_offset       # -1: no offset yet
    int64_t producer_id             # the id under which `last_acked` and `next_sequence` count; -1: no number was given
    int32_t last_acked              # number of the last record that the broker is known to have
    int32_t next_sequence
    int16_t producer_epoch
    uint8_t used                    # whether the entry belongs to a partition
    uint32_t seal                   # the checksum of the two fields below
    int32_t topic                   # its StoredTopic's place in the table
    int32_t partition


cdef enum:
    KEPT_FOR_PARTS = 64             # entries of the table of batches that only a split takes
    LONGEST_NAME = 249              # bytes of a topic's name
    MOST_PARTITIONS = 1 << 17       # of a topic: more is damage, and would take gigabytes of memory
    READ_AT_A_TIME = 16 << 20       # bytes of the table of batches that are read before their pages are let go
    IDLE_PAGES = 24 << 20           # bytes of the file that are not in use, and whose pages the process holds


cdef struct StoredTopic:
    int32_t name_size               # 0: the entry belongs to no topic
    int32_t partitions
    uint8_t[16] topic_id            # zeros: the brokers are too old to name it
    uint32_t seal                   # the checksum of the name
    char[LONGEST_NAME + 7] name


cdef enum:
    LARGEST_SEQUENCE = 0x7FFFFFFF   # the next sequence number is 0


cdef inline int32_t sequence_after(int32_t sequence, int64_t count) noexcept nogil:
    return <int32_t>((sequence + count) & LARGEST_SEQUENCE)


cdef inline int64_t pack_run(Py_ssize_t slab, Py_ssize_t extent) noexcept nogil:
    return <int64_t>slab << 32 | <uint32_t>extent


cdef inline Py_ssize_t slab_of(int64_t run) noexcept nogil:
    return <Py_ssize_t>(run >> 32)


cdef inline Py_ssize_t extent_of(int64_t run) noexcept nogil:
    return <Py_ssize_t><int32_t>(<uint32_t>run)


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


# From now on the `size` bytes at `at` are the batch's records, until `unshadow`.
cdef inline void cast_shadow(StoredBatch* stored, int64_t at, int64_t size, int8_t codec) noexcept nogil:
    stored.shadow.at = at
    stored.shadow.size = size
    stored.shadow.codec = codec
    kb_in_order()
    stored.shadowed = True
    kb_in_order()


# The seal of a closed batch whose records lie at `records`. It is not 0.
cdef uint32_t seal_of(const StoredBatch* stored, const uint8_t* records) noexcept nogil
# The checksum of what is fixed from the batch's opening on. It is not 0.
cdef uint32_t life_of(const StoredBatch* stored) noexcept nogil
cdef uint32_t seal_of_partition(const StoredPartition* entry) noexcept nogil
cdef uint32_t seal_of_topic(const StoredTopic* entry) noexcept nogil


# Between both calls the records change.
cdef inline void unseal(StoredBatch* stored) noexcept nogil:
    stored.seal = 0
    kb_in_order()


cdef inline void seal_records(StoredBatch* stored) noexcept nogil:
    kb_in_order()
    stored.seal = seal_of(stored, stored.builder.base + records_start(&stored.builder))
    kb_in_order()


cdef inline void unshadow(StoredBatch* stored) noexcept nogil:
    kb_in_order()
    stored.shadowed = False
    kb_in_order()


# The tables of a file. The accumulator takes and gives back entries under the producer's lock.
cdef class StoredTables:
    cdef object memory                  # views of the file's memory, in which the tables lie
    cdef StoredTopic* topics
    cdef StoredPartition* partitions
    cdef StoredBatch* batches
    cdef StoredSplit* split
    cdef uint8_t* arena
    cdef uint8_t* scratch               # of the Sender; that of the compression thread lies behind it
    cdef Py_ssize_t scratch_size        # bytes of each
    cdef readonly Py_ssize_t topic_count, partition_count, batch_count      # entries
    cdef uint8_t* mapping               # of the whole file; NULL: the tables lie in other memory
    cdef Py_ssize_t mapping_size
    cdef Py_ssize_t fewest_free         # bytes of the pool that were free, since `follow_use` let go of pages. Thread:
    #                                     Sender
    # A stack of free entries of batches. The lowest lies on top at first: the end of the table stays untouched.
    cdef int32_t* free
    cdef Py_ssize_t free_count
    cdef dict topic_places              # name -> place
    cdef dict partition_places          # (place of the topic, partition) -> place

    # Let go of all pages of the file that this process has touched, as `SpoolFile.forget_pages`.
    cdef void forget_pages(self) noexcept nogil
    # A walk over the table of batches has read this entry: it lets go of pages after every READ_AT_A_TIME bytes.
    cdef inline void after_entry(self, Py_ssize_t place) noexcept nogil:
        if place % (READ_AT_A_TIME // <Py_ssize_t>sizeof(StoredBatch)) == 0:
            self.forget_pages()
    # `free` bytes of the pool are free. Let go of the file's pages once IDLE_PAGES more bytes are free than at another
    # time since the last call that did so. The pool hands out first what was freed last. So the process holds pages of
    # the bytes in use and of IDLE_PAGES bytes, and no more. Thread: Sender.
    cdef inline void follow_use(self, Py_ssize_t free) noexcept:
        self.fewest_free = min(self.fewest_free, free)
        if free - self.fewest_free > IDLE_PAGES:
            self.fewest_free = free
            with nogil:
                self.forget_pages()
    # An entry; NULL if all are taken but those that are kept for parts.
    cdef StoredBatch* take(self) noexcept nogil
    # An entry for a part of a batch; NULL if all are taken.
    cdef StoredBatch* take_for_part(self) noexcept nogil
    # Put `front`, in a free entry, and `rest`, in place of the whole, into the table, and the rest's records, which lie
    # in the Sender's scratch, to their place. A kill in between leaves the whole or both halves. Thread: Sender.
    cdef void divide(
        self, StoredBatch* whole, StoredBatch* entry, const StoredBatch* front, const StoredBatch* rest
    ) noexcept nogil
    cdef uint32_t split_checksum(self) noexcept nogil
    cdef void carry_out_split(self) noexcept nogil
    cdef void finish_split(self, Py_ssize_t arena_size) noexcept
    cdef void give_back(self, StoredBatch* entry) noexcept nogil
    cdef inline int32_t place_of(self, StoredPartition* entry) noexcept nogil:
        return <int32_t>(entry - self.partitions)

    # Whether the entry is used and undamaged.
    cdef bint knows_topic(self, Py_ssize_t place) noexcept
    cdef bint knows_partition(self, Py_ssize_t place) noexcept
    # The entry of a partition, which is made if the partition has none. Raises KafkaError if the table is full.
    cdef StoredPartition* enter(self, str topic, int32_t partition) except NULL
