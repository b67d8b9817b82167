# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encodes the lines of a text as records: each line is copied once, from the text into its batch."""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr

from kafkabuf._records cimport Record, attach_none
from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport kb_crc32_init
from kafkabuf.append._bulk cimport END, BulkAppend, Stop, append_record, choose_partition, tell_error
from kafkabuf.append._producer cimport ProducerCore

from kafkabuf.append._bulk_many import append_many

kb_crc32_init()


@cython.final
cdef class LinesWalker:
    """Visits the lines of one text and encodes them."""

    cdef int append_all(self) except -1:
        cdef BulkAppend bulk = self.bulk
        cdef Stop stop
        bulk.begin(self.lines, False)
        try:
            while True:
                with nogil:
                    stop = self.walk(bulk)
                if stop == END:
                    return 0
                bulk.serve(stop)
        finally:
            bulk.end()

    cdef Stop walk(self, BulkAppend bulk) noexcept nogil:
        cdef Record* r = &bulk.record
        cdef const uint8_t* end
        cdef Stop stop = END
        r.key.size = -1
        r.timestamp = bulk.now
        attach_none(r)
        choose_partition(bulk, -1)
        while stop == END and bulk.row < self.lines:
            end = self.end_of_line()
            if self.line < bulk.row:  # the line before was too large: serve() has left it out
                self.line = bulk.row
                self.begin = end + 1
                end = self.end_of_line()
            r.value.data, r.value.size = self.begin, end - self.begin
            stop = append_record(bulk)
            if stop == END:
                self.line = bulk.row
                self.begin = end + 1
        return stop

    cdef const uint8_t* end_of_line(self) noexcept nogil:
        cdef const void* feed = memchr(self.begin, 10, self.end - self.begin)
        return self.end if feed == NULL else <const uint8_t*>feed


seal(LinesWalker)


cdef int64_t lines_of(bytes text, bint* blank) noexcept:
    """The number of lines. `blank`: whether a line is empty or begins with a blank."""
    cdef const uint8_t* begin = <const uint8_t*><const char*>text
    cdef const uint8_t* end = begin + len(text)
    cdef const uint8_t* feed
    cdef int64_t lines = 0
    blank[0] = False
    with nogil:
        while True:
            lines += 1
            feed = <const uint8_t*>memchr(begin, 10, end - begin)
            # Behind the last byte stands a zero. The blanks of ASCII are 9 to 13 and 32.
            blank[0] = blank[0] or begin == end or begin[0] == 32 or 9 <= begin[0] <= 13
            if feed == NULL:
                break
            begin = feed + 1
    return lines


def count_lines(bytes text not None):
    """The number of lines, as append_lines() counts them, and whether one of them may be blank."""
    cdef bint blank
    lines = lines_of(text, &blank)
    return lines, blank


def append_lines(ProducerCore producer not None, report, topic, bytes text not None):
    """Queue a record for each line of a text, as send_many() would for the list of them. A line feed at the end of the
    text has an empty line behind it. `report` gets all lines that were queued or left out, also if the call raises."""
    cdef LinesWalker walker
    cdef bint blank
    if producer.detour or producer.interceptors is not None:  # they take Python's objects
        return append_many(producer, report, topic, text.split(b"\n"), None, None, None, None)
    try:
        producer.check_open()
        walker = LinesWalker.__new__(LinesWalker)
        walker.bulk = BulkAppend.__new__(BulkAppend, producer, report)
        walker.bulk.use_topic(producer.topic_of(topic, &walker.bulk.waited))
        walker.text = text
        walker.lines = lines_of(text, &blank)
        walker.begin = <const uint8_t*><const char*>text
        walker.end = walker.begin + len(text)
        walker.append_all()
    except BaseException as error:  # KeyboardInterrupt, too: a wait may have raised it
        tell_error(error, report)
        raise
