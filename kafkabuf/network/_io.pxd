# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t

from kafkabuf.protocol._frame cimport Frame
from kafkabuf.network._socket cimport Wire


cdef class Connection:
    """A non-blocking stream socket with its output queue and input buffer. Thread: the Poller's owner.

    TlsConnection (_tls.pxd) has a second Wire, for the frames in the clear, and puts itself in between.
    """
    cdef Wire wire                  # the socket's
    cdef Wire* frames               # where frames are queued, and cut from: the socket's too, unless it is encrypted
    cdef Poller poller              # None once closed
    cdef object queue               # deque of the Frames behind wire.head, plus written ones not yet dropped
    cdef list received              # frames cut from frames.data, waiting for take_frames
    cdef readonly str peer          # "host:port", for messages
    cdef readonly object context    # whatever the owner gave register()
    cdef readonly object error      # KafkaError, set when the Poller closed the connection
    cdef readonly bint connected    # and, if it is encrypted, sure of its peer

    cpdef int send(self, Frame frame) except -1
    cpdef list take_back(self)
    cdef int chain(self, Wire* wire, Frame frame) except -1
    cdef int on_news(self, int what) except -1
    cdef int forget_written(self) except -1
    cdef int cut_frames(self) except -1
    cdef str reason(self)


cdef class Poller:
    """One epoll set and its connections; `poll` writes, waits and reads in a single stretch without the GIL."""
    cdef int epoll_fd
    cdef int event_fd
    cdef int pid                    # of the process that made it: a forked child must not touch the shared epoll set
    cdef dict connections           # strong references by the Wire's address: one in the epoll set never outlives its
    #                                 Connection, whatever that says its __eq__ and __hash__ are
    cdef bint polling               # poll is under way: no other may begin
    cdef Wire* listed               # connections with output not yet tried
    cdef Wire* news                 # connections poll is about to report
    cdef int failed                 # errno of epoll_wait
    cdef readonly int64_t waited_ns  # of the last poll, in epoll_wait,
    cdef readonly int64_t worked_ns  # and beside it; not what the owner then waited for the GIL
    # Shared with waking threads; atomic accesses only.
    cdef uint32_t sleeping          # the owner waits or is about to
    cdef uint32_t woken             # a wake-up since the last poll returned
    cdef uint32_t at_the_door       # poll is over and the owner waits for the GIL,
    cdef uint32_t since             # since this kb_microseconds()
    cdef uint32_t polls             # times the owner came back to poll
    cdef uint32_t standing_back     # threads that wait for that, having let it in

    cdef void wake(self) noexcept nogil
    cdef int require_own_process(self) except -1
    cdef int require_fresh(self, Wire* wire) except -1
    cdef int take_news(self, list news) except -1
    cdef int let_in(self) except -1
    cdef void turn(self, int timeout_ms) noexcept nogil
    cdef bint flowing(self) noexcept nogil
    cdef void enlist(self, Wire* wire) noexcept nogil
    cdef void write_listed(self) noexcept nogil
    cdef void serve_events(self, int timeout_ms) noexcept nogil
    cdef void write_out(self, Wire* wire) noexcept nogil
    cdef void finish_connect(self, Wire* wire) noexcept nogil
    cdef void report(self, Wire* wire, int news, int error) noexcept nogil
    cdef void read_in(self, Wire* wire) noexcept nogil
    cdef void watch(self, Wire* wire, bint output) noexcept nogil
    cdef int remove(self, Connection connection) except -1
    cdef void unlink(self, Wire* wire) noexcept nogil
