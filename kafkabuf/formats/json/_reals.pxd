# cython: language_level=3
"""Numbers as text: floating-point numbers in the dialects of JSON, and decimals.

Capacity contract: no function here checks bounds. A floating-point number takes at most REAL_ROOM bytes.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from kafkabuf.formats.rows._digits cimport count_digits, put_padded, put_unsigned
from kafkabuf.formats.json._shortest cimport Decimal


cdef extern from * nogil:
    """
    #define KB_PART 1000000000000000000ULL
    /* (high * 2^64 + low) / divisor for high < divisor. */
    static inline uint64_t kb_divide(uint64_t high, uint64_t low, uint64_t divisor, uint64_t *remainder) {
        unsigned __int128 number = (unsigned __int128)high << 64 | low;
        *remainder = (uint64_t)(number % divisor);
        return (uint64_t)(number / divisor);
    }
    """
    uint64_t PART "KB_PART"     # 10^PART_DIGITS
    uint64_t kb_divide(uint64_t high, uint64_t low, uint64_t divisor, uint64_t* remainder) noexcept


cdef enum:
    REAL_ROOM = 32
    DECIMAL_DIGITS = 78         # of 2^255, rounded up
    PART_DIGITS = 18            # digits that are made at a time
    PARTS = 5


# Digits with a point behind the first `point` of them: 0.00123, 1.23 or 12300.0.
cdef inline uint8_t* put_plain(uint8_t* p, uint64_t digits, int size, int point) noexcept nogil:
    if point <= 0:
        memcpy(p, b"0.", 2)
        memset(p + 2, b"0", <size_t>-point)
        return put_padded(p + 2 - point, digits, size)
    if point >= size:
        p = put_padded(p, digits, size)
        memset(p, b"0", <size_t>(point - size))
        p += point - size
        memcpy(p, b".0", 2)
        return p + 2
    put_padded(p + 1, digits, size)
    memmove(p, p + 1, <size_t>point)
    p[point] = b"."
    return p + size + 1


# 1.23E45 in Spark's dialect, where 1 is 1.0E0; else 1.23e+45.
cdef inline uint8_t* put_scientific(uint8_t* p, uint64_t digits, int size, int exponent, bint spark) noexcept nogil:
    put_padded(p + 1, digits, size)
    p[0] = p[1]
    p[1] = b"."
    p += size + 1
    if size == 1 and spark:
        p[0] = b"0"
        p += 1
    elif size == 1:
        p -= 1
    p[0] = b"E" if spark else b"e"
    p += 1
    if exponent < 0:
        p[0] = b"-"
        p += 1
    elif not spark:
        p[0] = b"+"
        p += 1
    return put_unsigned(p, <uint64_t>(-exponent if exponent < 0 else exponent))


# A finite number. Spark's dialect is that of Java's Double.toString; else that of orjson.
cdef inline uint8_t* put_real(uint8_t* p, Decimal number, bint negative, bint spark) noexcept nogil:
    cdef int size, point
    if negative:
        p[0] = b"-"
        p += 1
    if number.digits == 0:
        memcpy(p, b"0.0", 3)
        return p + 3
    while number.digits % 10 == 0:
        number.digits //= 10
        number.exponent += 1
    size = count_digits(number.digits)
    point = size + number.exponent
    if (-3 < point <= 7) if spark else (-5 < point <= 16):
        return put_plain(p, number.digits, size, point)
    return put_scientific(p, number.digits, size, point - 1, spark)


# The digits of a number of 256 bits, least significant word first, which is spent. Returns their number, at least 1.
cdef inline int decimal_digits(uint64_t* words, uint8_t* digits) noexcept nogil:
    cdef uint64_t[PARTS] parts
    cdef uint64_t rest
    cdef int count = 0, top = 3, i
    cdef uint8_t* p
    while True:
        while top > 0 and words[top] == 0:
            top -= 1
        if top == 0 and words[0] < PART:
            break
        rest = 0
        for i in range(top, -1, -1):
            words[i] = kb_divide(rest, words[i], PART, &rest)
        parts[count] = rest
        count += 1
    p = put_unsigned(digits, words[0])
    for i in range(count - 1, -1, -1):
        p = put_padded(p, parts[i], PART_DIGITS)
    return <int>(p - digits)
