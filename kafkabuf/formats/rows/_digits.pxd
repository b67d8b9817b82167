# cython: language_level=3
"""Decimal digits of whole numbers, two at a time, and the hexadecimal digits of uuids.

Capacity contract: no function here checks bounds. A uint64 takes at most 20 bytes, a uuid UUID_TEXT.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kafkabuf.wire._wire cimport kb_bits


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
    static const char kb_hexadecimal[] = "0123456789abcdef";
    /* Four digits of a number below 10,000, the first in the lowest byte. */
    static inline uint32_t kb_four_digits(uint32_t number) {
        uint16_t high, low;
        uint32_t hundreds = number * 5243 >> 19;
        memcpy(&high, kb_pairs + 2 * hundreds, 2);
        memcpy(&low, kb_pairs + 2 * (number - 100 * hundreds), 2);
        return high | (uint32_t)low << 16;
    }
    /* The bits of the zeros that the four digits begin with; the last digit stays. */
    static inline int kb_leading_zeros(uint32_t digits) {
        return __builtin_ctz((digits ^ 0x30303030) | 0x01000000) & ~7;
    }
    """
    uint32_t kb_four_digits(uint32_t number) noexcept
    int kb_leading_zeros(uint32_t digits) noexcept
    const char* kb_pairs
    const uint64_t* kb_tens
    const char* kb_hexadecimal


cdef enum:
    UUID_TEXT = 36


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


# Numbers below 10,000 take no branch that depends on their digits, which a processor would often predict wrongly. Up to
# three bytes behind the digits are overwritten.
cdef inline uint8_t* put_unsigned(uint8_t* p, uint64_t number) noexcept nogil:
    cdef uint32_t digits
    cdef int zeros
    if number >= 10000:
        return put_padded(p, number, count_digits(number))
    digits = kb_four_digits(<uint32_t>number)
    zeros = kb_leading_zeros(digits)
    digits >>= zeros
    memcpy(p, &digits, 4)
    return p + 4 - (zeros >> 3)


# 16 bytes as RFC 4122 writes them: 8-4-4-4-12 digits.
cdef inline uint8_t* put_uuid(uint8_t* p, const uint8_t* data) noexcept nogil:
    cdef int i
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            p[0] = b"-"
            p += 1
        p[0] = <uint8_t>kb_hexadecimal[data[i] >> 4]
        p[1] = <uint8_t>kb_hexadecimal[data[i] & 15]
        p += 2
    return p


# Whether text is a uuid as RFC 4122 writes it, which lets a reader take either case of a digit.
cdef inline bint is_uuid(const uint8_t* text, int64_t size) noexcept nogil:
    cdef int i
    cdef uint8_t letter
    cdef bint wrong = size != UUID_TEXT
    if wrong:
        return False
    for i in range(UUID_TEXT):
        if i == 8 or i == 13 or i == 18 or i == 23:
            wrong |= text[i] != b"-"
        else:
            letter = text[i] | 0x20
            wrong |= <uint8_t>(text[i] - 0x30) > 9 and <uint8_t>(letter - 0x61) > 5
    return not wrong
