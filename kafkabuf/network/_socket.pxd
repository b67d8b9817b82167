# cython: language_level=3
"""The part of the network without Python objects: system calls, the struct of a connection, and what works on it."""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from posix.uio cimport iovec

from kafkabuf.protocol._frame cimport ExpectedResponse, Spans


cdef extern from "<sys/socket.h>" nogil:
    cdef enum:
        MSG_DONTWAIT
        SHUT_RDWR
        SOL_SOCKET
        SO_ERROR
    ctypedef unsigned int socklen_t
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    ssize_t recv(int fd, void* buffer, size_t length, int flags)
    int shutdown(int fd, int how)
    int getsockopt(int fd, int level, int name, void* value, socklen_t* length)

cdef extern from "process/_platform.h" nogil:
    cdef enum:
        KB_SEND_FLAGS
    void kb_no_sigpipe(int fd) noexcept

cdef extern from "network/_waiting.h" nogil:
    uint32_t kb_exchange(uint32_t* flag, uint32_t value) noexcept
    bint kb_replace(uint32_t* flag, uint32_t expected, uint32_t value) noexcept     # whether the flag was `expected`
    uint32_t kb_load(uint32_t* flag) noexcept
    void kb_add(uint32_t* counter, uint32_t value) noexcept
    uint32_t kb_microseconds() noexcept         # the clock wraps around every 71 minutes: use differences only
    int64_t kb_nanoseconds() noexcept

cdef extern from * nogil:
    """
    static inline uint32_t kb_big_endian(const unsigned char *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    """
    uint32_t kb_big_endian(const unsigned char* p) noexcept

cdef enum:
    MOST_SPANS = 1024           # IOV_MAX of Linux and of macOS
    MOST_EVENTS = 64            # in one wait; readiness is a level, so the next wait reports the others
    FIRST_ROOM = 16384          # initial size of an input buffer
    GROWTH = 1048576            # an input buffer grows by at most this many bytes, and grows again when it is full
    LENGTH_PREFIX = 4
    SMALLEST_FRAME = 4          # a correlation id
    FIRST_PLACES = 16           # initial size of the ring of expected responses; a power of two
    LONGEST_WAIT_MS = 2147483647
    LONGEST_FLOW_US = 2000      # how long poll stays without the GIL while requests wait to be started
    PATIENCE_US = 100           # how long the owner may wait for the GIL before wakeup lets it in
    LONGEST_TURN_US = 1000      # how long wakeup then waits until the owner polls again

    # Bits of Wire.news
    NEWS_CONNECTED = 1
    NEWS_FRAMES = 2
    NEWS_WRITTEN = 4
    NEWS_FAILED = 8
    NEWS_BYTES = 16             # a raw connection has received bytes

    # Values of Poller.loan
    NOT_OFFERED = 0             # the owner works
    OFFERED = 1                 # the owner waits: another thread may take its place
    LENT = 2                    # another thread has it

    # Values of Wire.held
    HELD_UNTIL_SEEN = 1         # a response reports an error: no request is started before the owner has seen it
    HELD_FOR_GOOD = 2           # the peer broke the protocol: the owner will close the connection

    # Values of Wire.error in addition to errno
    ERROR_END_OF_STREAM = -1
    ERROR_FRAME_LENGTH = -2


cdef struct Wire:
    # The part of one Connection that the poll call works on, without Python objects. Owned by the Poller's thread.
    int fd
    void* connection        # borrowed: the Poller holds a reference to every open Connection
    bint raw                # the poll call does not cut received bytes into frames: the owner decrypts them first
    bint connecting         # connect() has not finished
    bint armed              # the wait is for room to write too: while the socket connects, or output is left
    bint listed             # in the Poller's chain of connections with fresh output
    # ---- requests to send
    Spans* head             # the first frame that is not written in full; the others follow it, in order
    Spans* tail             # the last frame
    Spans* waiting          # the first frame that must not be started yet; NULL: all may be started
    int credit              # how many more frames may be started before a response arrives
    int held                # HELD_*, or zero
    # ---- expected responses, in the order of their requests, also of those that are not started. They are copied into
    # a ring, because a frame may be freed once it is written.
    ExpectedResponse* responses       # the ring
    unsigned int places     # its size, a power of two
    unsigned int oldest     # index of the next response
    unsigned int expected   # how many responses are expected
    unsigned int owed       # how many of them have their request written: only these may arrive now
    # ---- received bytes
    unsigned char* data     # bytes that are not cut into frames yet
    Py_ssize_t length       # how many bytes data holds
    Py_ssize_t room         # how many bytes fit into data
    Py_ssize_t counted      # the first `counted` bytes are whole frames that count_responses has checked
    Py_ssize_t need         # length at which the next frame is whole, or its length prefix is
    Py_ssize_t max_frame    # a longer frame without a request fails the connection
    # ---- what the poll call reports
    int news                # bits of NEWS_*; zero: not in the chain of news
    int error               # errno, or a negative ERROR_*; zero while the connection is healthy
    Wire* next_listed
    Wire* next_news


