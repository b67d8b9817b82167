# cython: language_level=3
"""The part of the network that knows no Python object: system calls, the two structs of a connection, their leaves."""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport realloc
from posix.uio cimport iovec


cdef extern from "<sys/socket.h>" nogil:
    cdef enum:
        MSG_NOSIGNAL
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

cdef extern from "<sys/epoll.h>" nogil:
    cdef enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CTL_DEL
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
    union epoll_data:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event* event)
    int epoll_wait(int epoll_fd, epoll_event* events, int most, int timeout_ms)

cdef extern from "<sys/eventfd.h>" nogil:
    cdef enum:
        EFD_CLOEXEC
        EFD_NONBLOCK
    int eventfd(unsigned int value, int flags)

cdef extern from *:
    """
    #include <stdint.h>
    #include <limits.h>
    #include <linux/futex.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    static inline uint32_t kb_exchange(uint32_t *flag, uint32_t value) {
        return __atomic_exchange_n(flag, value, __ATOMIC_SEQ_CST);
    }
    static inline uint32_t kb_load(uint32_t *flag) { return __atomic_load_n(flag, __ATOMIC_SEQ_CST); }
    static inline uint32_t kb_microseconds(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint32_t)now.tv_sec * 1000000u + (uint32_t)(now.tv_nsec / 1000);
    }
    static inline int64_t kb_nanoseconds(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    static inline void kb_add(uint32_t *counter, uint32_t value) {
        __atomic_fetch_add(counter, value, __ATOMIC_SEQ_CST);
    }
    static inline void kb_wait_for_change(uint32_t *counter, uint32_t seen, long microseconds) {
        struct timespec timeout = {0, microseconds * 1000};
        syscall(SYS_futex, counter, FUTEX_WAIT_PRIVATE, seen, &timeout, NULL, 0);
    }
    static inline void kb_wake_waiters(uint32_t *counter) {
        syscall(SYS_futex, counter, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
    static inline uint32_t kb_big_endian(const unsigned char *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    """
    uint32_t kb_exchange(uint32_t* flag, uint32_t value) noexcept nogil
    uint32_t kb_load(uint32_t* flag) noexcept nogil
    void kb_add(uint32_t* counter, uint32_t value) noexcept nogil
    void kb_wait_for_change(uint32_t* counter, uint32_t seen, long microseconds) noexcept nogil
    void kb_wake_waiters(uint32_t* counter) noexcept nogil
    uint32_t kb_microseconds() noexcept nogil   # of a clock that wraps around every 71 minutes: for differences only
    int64_t kb_nanoseconds() noexcept nogil
    uint32_t kb_big_endian(const unsigned char* p) noexcept nogil

cdef enum:
    MOST_SPANS = 1024           # Linux's IOV_MAX
    MOST_EVENTS = 64            # per turn; epoll is level-triggered, the rest comes with the next
    FIRST_ROOM = 16384          # of an input buffer
    GROWTH = 1048576            # the most an input buffer grows by before the bytes are there
    LENGTH_PREFIX = 4
    SMALLEST_FRAME = 4          # a correlation id
    LONGEST_WAIT_MS = 2147483647
    LONGEST_FLOW_US = 2000      # poll stays without the GIL for at most so long while requests wait to be started
    PATIENCE_US = 100           # for so long the owner may wait for the GIL before wakeup lets it in
    LONGEST_TURN_US = 1000      # and so long a thread that let it in stands back, if its turn takes that long

    # Bits of Wire.news
    NEWS_CONNECTED = 1
    NEWS_FRAMES = 2
    NEWS_WRITTEN = 4
    NEWS_FAILED = 8
    NEWS_BYTES = 16             # of a raw connection

    # Values of Wire.error beside errno
    ERROR_END_OF_STREAM = -1
    ERROR_FRAME_LENGTH = -2


# Whether a response to a request of that version, `size` bytes without their length, tells of no trouble.
ctypedef bint (*Judge)(const unsigned char* response, Py_ssize_t size, int version) noexcept nogil


