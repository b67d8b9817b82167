# cython: language_level=3
"""A back-end: how a Poller learns which sockets are ready, how a thread wakes it, and how a thread waits for its turn.

Two back-ends keep this contract: `epoll` (epoll, an eventfd and futexes; Linux only) and `poll` (poll(2), a pipe and
short sleeps; every POSIX system). A Poller takes the first of its platform, or the back-end that KAFKABUF_POLLER names.
tests/network runs over both.

- No function needs the GIL. Only the Poller's owner calls them, one at a time. The exceptions are `wake`,
  `wait_for_change` and `wake_waiters`, which any thread may call at any time between `open` and `close`. A forked child
  calls nothing but `close`, which leaves the parent's sockets and wake-ups alone.
- `open`, `add` and `modify` return 0, or -1 with errno. `close` is called also after `open` has failed, and may be
  called again.
- Only `open` and `add` allocate memory.
- A descriptor is added once, and removed before it is closed. Between two waits all changes are allowed, and during a
  wait `modify`, which the next wait heeds at the latest. After `remove` no wait reports the descriptor.
- `interest` is KB_READABLE, KB_WRITABLE or both. KB_BROKEN (an error, or the peer has hung up) is always reported.
- Readiness is a level: a socket that stays ready is reported again. Where more than `most` are ready, the waits take
  turns among them.
- `wait` returns how many events it has filled in, or -1 with errno, EINTR included. A negative time-out has no end. A
  `wake` ends the wait that is under way, or else the next wait, which then may report no event. Several calls of `wake`
  before a wait count as one.
- `wait_for_change` returns when the counter is not `seen` any more, or after the time, less than a second, or earlier.
  A thread that changes the counter calls `wake_waiters` afterwards, or the waiting thread may notice it late.
"""

from libc.stdint cimport uint32_t


cdef extern from "network/_backend.h" nogil:
    cdef enum:
        KB_READABLE
        KB_WRITABLE
        KB_BROKEN

    ctypedef struct kb_event:
        void* owner         # as given to add
        int ready           # bits of KB_*

    ctypedef struct kb_ready_set:
        pass

    ctypedef struct kb_backend:
        const char* name
        int (*open)(kb_ready_set*) noexcept nogil
        int (*add)(kb_ready_set*, int fd, int interest, void* owner) noexcept nogil
        int (*modify)(kb_ready_set*, int fd, int interest, void* owner) noexcept nogil
        void (*remove)(kb_ready_set*, int fd) noexcept nogil
        int (*wait)(kb_ready_set*, kb_event* events, int most, int timeout_ms) noexcept nogil
        void (*wake)(kb_ready_set*) noexcept nogil
        void (*close)(kb_ready_set*) noexcept nogil
        void (*wait_for_change)(uint32_t* counter, uint32_t seen, uint32_t microseconds) noexcept nogil
        void (*wake_waiters)(uint32_t* counter) noexcept nogil

    const kb_backend* kb_backend_at(int index) noexcept     # NULL behind the last
