# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A walk over the records of one batch of magic 2, while its bytes arrive in pieces from the codec.

    length varint | attributes i8 | timestamp delta varlong | offset delta varint | key | value | header count | headers

Varints are zig-zag, and a null has the length -1. A record of seven bytes compresses to less than one, so a batch of a
mebibyte may hold millions: here a record costs ten nanoseconds. The walk keeps only the piece in which it is,
however large a record is.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from kafkabuf.memory._view cimport items_of, length_of, view_of

from kafkabuf.errors import InvalidRecordError

cdef enum:
    # The bytes of the longest varint and varlong: Java's clients read no longer ones.
    LONGEST = 5
    LONGEST_LONG = 10


@cython.final
cdef class RecordWalk:
    """The records of a batch that says it has `count` of them. Unless `relative`, every timestamp delta is 0.

    `pieces` yields the records' bytes, unpacked, and raises CorruptMessageError where the codec cannot read them. The
    methods raise this error, and InvalidRecordError for a malformed record. A walk is used once.
    """

    cdef object pieces
    # The present piece, and where the walk is in it. The bytes before the piece: `before`.
    cdef object view
    cdef const unsigned char* piece
    cdef Py_ssize_t at, size
    cdef int64_t before
    # The number of records, and of those that the walk has read.
    cdef int64_t count, index
    cdef bint relative

    # The record that the walk has read last.
    cdef int64_t timestamp_delta
    cdef bint has_key

    def __init__(self, pieces, int64_t count, bint relative=True):
        self.pieces = iter(pieces)
        self.count = count
        self.relative = relative
        self.at = self.size = self.before = self.index = 0

    # ---- what callers ask

    def __iter__(self):
        return self

    def __next__(self):
        """(timestamp delta, whether the record has a key)"""
        if not self.advance():
            raise StopIteration
        return self.timestamp_delta, self.has_key

    def newest(self):
        """The greatest timestamp delta."""
        cdef int64_t newest = -INT64_MAX - 1
        while self.advance():
            newest = max(newest, self.timestamp_delta)
        return newest

    def first(self, int64_t least, int64_t index):
        """(index, timestamp delta) of the first record from `index` on whose timestamp delta is at least `least`."""
        while self.advance():
            if self.timestamp_delta >= least and self.index > index:
                return self.index - 1, self.timestamp_delta
        return None

    def outside(self, int64_t least, int64_t greatest, exempt, bint needs_key, Py_ssize_t most):
        """Which records have a timestamp delta below `least` or above `greatest`, but not `exempt`, or lack a key.

        Returns the greatest timestamp delta, the number of these records, and (index, timestamp delta, whether it has
        a key) of the first `most` of them.
        """
        cdef int64_t newest = -INT64_MAX - 1, number = 0, delta
        cdef bint any_exempt = exempt is not None
        cdef int64_t exempt_delta = exempt if any_exempt else 0
        cdef bint in_time
        listed = []
        while self.advance():
            delta = self.timestamp_delta
            newest = max(newest, delta)
            in_time = least <= delta <= greatest or (any_exempt and delta == exempt_delta)
            if not in_time or (needs_key and not self.has_key):
                number += 1
                if number <= most:
                    listed.append((self.index - 1, delta, self.has_key))
        return newest, number, listed

    # ---- one record

    cdef bint advance(self) except -1:
        """Reads the next record. Returns False behind the last."""
        cdef int64_t length, end
        if self.index == self.count:
            self.check_end()
            return False
        length = self.varint(INT64_MAX)
        if length < 0 or length > INT64_MAX - self.position():
            raise InvalidRecordError(f"record {self.index} says {length} bytes")
        end = self.position() + length
        self.read_fields(end)
        if self.position() != end:
            raise InvalidRecordError(
                f"record {self.index} ends {end - self.position()} bytes before the end that its length gives"
            )
        self.index += 1
        return True

    cdef int read_fields(self, int64_t end) except -1:
        cdef int64_t offset_delta, headers
        self.skip(1, end)       # the attributes
        self.timestamp_delta = self.varint(end, LONGEST_LONG)
        if not self.relative:
            self.timestamp_delta = 0
        offset_delta = self.varint(end)
        if offset_delta != self.index:
            raise InvalidRecordError(f"record {self.index} has offset delta {offset_delta}")
        self.has_key = self.skip_field(end, -1) >= 0
        self.skip_field(end, -1)
        headers = self.varint(end)
        if not 0 <= headers <= end - self.position():
            raise InvalidRecordError(
                f"record {self.index} says {headers} headers, {end - self.position()} bytes are left"
            )
        while headers:
            self.skip_field(end, 0)
            self.skip_field(end, -1)
            headers -= 1
        return 0

    cdef int64_t skip_field(self, int64_t end, int64_t least) except? -2:
        """Skips a key, a value or a header. Returns its size, which must be at least `least`."""
        cdef int64_t size = self.varint(end)
        if size < least:
            raise InvalidRecordError(f"a field of record {self.index} says {size} bytes")
        if size > 0:
            self.skip(size, end)
        return size

    cdef int skip(self, int64_t size, int64_t end) except -1:
        if size > end - self.position():
            raise InvalidRecordError(
                f"a field says {size} bytes, record {self.index} has {end - self.position()} left"
            )
        while size > self.size - self.at:
            size -= self.size - self.at
            self.need_piece()
        self.at += size
        return 0

    cdef int64_t varint(self, int64_t end, int longest=LONGEST) except? -2:
        cdef uint64_t value = 0
        cdef int shift = 0
        cdef unsigned char byte
        while shift < 7 * longest:
            if self.at == self.size:
                self.need_piece()
            byte = self.piece[self.at]
            self.at += 1
            value |= <uint64_t> (byte & 0x7F) << shift
            if byte < 0x80:
                if self.position() > end:
                    raise InvalidRecordError(f"record {self.index} ends within a field")
                return <int64_t> (value >> 1) ^ -<int64_t> (value & 1)
            shift += 7
        raise InvalidRecordError(f"a varint of record {self.index} is longer than {longest} bytes")

    # ---- the pieces

    cdef int64_t position(self) noexcept:
        return self.before + self.at

    cdef bint next_piece(self) except -1:
        """Goes on to the next piece that is not empty. Returns False behind the last."""
        cdef object piece
        for piece in self.pieces:
            if len(piece):
                self.before += self.size
                self.view = view_of(piece, 1, False)
                self.piece = <const unsigned char*>items_of(self.view)
                self.at, self.size = 0, length_of(self.view)
                return True
        return False

    cdef int need_piece(self) except -1:
        if not self.next_piece():
            raise InvalidRecordError(f"the batch ends before the last of its {self.count} records")
        return 0

    cdef int check_end(self) except -1:
        """After the last record nothing may be left. The codec, too, must have reached its end."""
        if self.at != self.size or self.next_piece():
            raise InvalidRecordError(f"bytes are left after {self.count} records")
        return 0
