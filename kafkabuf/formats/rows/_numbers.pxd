# cython: language_level=3
"""Whole numbers in other units, and numbers of 256 bits: four words, least significant first."""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint64_t


# False if the product leaves 63 bits, or a division leaves a remainder.
cdef inline bint scale(int64_t* number, int64_t factor) noexcept nogil:
    if factor < 0:
        if number[0] % -factor:
            return False
        number[0] = number[0] // -factor
        return True
    if number[0] > INT64_MAX // factor or number[0] < INT64_MIN // factor:
        return False
    number[0] = number[0] * factor
    return True


cdef inline void absolute(const uint64_t* words, uint64_t* magnitude) noexcept nogil:
    cdef bint carry = words[3] >> 63
    cdef uint64_t mask = <uint64_t>0 - carry
    cdef int i
    for i in range(4):
        magnitude[i] = (words[i] ^ mask) + carry
        carry = carry and magnitude[i] == 0
