# cython: language_level=3
"""The table of a pool's blocks: slabs that are cut into halves, quarters and so on, for small batches. Plain C.

A block of *level* k is a 2^k-th part of a slab. The table counts in *units*, blocks of the highest level: slab s begins
at unit s << levels. The size of a unit is rounded down to bytes, so the end of a cut slab may belong to no block. A
block is described at its first unit. Freed buddies, the two halves of a larger block, merge at once; when all blocks of
a slab are free, the slab is free again (Knowlton's buddy system). So a slab in state CUT has a block in use. A new
block comes from a slab that is cut already if any has room, so that whole slabs stay free.

The pool's lock guards the table. The memory of the table is touched only where slabs were cut.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free

from kafkabuf.memory._slabs cimport CUT, FREE, OPEN, STATES, SlabTable, put, take, take_here


cdef enum:
    MOST_LEVELS = 10
    SMALLEST_BLOCK = 1024       # bytes
    MAX_UNITS = 0x7FFFFFFE      # links are 32 bits wide
    NO_UNIT = -1


cdef struct Block:
    int32_t next            # both links have a meaning only while the block is FREE
    int32_t prev
    uint32_t generation     # incremented at every release of a block that begins here: its owner has lost it
    uint8_t state           # a SlabState
    uint8_t level           # 0: no block begins at this unit


cdef struct BlockTable:
    int levels                                      # the level of a unit; 0: the slabs are too small to be cut
    Py_ssize_t unit_size                            # bytes
    Block* units                                    # slab_count << levels; NULL if levels is 0
    int32_t[MOST_LEVELS + 1] free_list              # by level, the first unit of the block that was freed last
    Py_ssize_t[MOST_LEVELS + 1] free_count


# Returns 0, or -1 without memory. The caller must call tear_down_blocks in both cases.
cdef inline int set_up_blocks(BlockTable* blocks, Py_ssize_t slab_count, Py_ssize_t slab_size) noexcept nogil:
    cdef int level
    blocks.levels = 0
    while (blocks.levels < MOST_LEVELS and slab_size >> (blocks.levels + 1) >= SMALLEST_BLOCK
            and slab_count <= MAX_UNITS >> (blocks.levels + 1)):
        blocks.levels += 1
    blocks.unit_size = slab_size >> blocks.levels
    for level in range(MOST_LEVELS + 1):
        blocks.free_list[level] = NO_UNIT
        blocks.free_count[level] = 0
    if blocks.levels == 0:
        return 0
    blocks.units = <Block*> calloc(slab_count << blocks.levels, sizeof(Block))
    return 0 if blocks.units != NULL else -1


cdef inline void tear_down_blocks(BlockTable* blocks) noexcept nogil:
    free(blocks.units)


# Bytes of a block.
cdef inline Py_ssize_t block_size(const BlockTable* blocks, Py_ssize_t level) noexcept nogil:
    return blocks.unit_size << (blocks.levels - level)


cdef inline void _push_block(BlockTable* blocks, Py_ssize_t unit, Py_ssize_t level) noexcept nogil:
    cdef Block* block = &blocks.units[unit]
    block.state = FREE
    block.level = <uint8_t> level
    block.next = blocks.free_list[level]
    block.prev = NO_UNIT
    if block.next != NO_UNIT:
        blocks.units[block.next].prev = <int32_t> unit
    blocks.free_list[level] = <int32_t> unit
    blocks.free_count[level] += 1


cdef inline void _unlink_block(BlockTable* blocks, Py_ssize_t unit) noexcept nogil:
    """Take a free block out of its list. No block begins at its first unit then."""
    cdef Block* block = &blocks.units[unit]
    if block.prev == NO_UNIT:
        blocks.free_list[block.level] = block.next
    else:
        blocks.units[block.prev].next = block.next
    if block.next != NO_UNIT:
        blocks.units[block.next].prev = block.prev
    blocks.free_count[block.level] -= 1
    block.level = 0


# Take a block, which becomes OPEN, and return its first unit; -1 if there is none.
cdef inline Py_ssize_t take_block(BlockTable* blocks, SlabTable* table, Py_ssize_t level) noexcept nogil:
    cdef Py_ssize_t unit
    cdef Py_ssize_t cut = level
    if level < 1 or level > blocks.levels:
        return -1
    while cut > 0 and blocks.free_list[cut] == NO_UNIT:
        cut -= 1
    if cut > 0:
        unit = blocks.free_list[cut]
        _unlink_block(blocks, unit)
    else:
        unit = take(table, 1)
        if unit < 0:
            return -1
        table.slots[unit].state = CUT
        unit <<= blocks.levels
    while cut < level:
        cut += 1
        _push_block(blocks, unit + (<Py_ssize_t> 1 << (blocks.levels - cut)), cut)
    blocks.units[unit].state = OPEN
    blocks.units[unit].level = <uint8_t> level
    return unit


# Take this very block. False, and no change, if it is not free.
cdef inline bint take_block_here(
    BlockTable* blocks, SlabTable* table, Py_ssize_t unit, Py_ssize_t level
) noexcept nogil:
    cdef Py_ssize_t cut = level, around = unit, half
    if unit & ((<Py_ssize_t> 1 << (blocks.levels - level)) - 1):
        return False
    # The free block that the block is, or lies in.
    while cut > 0 and not (blocks.units[around].level == cut and blocks.units[around].state == FREE):
        cut -= 1
        around = unit & ~((<Py_ssize_t> 1 << (blocks.levels - cut)) - 1)
    if cut > 0:
        _unlink_block(blocks, around)
    elif take_here(table, unit >> blocks.levels, 1):
        table.slots[unit >> blocks.levels].state = CUT
    else:
        return False
    while cut < level:
        cut += 1
        half = <Py_ssize_t> 1 << (blocks.levels - cut)
        # The half without the block is free.
        _push_block(blocks, around if unit & half else around + half, cut)
        around |= unit & half
    blocks.units[unit].state = OPEN
    blocks.units[unit].level = <uint8_t> level
    return True


# Whether a block of this level begins at the unit and is not FREE.
cdef inline bint block_in_use(BlockTable* blocks, SlabTable* table, Py_ssize_t unit, Py_ssize_t level) noexcept nogil:
    return (0 < level <= blocks.levels and 0 <= unit < table.slab_count << blocks.levels
            and blocks.units[unit].level == level and blocks.units[unit].state != FREE)


# Free a block that is in use.
cdef inline void put_block(BlockTable* blocks, SlabTable* table, Py_ssize_t unit, Py_ssize_t level) noexcept nogil:
    cdef Py_ssize_t buddy
    blocks.units[unit].generation += 1
    blocks.units[unit].state = FREE
    blocks.units[unit].level = 0
    while level > 0:
        buddy = unit ^ (<Py_ssize_t> 1 << (blocks.levels - level))
        if blocks.units[buddy].level != level or blocks.units[buddy].state != FREE:
            _push_block(blocks, unit, level)
            return
        _unlink_block(blocks, buddy)
        unit = min(unit, buddy)
        level -= 1
    put(table, unit >> blocks.levels, 1)


# Add the bytes of all blocks to `nbytes`, by state. Returns the bytes at the ends of cut slabs that belong to no block.
cdef inline Py_ssize_t count_blocks(
    BlockTable* blocks, SlabTable* table, Py_ssize_t slab_size, Py_ssize_t* nbytes
) noexcept nogil:
    cdef Py_ssize_t slab, unit, tails = 0
    cdef int level
    for slab in range(table.slab_count):
        if table.slots[slab].state != CUT:
            continue
        tails += slab_size
        unit = slab << blocks.levels
        while unit < (slab + 1) << blocks.levels:
            level = blocks.units[unit].level
            nbytes[blocks.units[unit].state] += block_size(blocks, level)
            tails -= block_size(blocks, level)
            unit += <Py_ssize_t> 1 << (blocks.levels - level)
    return tails


# The description of an inconsistency in the table, or NULL.
cdef inline const char* block_inconsistency(BlockTable* blocks, SlabTable* table) noexcept nogil:
    cdef Py_ssize_t slab, unit, inner, end, size, listed, free_blocks = 0, all_listed = 0
    cdef int level
    cdef Block* block
    for slab in range(table.slab_count if blocks.levels else 0):
        unit = slab << blocks.levels
        end = (slab + 1) << blocks.levels
        while unit < end:
            block = &blocks.units[unit]
            level = block.level
            size = 1 if level == 0 else <Py_ssize_t> 1 << (blocks.levels - level)
            if (level != 0) != (table.slots[slab].state == CUT) or level > blocks.levels or unit & (size - 1):
                return "a slab is cut and has no blocks, or the other way round, or its blocks overlap"
            if level != 0 and (block.state >= STATES or block.state == CUT):
                return "a block is in no known state"
            if level != 0 and block.state == FREE:
                free_blocks += 1
                if blocks.units[unit ^ size].level == level and blocks.units[unit ^ size].state == FREE:
                    return "two buddies are free and have not merged"
            for inner in range(unit + 1, unit + size):
                if blocks.units[inner].level != 0:
                    return "a block begins within another block"
            unit += size
    for level in range(1, blocks.levels + 1):
        listed = 0
        unit = blocks.free_list[level]
        while unit != NO_UNIT and listed <= blocks.free_count[level]:
            block = &blocks.units[unit]
            if block.level != level or block.state != FREE:
                return "a list of free blocks is torn, or holds a block in use"
            if block.next != NO_UNIT and blocks.units[block.next].prev != unit:
                return "the links of a list of free blocks disagree"
            listed += 1
            unit = block.next
        if listed != blocks.free_count[level]:
            return "a list of free blocks and its count disagree"
        all_listed += listed
    if all_listed != free_blocks:
        return "free blocks are in no list"
    return NULL
