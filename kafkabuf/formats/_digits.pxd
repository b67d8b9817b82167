# cython: language_level=3
"""Decimal digits of whole numbers, two at a time.

Capacity contract: no function here checks bounds. A uint64 has at most 20 digits.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from kafkabuf._wire cimport kb_bits


cdef extern from * nogil:
    """
    static const char kb_pairs[] =
        "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
        "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
    /* The least number of n + 1 digits; 0 also has a digit. */
    static const uint64_t kb_tens[20] = {
        0, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000, 10000000000, 100000000000,
        1000000000000, 10000000000000, 100000000000000, 1000000000000000, 10000000000000000, 100000000000000000,
        1000000000000000000, 10000000000000000000U,
    };
    """
    const char* kb_pairs
    const uint64_t* kb_tens


cdef inline int count_digits(uint64_t number) noexcept nogil:
    # 1233 / 4096 is a little more than log10(2).
    cdef int digits = kb_bits(number) * 1233 >> 12
    return digits + (number >= kb_tens[digits])


# The last `width` digits of a number, with zeros before it.
cdef inline uint8_t* put_padded(uint8_t* p, uint64_t number, int width) noexcept nogil:
    cdef uint8_t* at = p + width
    while at - p >= 2:
        at -= 2
        memcpy(at, kb_pairs + 2 * (number % 100), 2)
        number //= 100
    if at > p:
        p[0] = <uint8_t>(0x30 + number % 10)
    return p + width


cdef inline uint8_t* put_pair(uint8_t* p, uint64_t number) noexcept nogil:
    memcpy(p, kb_pairs + 2 * number, 2)
    return p + 2


cdef inline uint8_t* put_unsigned(uint8_t* p, uint64_t number) noexcept nogil:
    return put_padded(p, number, count_digits(number))
