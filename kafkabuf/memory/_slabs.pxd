# cython: language_level=3
"""The table of a pool's slabs: the state and generation of each slab, and the free slabs. Plain C.

The pool's lock guards it. Free slabs are in a doubly linked list, last freed first, which serves a single slab in O(1),
and in a bitmap, in which a search for a run of adjacent slabs checks 64 slabs at a time. The list is doubly linked so
that a run can leave it from any place.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset


cdef extern from * nogil:
    int __builtin_ctzll(unsigned long long) noexcept
    int __builtin_popcountll(unsigned long long) noexcept


cdef enum:
    STATES = 6
    MAX_SLABS = 0x7FFFFFFE      # links are 32 bits wide, and the sentinel needs an index


cdef enum SlabState:
    FREE            # in the free list; nobody may read or write it
    CUT             # cut into blocks, which have states and generations of their own (_blocks.pxd). No block is CUT
    OPEN            # records are being appended
    CLOSED          # full or flushed; its batch waits for the Sender
    IN_FLIGHT       # a socket may still read it, even if its batch has ended
    SCRATCH         # compression output and other work space


cdef struct Slot:
    int32_t next            # the list is circular; slots[slab_count] is its sentinel.
    int32_t prev            # Both links have a meaning only while the slab is FREE
    uint32_t generation     # incremented at every release: an owner of an older generation has lost the slab
    uint8_t state           # a SlabState


cdef struct SlabTable:
    Py_ssize_t slab_count
    Py_ssize_t free_count
    Slot* slots             # slab_count + 1
    uint64_t* free_bits     # bit i % 64 of word i / 64: slab i is FREE


cdef inline void _push(SlabTable* table, Py_ssize_t slab) noexcept nogil:
    cdef Slot* slot = &table.slots[slab]
    cdef Slot* sentinel = &table.slots[table.slab_count]
    slot.state = FREE
    slot.next = sentinel.next
    slot.prev = <int32_t> table.slab_count
    table.slots[sentinel.next].prev = <int32_t> slab
    sentinel.next = <int32_t> slab
    table.free_bits[slab >> 6] |= <uint64_t> 1 << (slab & 63)
    table.free_count += 1


# Returns 0, or -1 without memory. The caller must call tear_down in both cases.
cdef inline int set_up(SlabTable* table, Py_ssize_t slab_count) noexcept nogil:
    cdef Py_ssize_t slab
    table.slab_count = slab_count
    table.free_count = 0
    table.slots = <Slot*> calloc(slab_count + 1, sizeof(Slot))
    table.free_bits = <uint64_t*> calloc((slab_count >> 6) + 1, sizeof(uint64_t))
    if table.slots == NULL or table.free_bits == NULL:
        return -1
    table.slots[slab_count].next = table.slots[slab_count].prev = <int32_t> slab_count
    for slab in range(slab_count - 1, -1, -1):      # the pool hands out slab 0 first
        _push(table, slab)
    return 0


cdef inline void tear_down(SlabTable* table) noexcept nogil:
    free(table.slots)
    free(table.free_bits)


# Whether the run exists and none of its slabs is FREE or CUT.
cdef inline bint in_use(SlabTable* table, Py_ssize_t slab, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    if slab < 0 or n < 1 or n > table.slab_count - slab:
        return False
    for i in range(slab, slab + n):
        if table.slots[i].state <= CUT:
            return False
    return True


# The first free slab in [begin, end), or `end`. If all bits of `flip` are set: the first slab in use, or `end`.
cdef inline Py_ssize_t _first_bit(SlabTable* table, Py_ssize_t begin, Py_ssize_t end, uint64_t flip) noexcept nogil:
    cdef Py_ssize_t word = begin >> 6
    cdef uint64_t bits
    if begin >= end:
        return end
    bits = (table.free_bits[word] ^ flip) & (~(<uint64_t> 0) << (begin & 63))
    while bits == 0:
        word += 1
        if word << 6 >= end:
            return end
        bits = table.free_bits[word] ^ flip
    return min(end, (word << 6) + __builtin_ctzll(bits))


# The first slab of the lowest n adjacent free slabs, or -1. The lowest, so that the arena's end stays untouched.
cdef inline Py_ssize_t _find_run(SlabTable* table, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t begin = 0, end
    while True:
        begin = _first_bit(table, begin, table.slab_count, 0)
        if begin > table.slab_count - n:
            return -1
        end = _first_bit(table, begin, begin + n, ~(<uint64_t> 0))
        if end == begin + n:
            return begin
        begin = end


# Take n adjacent free slabs, which become OPEN, and return the first slab; -1 if there is no such run.
cdef inline Py_ssize_t take(SlabTable* table, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t slab
    if n < 1 or n > table.free_count:
        return -1
    slab = table.slots[table.slab_count].next if n == 1 else _find_run(table, n)
    if slab >= 0:
        _take_free(table, slab, n)
    return slab


# Take this very run. False, and no change, if a slab of it is not free.
cdef inline bint take_here(SlabTable* table, Py_ssize_t slab, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    if slab < 0 or n < 1 or n > table.slab_count - slab:
        return False
    for i in range(slab, slab + n):
        if table.slots[i].state != FREE:
            return False
    _take_free(table, slab, n)
    return True


cdef inline void _take_free(SlabTable* table, Py_ssize_t slab, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef Slot* slot
    for i in range(slab, slab + n):
        slot = &table.slots[i]
        slot.state = OPEN
        table.slots[slot.prev].next = slot.next
        table.slots[slot.next].prev = slot.prev
        table.free_bits[i >> 6] &= ~(<uint64_t> 1 << (i & 63))
    table.free_count -= n


# Free a run that is in use; the pool hands out its first slab next.
cdef inline void put(SlabTable* table, Py_ssize_t slab, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(slab + n - 1, slab - 1, -1):
        table.slots[i].generation += 1
        _push(table, i)


cdef inline void count_states(SlabTable* table, Py_ssize_t* counts) noexcept nogil:
    cdef Py_ssize_t i
    memset(counts, 0, STATES * sizeof(Py_ssize_t))
    for i in range(table.slab_count):
        counts[table.slots[i].state] += 1


# The description of an inconsistency in the table, or NULL.
cdef inline const char* inconsistency(SlabTable* table) noexcept nogil:
    cdef Py_ssize_t i, listed = 0, marked = 0, in_state_free = 0
    cdef Slot* slot = &table.slots[table.slab_count]
    cdef int32_t before = <int32_t> table.slab_count
    for i in range(table.slab_count):
        if table.slots[i].state >= STATES:
            return "a slab is in no known state"
        if (table.free_bits[i >> 6] >> (i & 63) & 1) != (table.slots[i].state == FREE):
            return "the bitmap contradicts the states"
        in_state_free += table.slots[i].state == FREE
    for i in range((table.slab_count >> 6) + 1):
        marked += __builtin_popcountll(table.free_bits[i])
    while slot.next != table.slab_count and listed <= table.slab_count:
        i = slot.next
        slot = &table.slots[i]
        if slot.state != FREE or slot.prev != before:
            return "the free list is torn or holds a slab in use"
        before = <int32_t> i
        listed += 1
    if not (listed == marked == table.free_count == in_state_free):
        return "free list, bitmap, states and count disagree on how many slabs are free"
    return NULL