cdef inline void start_waiting(Wire* wire) noexcept nogil:
    """Start as many waiting frames as the credit allows. A frame with `notify` needs no credit."""
    while wire.waiting != NULL and wire.held != HELD_FOR_GOOD and (
        wire.waiting.notify or (wire.credit > 0 and not wire.held)
    ):
        wire.credit -= not wire.waiting.notify
        wire.waiting = wire.waiting.following


cdef inline bint make_places(Wire* wire) noexcept nogil:
    cdef unsigned int i
    cdef unsigned int places = 2 * wire.places if wire.places else FIRST_PLACES
    cdef ExpectedResponse* ring = <ExpectedResponse*> malloc(places * sizeof(ExpectedResponse))
    if ring == NULL:
        return False
    for i in range(wire.expected):
        ring[i] = wire.responses[(wire.oldest + i) & (wire.places - 1)]
    free(wire.responses)
    wire.responses = ring
    wire.places = places
    wire.oldest = 0
    return True


cdef inline bint expect(Wire* wire, Spans* spans) noexcept nogil:
    """Add the expected response of a frame that is queued last. False: there is no memory for it."""
    if spans.notify:
        return True
    if wire.expected == wire.places and not make_places(wire):
        return False
    wire.responses[(wire.oldest + wire.expected) & (wire.places - 1)] = spans.response
    wire.expected += 1
    return True


cdef inline ExpectedResponse* next_response(Wire* wire) noexcept nogil:
    """The only response that may arrive now; NULL: no response may."""
    return &wire.responses[wire.oldest] if wire.owed else NULL


cdef inline bint count_responses(Wire* wire) noexcept nogil:
    """Count the whole frames received. True: there is a new whole frame, or a length that is not allowed.

    The next expected response gives credit for another request, unless it reports an error. A frame that is not the
    expected response (a duplicate, or a frame without a request) gives no credit: the owner must see that frame and all
    frames behind it.
    """
    cdef int size
    cdef unsigned char* response
    cdef ExpectedResponse* expected
    cdef bint news = False
    while True:
        wire.need = wire.counted + LENGTH_PREFIX
        if wire.length < wire.need:
            return news
        size = <int> kb_big_endian(wire.data + wire.counted)
        expected = next_response(wire)
        if size < SMALLEST_FRAME or size > (wire.max_frame if expected == NULL else expected.largest):
            wire.held = HELD_FOR_GOOD
            wire.error = wire.error or ERROR_FRAME_LENGTH
            return True
        response = wire.data + wire.need
        wire.need += size
        if wire.length < wire.need:
            return news
        wire.counted = wire.need
        news = True
        if expected == NULL or expected.correlation_id != <int> kb_big_endian(response):
            wire.held = HELD_FOR_GOOD
            continue
        wire.oldest = (wire.oldest + 1) & (wire.places - 1)
        wire.expected -= 1
        wire.owed -= 1
        wire.credit += 1
        if expected.judge != NULL and not expected.judge(response, size, expected.version, expected.partitions):
            wire.held = wire.held or HELD_UNTIL_SEEN


cdef inline size_t gather(Wire* wire, iovec* vector) noexcept nogil:
    """Put unwritten spans of started frames into `vector`, at most MOST_SPANS. Returns how many."""
    cdef size_t count = 0
    cdef Py_ssize_t i
    cdef Spans* spans = wire.head
    while spans != wire.waiting:
        for i in range(spans.done, spans.count):
            if count == MOST_SPANS:
                return count
            vector[count] = spans.items[i]
            count += 1
        spans = spans.following
    return count


cdef inline bint advance(Wire* wire, size_t sent) noexcept nogil:
    """Take `sent` bytes off the queue. True: a frame with `notify` is now written in full."""
    cdef bint notify = False
    cdef Spans* spans
    cdef iovec* item
    while wire.head != NULL:
        spans = wire.head
        while spans.done < spans.count:
            item = &spans.items[spans.done]
            if sent < item.iov_len:
                item.iov_base = <char*> item.iov_base + sent
                item.iov_len -= sent
                return notify
            sent -= item.iov_len
            spans.done += 1
        notify = notify or spans.notify
        wire.owed += not spans.notify
        wire.head = spans.following
    wire.tail = NULL
    return notify


cdef inline bint make_room(Wire* wire) noexcept nogil:
    # The peer announces a length and may never send that many bytes: the buffer grows only as fast as bytes arrive.
    cdef Py_ssize_t more = FIRST_ROOM
    cdef unsigned char* data
    if wire.room:
        more = min(wire.room, <Py_ssize_t> GROWTH)
        if wire.need > wire.length:
            more = min(more, wire.need - wire.length)
    data = <unsigned char*> realloc(wire.data, wire.room + more)
    if data == NULL:
        return False
    wire.data = data
    wire.room += more
    return True
