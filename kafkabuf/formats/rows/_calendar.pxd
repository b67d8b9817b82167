# cython: language_level=3
"""The Gregorian calendar: Howard Hinnant's civil_from_days (chrono-Compatible Low-Level Date Algorithms)."""

from libc.stdint cimport int32_t, int64_t


cdef struct Date:
    int64_t year
    int month, day


cdef inline int64_t floor_divide(int64_t number, int64_t divisor) noexcept nogil:
    return number // divisor - (number % divisor < 0)


# The date of a number of days since 1970. The algorithm's year begins in March, its first on 0000-03-01.
cdef inline void set_date(Date* date, int64_t days) noexcept nogil:
    cdef int64_t since = days + 719468
    cdef int64_t era = floor_divide(since, 146097)
    cdef int32_t of_era = <int32_t>(since - era * 146097)
    cdef int32_t year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    cdef int32_t of_year = of_era - (365 * year + year // 4 - year // 100)
    cdef int32_t month = (5 * of_year + 2) // 153
    date.day = of_year - (153 * month + 2) // 5 + 1
    date.month = month + 3 if month < 10 else month - 9
    date.year = year + era * 400 + (date.month <= 2)
