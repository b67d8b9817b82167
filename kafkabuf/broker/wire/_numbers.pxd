# cython: language_level=3
"""Big-endian numbers of frames and of batch headers, in C. The broker does not use the client's `_wire.pxd`."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t


cdef inline uint32_t load_uint32(const unsigned char* at) noexcept nogil:
    return <uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | <uint32_t> at[2] << 8 | at[3]


cdef inline int16_t load_int16(const unsigned char* at) noexcept nogil:
    return <int16_t> (at[0] << 8 | at[1])


cdef inline int32_t load_int32(const unsigned char* at) noexcept nogil:
    return <int32_t> load_uint32(at)


cdef inline int64_t load_int64(const unsigned char* at) noexcept nogil:
    return <int64_t> (<uint64_t> load_uint32(at) << 32 | load_uint32(at + 4))


cdef inline void store_uint32(unsigned char* at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = value >> 16 & 0xFF
    at[2] = value >> 8 & 0xFF
    at[3] = value & 0xFF


cdef inline void store_int16(unsigned char* at, int16_t value) noexcept nogil:
    at[0] = <uint16_t> value >> 8
    at[1] = value & 0xFF


cdef inline void store_int64(unsigned char* at, int64_t value) noexcept nogil:
    store_uint32(at, <uint32_t> (<uint64_t> value >> 32))
    store_uint32(at + 4, <uint32_t> value)
