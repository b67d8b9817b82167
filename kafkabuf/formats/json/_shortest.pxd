# cython: language_level=3
"""The shortest decimal number that reads as a given binary floating-point number; of several, the closest to it.

Raffaello Giulietti's Schubfach ("The Schubfach way to render doubles", 2020), as Java's Double.toString has it since
Java 19. It takes three products with a power of ten of 128 bits, which a table has.
"""

from libc.stdint cimport uint64_t


cdef struct Decimal:
    uint64_t digits             # at most 17 digits; 0 for zero
    int exponent                # the value is digits * 10^exponent


# For finite numbers; without the sign. With `two_digits` a number that has a single digit may get two, if that is
# closer, as in Java's 4.9E-324.
cdef Decimal shortest_double(double value, bint two_digits) noexcept nogil
cdef Decimal shortest_float(float value, bint two_digits) noexcept nogil
