# cython: language_level=3
"""Connections and the Poller that writes, waits and reads without the GIL. Who may touch which field."""

from libc.stdint cimport int64_t, uint32_t

from kafkabuf.network._backend cimport kb_backend, kb_ready_set
from kafkabuf.network._socket cimport Wire
from kafkabuf.protocol._frame cimport Frame


cdef class Connection:
    """A non-blocking stream socket with its output queue and input buffer. Thread: the Poller's owner.

    TlsConnection (_tls.pxd) has a second Wire for the plaintext frames, and stands between the two.
    """
    cdef Wire wire                  # of the socket
    cdef Wire* frames               # queues the frames to send and holds received ones: &wire, or TlsConnection.clear
    cdef Poller poller              # None once the connection is closed
    cdef object queue               # deque of the Frames behind frames.head, plus written ones that are not dropped yet
    cdef list received              # frames cut from frames.data, which take_frames returns next
    cdef readonly str peer          # "host:port", for messages
    cdef readonly object context    # what the owner gave to register()
    cdef readonly object error      # KafkaError, set when the Poller closed the connection
    cdef readonly bint connected    # TCP is connected, and a TLS handshake has finished

    cpdef int send(self, Frame frame) except -1
    cpdef list take_back(self)
    cdef int chain(self, Wire* wire, Frame frame) except -1
    cdef int on_news(self, int news_bits) except -1
    cdef int forget_written(self) except -1
    cdef int cut_frames(self) except -1
    cdef void drop_read(self, Py_ssize_t at) noexcept
    cdef str reason(self)


cdef class Poller:
    """A set of connections; `poll` writes, waits and reads in a single stretch without the GIL."""
    cdef const kb_backend* backend  # NULL: the constructor has failed
    cdef kb_ready_set ready         # the backend's: which descriptors it watches
    # ---- thread: the owner
    cdef int pid                    # of the process that made it: a forked child must not touch the shared sockets
    cdef dict connections           # Wire's address -> Connection: a strong reference while its Wire is in the set.
    #                                 The key is no Connection: a subclass may define __eq__ and __hash__
    cdef bint polling               # poll is under way: a second poll is refused
    cdef Wire* listed               # connections with output that write_listed has not tried yet
    cdef Wire* news                 # connections that poll is about to report
    cdef int failed                 # errno of the wait
    cdef readonly int64_t waited_ns  # how long the last poll waited
    cdef readonly int64_t worked_ns  # how long it wrote and read, without its wait for the GIL afterwards
    # ---- shared with waking threads; atomic accesses only
    cdef uint32_t sleeping          # the owner waits, or is about to
    cdef uint32_t woken             # wakeup() was called since the last poll returned
    cdef uint32_t at_the_door       # the owner has ended its poll and waits for the GIL
    cdef uint32_t since             # kb_microseconds() when that wait began
    cdef uint32_t polls             # how often the owner has entered poll
    cdef uint32_t standing_back     # threads that gave the GIL to the owner and wait until it polls again
    cdef uint32_t loan              # NOT_OFFERED, OFFERED or LENT

    cdef list poll_for(self, double timeout)            # seconds; infinite: until there is news
    cdef int wake_up(self) except -1                    # any thread
    cdef void wake(self) noexcept nogil
    # Any thread with the GIL. True: the owner waits in `poll`, nothing is left to write or to report, and until
    # `repay` the caller is the owner. It keeps the GIL until all that the owner needs is in order.
    cdef bint borrow(self) noexcept
    # Without the GIL: write what the borrower has sent, and let the owner go on.
    cdef void repay(self) noexcept nogil
    cdef void end_offer(self) noexcept nogil
    cdef int require_own_process(self) except -1
    cdef int require_fresh(self, Wire* wire) except -1
    cdef int take_news(self, list news) except -1
    cdef int take_one(self, Connection connection, int news_bits, list news) except -1
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
