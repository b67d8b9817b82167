# cython: language_level=3
"""Whether bytes are UTF-8."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef inline bint is_utf8_rest(const uint8_t* text, const uint8_t* end) noexcept nogil:
    """Without overlong forms, surrogates and what lies above U+10FFFF."""
    cdef int more, i
    cdef uint32_t point
    while text < end:
        if text[0] < 0x80:
            text += 1
            continue
        if text[0] < 0xC2 or text[0] > 0xF4:
            return False
        more = 1 if text[0] < 0xE0 else 2 if text[0] < 0xF0 else 3
        if end - text <= more:
            return False
        point = text[0] & (0x3F >> more)
        for i in range(1, more + 1):
            if text[i] & 0xC0 != 0x80:
                return False
            point = point << 6 | (text[i] & 0x3F)
        if more == 2 and (point < 0x800 or 0xD800 <= point < 0xE000) or more == 3 and not 0x10000 <= point < 0x110000:
            return False
        text += more + 1
    return True


cdef inline bint is_utf8(const uint8_t* text, int64_t size) noexcept nogil:
    cdef const uint8_t* end = text + size
    cdef uint64_t word
    while end - text >= 8:
        memcpy(&word, text, 8)
        if word & <uint64_t>0x8080808080808080:
            return is_utf8_rest(text, end)
        text += 8
    while text < end:
        if text[0] & 0x80:
            return is_utf8_rest(text, end)
        text += 1
    return True
