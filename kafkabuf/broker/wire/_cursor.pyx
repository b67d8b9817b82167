# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A reading position in a frame, for the hand-written codecs: a request may have thousands of partitions."""

cimport cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t

from kafkabuf.memory._view cimport items_of, length_of, view_of
from kafkabuf.broker.wire._numbers cimport load_int16, load_int32, load_int64

import struct
from uuid import UUID

from kafkabuf.protocol.schema import MOST_ITEMS, skip_tags

# What a Cursor raises for malformed bytes. The codecs turn these into errors of the protocol.
MALFORMED = (ValueError, IndexError, OverflowError, struct.error)

cdef Py_ssize_t most_items = MOST_ITEMS


@cython.final
cdef class Cursor:
    """A position in a frame. `flexible` chooses compact lengths and tagged fields (KIP-482)."""

    def __cinit__(self, frame, Py_ssize_t position, bint flexible):
        # No Py_buffer of the view: the collector clears a view that has given its bytes away by half, and CPython then
        # crashes where the buffer is released.
        self.view = view_of(frame, 1, False)
        self.data = <const unsigned char*> items_of(self.view)
        self.size = length_of(self.view)
        if not 0 <= position <= self.size:
            raise ValueError(f"position {position} of a frame of {self.size} bytes")
        self.position = position
        self.flexible = flexible

    def int8(self):
        return <signed char> self.fixed(1)[0]

    def int16(self):
        return load_int16(self.fixed(2))

    def int32(self):
        return load_int32(self.fixed(4))

    def int64(self):
        return load_int64(self.fixed(8))

    def uuid(self):
        return UUID(bytes=PyBytes_FromStringAndSize(<const char*> self.fixed(16), 16))

    def count(self):
        """The length of an array; 0 for a null array.

        Raises ValueError if the array is longer than the rest of the frame, or if all arrays together have more than
        MOST_ITEMS items.
        """
        cdef int64_t count = self.length(True)
        if not -1 <= count <= self.size - self.position:
            raise ValueError(f"an array of {count} items, but only {self.size - self.position} bytes are left")
        if count < 0:
            return 0
        self.items += <Py_ssize_t> count
        if self.items > most_items:
            raise ValueError(f"arrays of {self.items} items, {MOST_ITEMS} are allowed")
        return count

    def string(self):
        text = self.nullable_string()
        if text is None:
            raise ValueError("null where a string is required")
        return text

    def nullable_string(self):
        cdef Py_ssize_t start = self.field(False)
        if start == -1:
            return None
        return PyUnicode_DecodeUTF8(<const char*> self.data + start, self.position - start, NULL)

    def nullable_bytes(self):
        """A view of the frame. It is valid as long as the frame is."""
        cdef Py_ssize_t start = self.field(True)
        return None if start == -1 else self.view[start:self.position]

    def nullable_copy(self):
        """As `nullable_bytes`, but a copy, which belongs to the caller."""
        cdef Py_ssize_t start = self.field(True)
        if start == -1:
            return None
        return PyByteArray_FromStringAndSize(<const char*> self.data + start, self.position - start)

    def tags(self):
        """Skip the tagged fields, if this version has them. The codecs need none of them."""
        if not self.flexible:
            return
        if self.position < self.size and self.data[self.position] == 0:
            self.position += 1      # no tagged fields, as nearly always
        else:
            self.position = skip_tags(self.view, self.position)

    def end(self):
        if self.position != self.size:
            raise ValueError(f"{self.size - self.position} bytes are left over")

    cdef const unsigned char* fixed(self, Py_ssize_t size) except NULL:
        """The bytes of a field that has always the same size."""
        return self.data + self.take(size)

    cdef int64_t uvarint(self) except -1:
        """As `schema.read_uvarint`."""
        cdef int64_t value = 0
        cdef int shift = 0
        cdef unsigned char byte
        while shift < 35:
            if self.position == self.size:
                raise IndexError("the frame ends within a varint")
            byte = self.data[self.position]
            self.position += 1
            value |= <int64_t> (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("a varint is longer than five bytes")

    cdef int64_t length(self, bint long_form) except? -2:
        """A length, -1 for null. Where it is not compact it takes four bytes in its long form, else two."""
        if self.flexible:
            return self.uvarint() - 1
        return load_int32(self.fixed(4)) if long_form else load_int16(self.fixed(2))

    cdef Py_ssize_t field(self, bint long_form) except? -2:
        """Goes past a field that begins with its length. Returns where its bytes begin, which end at `position`; -1 for
        null."""
        cdef int64_t length = self.length(long_form)
        return -1 if length == -1 else self.take(length)

    cdef Py_ssize_t take(self, int64_t size) except -1:
        """Goes past the next `size` bytes. Returns where they begin."""
        cdef Py_ssize_t start = self.position
        if not 0 <= size <= self.size - start:
            raise ValueError(f"a length of {size} bytes, but only {self.size - start} are left")
        self.position = start + <Py_ssize_t> size
        return start
