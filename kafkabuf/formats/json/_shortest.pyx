# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Finds the digits of _shortest.pxd by a table of powers of ten, made when the module is loaded."""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from * nogil:
    """
    static inline uint64_t kb_product(uint64_t a, uint64_t b, uint64_t *low) {
        unsigned __int128 product = (unsigned __int128)a * b;
        *low = (uint64_t)product;
        return (uint64_t)(product >> 64);
    }
    """
    uint64_t kb_product(uint64_t a, uint64_t b, uint64_t* low) noexcept

cdef enum:
    LOWEST_POWER = -292
    POWERS = 617

# Powers of ten from 10^-292 on: 128 significant bits, rounded up; the lower half is first.
cdef uint64_t[2 * POWERS] TABLE


cdef int fill_table() except -1:
    cdef int number
    for number in range(POWERS):
        power = number + LOWEST_POWER
        top, bottom = 10 ** max(power, 0), 10 ** max(-power, 0)
        shift = 127 - floor_log2_of_10(power)
        bits = -(-(top << max(shift, 0)) // (bottom << max(-shift, 0)))
        TABLE[2 * number] = bits & 0xFFFFFFFFFFFFFFFF
        TABLE[2 * number + 1] = bits >> 64
    return 0


cdef inline int floor_log2_of_10(int power) noexcept nogil:
    """floor(log2(10^power))."""
    return power * 1741647 >> 19


cdef inline int floor_log10_of_2(int power, bint three_quarters) noexcept nogil:
    """floor(log10(2^power)), or that of three quarters of it."""
    return (power * 1262611 - (524031 if three_quarters else 0)) >> 22


fill_table()


cdef inline uint64_t round_to_odd(const uint64_t* power, uint64_t factor) noexcept nogil:
    """The upper 64 bits of a product of 192 bits; the last bit is set if they are not exact."""
    cdef uint64_t low, high, middle, rest
    middle = kb_product(power[0], factor, &rest)
    high = kb_product(power[1], factor, &low)
    low += middle
    high += low < middle
    return high | (low > 1)


cdef Decimal shortest(uint64_t c, int q, bint lower_is_closer, uint64_t shortened) noexcept nogil:
    """The shortest decimal of c * 2^q. `lower_is_closer`: the next lower number is half as far as the next higher one.

    A digit less is tried from `shortened` on: from 100 if a single digit is not wanted.
    """
    cdef Decimal result
    cdef int k = floor_log10_of_2(q, lower_is_closer)
    cdef int h = q + floor_log2_of_10(-k) + 1
    cdef bint odd = c & 1, under, over
    cdef const uint64_t* power = &TABLE[2 * (-k - LOWEST_POWER)]
    # The bounds of what reads as this number, and the number itself, in quarters of 10^k. Bounds count if c is even.
    cdef uint64_t lower = round_to_odd(power, (4 * c - 2 + lower_is_closer) << h) + odd
    cdef uint64_t upper = round_to_odd(power, (4 * c + 2) << h) - odd
    cdef uint64_t quarters = round_to_odd(power, 4 * c << h)
    cdef uint64_t s = quarters // 4, tenth = s // 10, middle
    result.exponent = k
    if s >= shortened:
        under, over = lower <= 40 * tenth, 40 * tenth + 40 <= upper
        if under != over:
            result.digits = tenth + over
            result.exponent = k + 1
            return result
    under, over = lower <= 4 * s, 4 * s + 4 <= upper
    if under != over:
        result.digits = s + over
        return result
    middle = 4 * s + 2
    # A tie goes to the even digit.
    over = quarters > middle or (quarters == middle and (s & 1) == 1)
    result.digits = s + over
    return result


cdef Decimal shortest_of(
    uint64_t fraction, int exponent, int fraction_bits, int bias, uint64_t tiny
) noexcept nogil:
    """The same for an IEEE 754 number. Below `tiny` least numbers, if not 0, 10^k is too coarse for two digits."""
    cdef Decimal result
    cdef uint64_t shortened = 100 if tiny else 10
    cdef uint64_t c = fraction
    cdef int q = 1 - bias - fraction_bits
    if exponent != 0:
        c |= <uint64_t>1 << fraction_bits
        q += exponent - 1
        # A whole number is its own shortest text where each of its digits counts.
        if -fraction_bits <= q <= 0 and c & ((<uint64_t>1 << -q) - 1) == 0:
            result.digits = c >> -q
            result.exponent = 0
            return result
    elif c == 0:
        result.digits = 0
        result.exponent = 0
        return result
    if exponent == 0 and c < tiny:
        result = shortest(10 * c, q, False, shortened)
        result.exponent -= 1
        return result
    return shortest(c, q, fraction == 0 and exponent > 1, shortened)


cdef Decimal shortest_double(double value, bint two_digits) noexcept nogil:
    cdef uint64_t bits
    memcpy(&bits, &value, 8)
    return shortest_of(bits & <uint64_t>0xFFFFFFFFFFFFF, <int>(bits >> 52) & 0x7FF, 52, 1023, 3 if two_digits else 0)


cdef Decimal shortest_float(float value, bint two_digits) noexcept nogil:
    cdef uint32_t bits
    memcpy(&bits, &value, 4)
    return shortest_of(bits & 0x7FFFFF, <int>(bits >> 23) & 0xFF, 23, 127, 8 if two_digits else 0)
