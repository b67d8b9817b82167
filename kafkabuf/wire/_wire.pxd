# cython: language_level=3
"""Inline functions of the hot path: big-endian stores and loads, varints, fields, CRCs, murmur2.

Capacity contract: no function here checks bounds. The caller has measured the record first and knows that it fits.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef extern from "wire/_crc32.h" nogil:
    # Each module that computes CRCs calls kb_crc32_init or kb_crc32c_init once, when Python imports the module: the
    # tables are static to each extension.
    void kb_crc32_init() noexcept
    uint32_t kb_crc32(uint32_t crc, const uint8_t* data, size_t n) noexcept
    # Uses a table on every CPU.
    uint32_t kb_crc32_portable(uint32_t crc, const uint8_t* data, size_t n) noexcept


cdef extern from "wire/_crc32c.h" nogil:
    void kb_crc32c_init() noexcept
    uint32_t kb_crc32c(uint32_t crc, const uint8_t* data, size_t n) noexcept
    uint32_t kb_crc32c_portable(uint32_t crc, const uint8_t* data, size_t n) noexcept


cdef extern from * nogil:
    """
    #include <stdint.h>
    static inline uint16_t kb_bswap16(uint16_t v) { return __builtin_bswap16(v); }
    static inline uint32_t kb_bswap32(uint32_t v) { return __builtin_bswap32(v); }
    static inline uint64_t kb_bswap64(uint64_t v) { return __builtin_bswap64(v); }
    /* Significant bits of v, at least one. */
    static inline int kb_bits(uint64_t v) { return 64 - __builtin_clzll(v | 1); }
    """
    uint16_t kb_bswap16(uint16_t v) noexcept
    uint32_t kb_bswap32(uint32_t v) noexcept
    uint64_t kb_bswap64(uint64_t v) noexcept
    int kb_bits(uint64_t v) noexcept


# ---- big-endian stores; each returns the address after the bytes that it wrote ---------------------------------------

cdef inline uint8_t* put_i8(uint8_t* p, int8_t v) noexcept nogil:
    p[0] = <uint8_t>v
    return p + 1


cdef inline uint8_t* put_i16(uint8_t* p, int16_t v) noexcept nogil:
    cdef uint16_t swapped = kb_bswap16(<uint16_t>v)
    memcpy(p, &swapped, 2)
    return p + 2


cdef inline uint8_t* put_i32(uint8_t* p, int32_t v) noexcept nogil:
    cdef uint32_t swapped = kb_bswap32(<uint32_t>v)
    memcpy(p, &swapped, 4)
    return p + 4


cdef inline uint8_t* put_i64(uint8_t* p, int64_t v) noexcept nogil:
    cdef uint64_t swapped = kb_bswap64(<uint64_t>v)
    memcpy(p, &swapped, 8)
    return p + 8


cdef inline uint8_t* put_bytes(uint8_t* p, const void* data, size_t n) noexcept nogil:
    memcpy(p, data, n)
    return p + n


# ---- big-endian loads ------------------------------------------------------------------------------------------------

cdef inline int16_t get_i16(const uint8_t* p) noexcept nogil:
    cdef uint16_t raw
    memcpy(&raw, p, 2)
    return <int16_t>kb_bswap16(raw)


cdef inline int32_t get_i32(const uint8_t* p) noexcept nogil:
    cdef uint32_t raw
    memcpy(&raw, p, 4)
    return <int32_t>kb_bswap32(raw)


cdef inline int64_t get_i64(const uint8_t* p) noexcept nogil:
    cdef uint64_t raw
    memcpy(&raw, p, 8)
    return <int64_t>kb_bswap64(raw)


# ---- varints (seven bits a byte, least significant first; signed: zig-zag) -------------------------------------------

cdef inline uint64_t zigzag(int64_t v) noexcept nogil:
    return (<uint64_t>v << 1) ^ <uint64_t>(v >> 63)


cdef inline int uvarint_size(uint64_t v) noexcept nogil:
    if v < 0x80:
        return 1
    return (kb_bits(v) * 9 + 64) >> 6  # bits / 7, rounded up, without a division


cdef inline int varint_size(int64_t v) noexcept nogil:
    return uvarint_size(zigzag(v))


cdef inline uint8_t* put_uvarint(uint8_t* p, uint64_t v) noexcept nogil:
    while v >= 0x80:
        p[0] = <uint8_t>(v | 0x80)
        p += 1
        v >>= 7
    p[0] = <uint8_t>v
    return p + 1


cdef inline uint8_t* put_varint(uint8_t* p, int64_t v) noexcept nogil:
    return put_uvarint(p, zigzag(v))


# ---- bytes that may be null ------------------------------------------------------------------------------------------

cdef struct Field:
    # The bytes of a key, a value, or the key or value of a header. `size` is -1 for null; then `data` is never read.
    const uint8_t* data
    int64_t size


cdef inline int64_t payload(const Field* f) noexcept nogil:
    return f.size if f.size > 0 else 0


# A magic 2 key or value: size varint, -1 for null, then the bytes.
cdef inline uint8_t* put_field(uint8_t* p, const Field* f) noexcept nogil:
    if f.size <= 0:
        return put_i8(p, 0 if f.size == 0 else 1)
    p = put_uvarint(p, <uint64_t>f.size << 1)
    return put_bytes(p, f.data, <size_t>f.size)


cdef inline int64_t field_size(const Field* f) noexcept nogil:
    return 1 if f.size <= 0 else uvarint_size(<uint64_t>f.size << 1) + f.size


# ---- murmur2 of a key, as Java's `Utils.murmur2`, and the partition that it selects ----------------------------------

cdef inline uint32_t murmur2(const uint8_t* data, size_t n) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>n
    cdef uint32_t k
    cdef const uint8_t* end = data + (n & ~<size_t>3)
    while data < end:
        memcpy(&k, data, 4)
        k *= m
        k ^= k >> 24
        h = (h * m) ^ (k * m)
        data += 4
    n &= 3
    if n == 3:
        h ^= <uint32_t>data[2] << 16
    if n >= 2:
        h ^= <uint32_t>data[1] << 8
    if n >= 1:
        h = (h ^ data[0]) * m
    h ^= h >> 13
    h *= m
    return h ^ (h >> 15)


cdef inline int32_t partition_of_key(const uint8_t* data, size_t n, int32_t partitions) noexcept nogil:
    return <int32_t>((murmur2(data, n) & 0x7FFFFFFF) % <uint32_t>partitions)