cdef struct Spans:
    # The bytes of one Frame as the socket sees them. Read without the GIL by the poll call, written only by the thread
    # that owns the Poller.
    iovec* items
    Py_ssize_t count
    Py_ssize_t room
    Py_ssize_t done         # items written entirely; a partly written item has been moved past its written bytes
    bint notify             # no response will tell the end (acks=0): the last byte going out is news of its own
    Judge judge             # of its response; NULL: any will do
    int version
    bint sealed             # it goes out encrypted, and the last byte of that is not out yet
    Spans* following        # the next frame of the same connection


cdef struct Wire:
    # What the poll call needs of one Connection, free of Python objects. Owned by the Poller's thread.
    int fd
    void* connection        # borrowed: the Poller holds a reference to every open Connection
    bint raw                # what is received is not cut into frames here: the owner decrypts it first
    bint connecting         # connect() has not finished
    bint armed              # epoll watches for room to write: while connecting, or output is left
    bint listed             # in the Poller's chain of connections with fresh output
    Spans* head             # frames not written entirely, oldest first
    Spans* tail
    Spans* waiting          # the first of them that must not be started: as many as allowed are without a response
    int credit              # how many more may be started before a response comes
    bint held               # a response told of trouble: nothing is started before the owner has seen it
    Judge judge             # what the frame started last said of its response: good enough for a guess at them all
    int version
    unsigned char* data     # received bytes not yet cut into frames
    Py_ssize_t length       # of these, how many there are
    Py_ssize_t room         # and how many fit
    Py_ssize_t counted      # and how many of them are frames whose response has given credit
    Py_ssize_t need         # bytes until the first frame is complete; 4 while its length is unknown
    Py_ssize_t max_frame    # longer announced lengths fail the connection
    int news                # bits of NEWS_*, zero when not in the chain of news
    int error               # errno, or a negative ERROR_*; zero while healthy
    Wire* next_listed
    Wire* next_news


cdef inline void start_waiting(Wire* wire) noexcept nogil:
    """Let as many frames go out as there is credit for."""
    while wire.waiting != NULL and (wire.waiting.notify or (wire.credit > 0 and not wire.held)):
        wire.credit -= not wire.waiting.notify
        wire.judge = wire.waiting.judge
        wire.version = wire.waiting.version
        wire.waiting = wire.waiting.following


cdef inline void count_responses(Wire* wire) noexcept nogil:
    """Every whole frame received allows another request, unless it tells of trouble."""
    cdef int size
    cdef unsigned char* response
    while wire.length - wire.counted >= LENGTH_PREFIX:
        size = <int> kb_big_endian(wire.data + wire.counted)
        if size < SMALLEST_FRAME or size > wire.max_frame or wire.length - wire.counted - LENGTH_PREFIX < size:
            return
        response = wire.data + wire.counted + LENGTH_PREFIX
        wire.counted += LENGTH_PREFIX + size
        wire.credit += 1
        if wire.judge != NULL and not wire.judge(response, size, wire.version):
            wire.held = True


cdef inline size_t gather(Wire* wire, iovec* vector) noexcept nogil:
    """Spans not yet written of frames that may go out, of as many as fit into one system call."""
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
    """Take `sent` bytes off the queue. True when that finished a frame whose end is news."""
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
        wire.head = spans.following
    wire.tail = NULL
    return notify


cdef inline bint make_room(Wire* wire) noexcept nogil:
    # The announced length is a claim: grow towards it only as fast as bytes arrive.
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


cdef inline bint worth_cutting(Wire* wire) noexcept nogil:
    """Whether the input holds a whole frame, or a length that cannot be one."""
    cdef int size
    if wire.length < LENGTH_PREFIX:
        return False
    size = <int> kb_big_endian(wire.data)
    wire.need = LENGTH_PREFIX + <Py_ssize_t> size
    return size < SMALLEST_FRAME or size > wire.max_frame or wire.length >= wire.need
