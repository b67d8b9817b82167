# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Connections and the poll call: the part of the network that runs without the GIL.

The Sender calls `Poller.poll` once a turn. The call writes the queued frames straight from their spans, waits, reads
what has arrived, and then takes the GIL again. Kafka's `Selector` does the same steps one channel at a time.
"""

from collections import deque
from os import environ, strerror

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, ENOMEM, errno
from libc.math cimport INFINITY, ceil
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset
from posix.uio cimport iovec
from posix.unistd cimport close, getpid

from kafkabuf.process._lock cimport HAS_GIL
from kafkabuf.errors import ClosedError, ConfigError, NetworkError

from kafkabuf.network._backend cimport KB_BROKEN, KB_READABLE, KB_WRITABLE, kb_backend, kb_backend_at, kb_event
from kafkabuf.network._socket cimport (
    ERROR_END_OF_STREAM, ERROR_FRAME_LENGTH, FIRST_ROOM, HELD_UNTIL_SEEN, KB_SEND_FLAGS, LENGTH_PREFIX, LENT,
    LONGEST_FLOW_US, LONGEST_TURN_US, LONGEST_WAIT_MS, MOST_EVENTS, MOST_SPANS, MSG_DONTWAIT, NEWS_BYTES,
    NEWS_CONNECTED, NEWS_FAILED, NEWS_FRAMES, NEWS_WRITTEN, NOT_OFFERED, OFFERED, PATIENCE_US, SHUT_RDWR,
    SMALLEST_FRAME, SO_ERROR, SOL_SOCKET, Wire, advance, count_responses, expect, gather, getsockopt, kb_add,
    kb_big_endian, kb_exchange, kb_load, kb_microseconds, kb_nanoseconds, kb_no_sigpipe, kb_replace, make_room, msghdr,
    next_response, recv, sendmsg, shutdown, socklen_t, start_waiting,
)
from kafkabuf.protocol._frame cimport ExpectedResponse, Frame, Spans


def _names():
    cdef int index = 0
    names = []
    while kb_backend_at(index) != NULL:
        names.append(kb_backend_at(index).name.decode())
        index += 1
    return tuple(names)


BACKENDS = _names()

cdef enum:
    CLOSED = -1         # the `pid` of a closed Poller


cdef const kb_backend* chosen_backend() except NULL:
    name = environ.get("KAFKABUF_POLLER", BACKENDS[0])
    if name not in BACKENDS:
        raise ConfigError(
            f"the environment variable KAFKABUF_POLLER is {name!r}: unset it, or set it to {' or '.join(BACKENDS)}")
    return kb_backend_at(BACKENDS.index(name))


cdef class Connection:
    """A non-blocking stream socket with its output queue and input buffer. Thread: the Poller's owner."""

    def __cinit__(self):
        memset(&self.wire, 0, sizeof(Wire))
        self.wire.fd = -1
        self.wire.need = LENGTH_PREFIX
        self.frames = &self.wire
        self.queue = deque()
        self.received = []

    def __dealloc__(self):
        free(self.wire.data)
        free(self.wire.responses)
        # The socket is still open only if close() was never called, as in a forked child. So this does not shut the
        # connection down: the parent goes on with it.
        if self.wire.fd >= 0:
            close(self.wire.fd)

    @property
    def closed(self):
        return self.poller is None

    @property
    def reached(self):
        return not self.wire.connecting

    @property
    def queued(self):
        self.forget_written()
        return len(self.queue)

    cpdef int send(self, Frame frame) except -1:
        if frame is None:
            raise TypeError("a connection sends a Frame, found None")
        # Before the checks: dropping a frame may run Python code, which may close the connection.
        self.forget_written()
        if self.poller is None:
            raise self.error or NetworkError(f"the connection to {self.peer} is closed")
        if frame.queued or frame.spans.count == 0:
            raise ValueError("the frame is empty, or was sent before: make a new one")
        self.queue.append(frame)
        if not expect(self.frames, &frame.spans):
            self.queue.pop()
            raise MemoryError("no memory for the table of expected responses of a connection")
        return self.chain(self.frames, frame)

    cdef int chain(self, Wire* wire, Frame frame) except -1:
        frame.queued = True
        if wire.head == NULL:
            wire.head = &frame.spans
        else:
            wire.tail.following = &frame.spans
        wire.tail = &frame.spans
        if wire.waiting == NULL:
            wire.waiting = &frame.spans
        # An armed socket is full or still connecting: the wait reports when it can be written to.
        if not wire.armed:
            self.poller.enlist(wire)
        return 0

    cpdef list take_back(self):
        cdef Wire* wire = self.frames
        cdef list taken = []
        cdef Frame frame
        cdef Spans* first = wire.waiting
        while wire.waiting != NULL:
            frame = <Frame> self.queue.pop()
            frame.queued = False
            frame.spans.following = NULL
            wire.expected -= not frame.spans.notify
            taken.append(frame)
            if &frame.spans == first:
                wire.waiting = NULL
        if wire.head == first:
            wire.head = wire.tail = NULL
        elif taken:
            frame = <Frame> self.queue[len(self.queue) - 1]
            frame.spans.following = NULL
            wire.tail = &frame.spans
        taken.reverse()
        return taken

    def take_frames(self):
        taken, self.received = self.received, []
        return taken

    def close(self):
        cdef Poller poller = self.poller  # keeps the Poller alive: self may hold the last reference
        if poller is not None:
            poller.remove(self)

    cdef int on_news(self, int news_bits) except -1:
        if news_bits & NEWS_CONNECTED:
            self.connected = True
        if news_bits & NEWS_FRAMES:
            self.cut_frames()
        return self.forget_written()

    cdef int forget_written(self) except -1:
        # frames.head never points at a frame that is written in full, so no span dangles after this.
        cdef Frame oldest
        while self.queue:
            oldest = <Frame> self.queue[0]
            if oldest.spans.done < oldest.spans.count:
                break
            self.queue.popleft()
        return 0

    cdef int cut_frames(self) except -1:
        # count_responses has checked the length of every frame in the first `counted` bytes.
        cdef Wire* wire = self.frames
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t size
        try:
            while at < wire.counted:
                size = <Py_ssize_t> <int> kb_big_endian(wire.data + at)
                self.received.append(PyBytes_FromStringAndSize(<char*> wire.data + at + LENGTH_PREFIX, size))
                at += LENGTH_PREFIX + size
        finally:  # without memory the next call goes on with the next frame
            self.drop_read(at)
        return 0

    cdef void drop_read(self, Py_ssize_t at) noexcept:
        """Forget the first bytes that the socket has given: they are in `received`."""
        cdef Wire* wire = self.frames
        cdef unsigned char* smaller
        wire.length -= at
        wire.need -= at
        wire.counted -= at
        memmove(wire.data, wire.data + at, wire.length)
        if wire.room > FIRST_ROOM and wire.length <= FIRST_ROOM:
            smaller = <unsigned char*> realloc(wire.data, FIRST_ROOM)
            if smaller != NULL:
                wire.data = smaller
                wire.room = FIRST_ROOM

    cdef str reason(self):
        cdef Wire* wire = self.frames
        cdef ExpectedResponse* expected = next_response(wire)
        if wire.error == ERROR_FRAME_LENGTH:
            largest = wire.max_frame if expected == NULL else expected.largest
            return (f"the peer announced a frame of {<int> kb_big_endian(wire.data)} bytes, allowed are "
                    f"{SMALLEST_FRAME} to {largest}{' without a request' if expected == NULL else ''}; is this a "
                    "Kafka listener, and does it use this security.protocol?")
        return "the peer closed it" if self.wire.error == ERROR_END_OF_STREAM else strerror(self.wire.error)


cdef class Poller:
    """A set of connections; `poll` writes, waits and reads in a single stretch without the GIL."""

    def __cinit__(self):
        self.backend = chosen_backend()
        if self.backend.open(&self.ready) < 0:
            raise OSError(errno, strerror(errno))
        self.pid = getpid()
        self.connections = {}

    def __dealloc__(self):
        if self.backend != NULL:
            self.backend.close(&self.ready)

    @property
    def backend_name(self):
        return self.backend.name.decode()

    def register(
        self, sock, str peer, object context=None, *, Py_ssize_t max_frame=100_000_000, int max_in_flight=0x7FFFFFFF,
        Connection connection=None
    ):
        cdef Wire* wire
        cdef object key
        cdef int fd, code
        self.require_own_process()
        connection = Connection.__new__(Connection) if connection is None else connection
        wire = &connection.wire
        self.require_fresh(wire)
        sock.setblocking(False)
        fd = sock.detach()
        try:
            self.require_fresh(wire)  # again: methods of a socket's subclass may have registered the connection
        except ValueError:
            close(fd)
            raise
        wire.fd = fd
        wire.connection = <void*> connection
        connection.peer = peer
        connection.context = context
        connection.frames.max_frame = max_frame
        connection.frames.credit = max_in_flight
        wire.connecting = True
        wire.armed = True
        kb_no_sigpipe(wire.fd)
        key = <size_t> wire
        self.connections[key] = connection  # first: nothing may free the Wire once the back-end has its address
        if self.backend.add(&self.ready, wire.fd, KB_READABLE | KB_WRITABLE, wire) < 0:
            code = errno
            del self.connections[key]
            raise OSError(code, strerror(code))
        connection.poller = self
        return connection

    cdef int require_fresh(self, Wire* wire) except -1:
        if wire.connection != NULL:
            raise ValueError("the connection has or had a socket: make another connection for this socket")
        return 0

    def poll(self, timeout=None):
        return self.poll_for(INFINITY if timeout is None else <double>timeout)

    cdef list poll_for(self, double timeout):
        cdef int timeout_ms = -1
        cdef double rounded_up
        cdef list news = []
        self.require_own_process()
        if self.polling:
            raise ValueError("poll is under way already: only its owner's thread calls it, and no callback does")
        if timeout != INFINITY:
            # A Poller that wakes before the deadline would spin until the deadline.
            rounded_up = ceil(timeout * 1000.0)
            timeout_ms = <int> min(max(rounded_up, 0.0), <double> LONGEST_WAIT_MS)
        self.polling = True
        with nogil:
            kb_add(&self.polls, 1)
            if kb_load(&self.standing_back):
                self.backend.wake_waiters(&self.polls)
            self.turn(timeout_ms)
            self.since = kb_microseconds()
            kb_exchange(&self.at_the_door, 1)
        kb_exchange(&self.at_the_door, 0)
        try:
            if self.failed:
                raise OSError(self.failed, strerror(self.failed))
            self.take_news(news)
        finally:
            self.polling = False
        return news

    cdef int take_news(self, list news) except -1:
        # on_news may run Python code (TLS does), which may close any connection. remove() takes a closed connection off
        # the chain, so this loop reads the chain's head each time. If on_news raises, the next poll reports the rest.
        cdef Connection connection
        cdef Wire* wire
        cdef int news_bits
        cdef bint out_of_memory = False
        while self.news != NULL:
            wire = self.news
            connection = <Connection> wire.connection
            self.news = wire.next_news
            news_bits = wire.news
            wire.news = 0
            try:
                self.take_one(connection, news_bits, news)
            except MemoryError:
                # The next poll, which will not wait, tries again. This poll reports what it has.
                if connection.poller is not None and wire.news == 0:
                    wire.next_news = self.news
                    self.news = wire
                wire.news |= news_bits
                out_of_memory = True
            if out_of_memory:
                break
        return 0

    cdef int take_one(self, Connection connection, int news_bits, list news) except -1:
        connection.on_news(news_bits)
        if connection.poller is None:
            return 0
        news.append(connection)  # first: a connection that is removed has no further news
        try:
            if connection.error is None and (connection.wire.error or connection.frames.error):
                connection.error = NetworkError(f"connection to {connection.peer} failed: {connection.reason()}")
            if connection.error is not None:
                self.remove(connection)
        except MemoryError:
            news.pop()
            raise
        return 0

    cdef int require_own_process(self) except -1:
        # A forked child shares the sockets, and an epoll set too: its changes would reach the parent, whose pointers
        # are in that set.
        if self.pid != getpid():
            raise ClosedError("the connections are closed" if self.pid == CLOSED else
                              "the connections were made before a fork and belong to the parent process")
        return 0

    def wakeup(self):
        self.wake_up()

    cdef int wake_up(self) except -1:
        self.wake()
        if HAS_GIL and kb_load(&self.at_the_door) and kb_microseconds() - self.since > PATIENCE_US:
            self.let_in()
        return 0

    cdef int let_in(self) except -1:
        # A thread that loops over send() keeps the GIL for 5 ms at a time. In this time the brokers respond to all
        # requests, and the connections fall idle. So a thread that has just opened a batch lets the owner have a turn.
        cdef uint32_t seen = kb_load(&self.polls)
        with nogil:
            kb_add(&self.standing_back, 1)
            self.backend.wait_for_change(&self.polls, seen, LONGEST_TURN_US)
            kb_add(&self.standing_back, <uint32_t> -1)
        return 0

    cdef void wake(self) noexcept nogil:
        kb_exchange(&self.woken, 1)
        # Pairs with turn(): turn() stores `sleeping` and then loads `woken`, this stores `woken` and then loads
        # `sleeping`, so at least one of the two sees the other's store. Only the thread that clears `sleeping` calls
        # the backend: a burst of wake-ups costs one system call. Where that call comes between turn()'s load of `woken`
        # and its wait, it ends the wait at once.
        if kb_load(&self.sleeping) and kb_exchange(&self.sleeping, 0):
            self.backend.wake(&self.ready)

    cdef bint borrow(self) noexcept:
        # In a forked child the word still says what the parent's owner did at the time of the fork.
        return HAS_GIL and self.pid == getpid() and kb_replace(&self.loan, OFFERED, LENT)

    def close(self):
        for connection in list(self.connections.values()):
            connection.close()
        # The descriptors end here, not with the object: a closed producer is in cycles of references, and the garbage
        # collector may come late. A thread that has cleared `sleeping` holds the GIL until its write to the set is
        # over, and outside of turn() no thread clears it. Without the GIL such a write might meet another's descriptor.
        if HAS_GIL and not self.polling and self.pid == getpid():
            self.pid = CLOSED
            self.backend.close(&self.ready)

    cdef int remove(self, Connection connection) except -1:
        # After this no span of the connection's frames is read again: completions and slabs rely on it.
        # The caller holds a reference to the connection and to the Poller.
        cdef Wire* wire = &connection.wire
        cdef object key, emptied
        if connection.poller is None:
            return 0
        key, emptied = <size_t> wire, deque()  # before any change: there may be no memory
        connection.poller = None
        wire.head = wire.tail = wire.waiting = NULL
        connection.frames.head = connection.frames.tail = connection.frames.waiting = NULL
        self.unlink(wire)
        if self.pid == getpid():
            # close() is not enough: a forked child has a copy of the descriptor, which keeps the stream open and the
            # entry in an epoll set. A child must not do this: it would break its parent's connection.
            self.backend.remove(&self.ready, wire.fd)
            shutdown(wire.fd, SHUT_RDWR)
        close(wire.fd)
        wire.fd = -1
        # Last: dropping frames may run Python code. A new deque: further up the stack TLS may still read these frames.
        del self.connections[key]
        connection.queue = emptied
        return 0

    cdef void unlink(self, Wire* wire) noexcept nogil:
        """Take the wire off both chains: the connection may be freed after its close."""
        cdef Wire** link = &self.listed
        while link[0] != NULL and link[0] != wire:
            link = &link[0].next_listed
        if link[0] == wire:
            link[0] = wire.next_listed
        link = &self.news
        while link[0] != NULL and link[0] != wire:
            link = &link[0].next_news
        if link[0] == wire:
            link[0] = wire.next_news
        wire.listed = False
        wire.news = 0

    # ---- without the GIL -------------------------------------------------------------------------------------------

    cdef void turn(self, int timeout_ms) noexcept nogil:
        cdef uint32_t started
        cdef int64_t began = kb_nanoseconds()
        self.waited_ns = 0
        self.write_listed()
        kb_exchange(&self.sleeping, 1)
        if self.news != NULL or kb_load(&self.woken):
            timeout_ms = 0
        else:
            kb_exchange(&self.loan, OFFERED)
        self.serve_events(timeout_ms)
        kb_exchange(&self.sleeping, 0)
        started = kb_microseconds()
        while self.flowing() and kb_microseconds() - started < LONGEST_FLOW_US:
            self.serve_events(1)
        kb_exchange(&self.woken, 0)
        self.worked_ns = kb_nanoseconds() - began - self.waited_ns

    cdef void end_offer(self) noexcept nogil:
        # Only the exchange ends the offer. A borrower may repay at any moment: between a failed exchange and a look at
        # the word, too, which then says OFFERED. And several threads may borrow, each after the other.
        while kb_load(&self.loan) != NOT_OFFERED and not kb_replace(&self.loan, OFFERED, NOT_OFFERED):
            self.backend.wait_for_change(&self.loan, LENT, LONGEST_TURN_US)

    cdef void repay(self) noexcept nogil:
        cdef Wire* wire = self.listed
        self.write_listed()
        # The owner waits for events that it knew when its wait began: it must look at this connection again.
        if self.news != NULL or (wire != NULL and wire.armed):
            self.wake()
        kb_exchange(&self.loan, OFFERED)
        self.backend.wake_waiters(&self.loan)

    cdef bint flowing(self) noexcept nogil:
        """Whether all news is of responses on connections with more requests to start: the owner can see it later."""
        cdef Wire* wire = self.news
        if self.failed or wire == NULL:
            return False
        while wire != NULL:
            if wire.news != NEWS_FRAMES or wire.error or wire.waiting == NULL or wire.held:
                return False
            wire = wire.next_news
        return True

    cdef void enlist(self, Wire* wire) noexcept nogil:
        if not wire.listed:
            wire.listed = True
            wire.next_listed = self.listed
            self.listed = wire

    cdef void write_listed(self) noexcept nogil:
        cdef Wire* wire = self.listed
        cdef Wire* following
        self.listed = NULL
        while wire != NULL:
            following = wire.next_listed
            wire.listed = False
            if wire.held == HELD_UNTIL_SEEN:
                wire.held = 0
            self.write_out(wire)
            wire = following

    cdef void serve_events(self, int timeout_ms) noexcept nogil:
        cdef kb_event events[MOST_EVENTS]
        cdef Wire* wire
        cdef int i
        cdef int64_t began = kb_nanoseconds()
        cdef int count = self.backend.wait(&self.ready, events, MOST_EVENTS, timeout_ms)
        self.failed = errno if count < 0 and errno != EINTR else 0
        self.end_offer()
        self.waited_ns += kb_nanoseconds() - began
        for i in range(count):
            wire = <Wire*> events[i].owner
            if wire.connecting:
                self.finish_connect(wire)
            elif events[i].ready & KB_WRITABLE:
                self.write_out(wire)
            if not wire.connecting and events[i].ready & (KB_READABLE | KB_BROKEN):
                # Also after a failed write: responses that arrived before it still count.
                self.read_in(wire)

    cdef void finish_connect(self, Wire* wire) noexcept nogil:
        cdef int failure = 0
        cdef socklen_t length = sizeof(failure)
        if getsockopt(wire.fd, SOL_SOCKET, SO_ERROR, &failure, &length) < 0:
            failure = errno
        if failure:
            self.report(wire, NEWS_FAILED, failure)
            return
        wire.connecting = False
        self.report(wire, NEWS_CONNECTED, 0)
        self.write_out(wire)

    cdef void write_out(self, Wire* wire) noexcept nogil:
        cdef iovec vector[MOST_SPANS]
        cdef msghdr message
        cdef ssize_t sent
        memset(&message, 0, sizeof(message))
        message.msg_iov = vector
        start_waiting(wire)
        while wire.head != wire.waiting:
            message.msg_iovlen = gather(wire, vector)
            sent = sendmsg(wire.fd, &message, KB_SEND_FLAGS)
            if sent >= 0:
                if advance(wire, sent):
                    self.report(wire, NEWS_WRITTEN, 0)
            elif errno == EAGAIN:
                break
            elif errno != EINTR:
                self.report(wire, NEWS_FAILED, errno)
                return
        self.watch(wire, wire.head != wire.waiting)

    cdef void watch(self, Wire* wire, bint output) noexcept nogil:
        cdef int interest = KB_READABLE | KB_WRITABLE if output else KB_READABLE
        if wire.armed == output:
            return
        if self.backend.modify(&self.ready, wire.fd, interest, wire) < 0:
            self.report(wire, NEWS_FAILED, errno)
            return
        wire.armed = output

    cdef void read_in(self, Wire* wire) noexcept nogil:
        cdef ssize_t got
        if wire.length == wire.room and not make_room(wire):
            self.report(wire, NEWS_FAILED, ENOMEM)
            return
        got = recv(wire.fd, wire.data + wire.length, wire.room - wire.length, MSG_DONTWAIT)
        if got > 0:
            wire.length += got
            if wire.raw:
                self.report(wire, NEWS_BYTES, 0)
                return
            if count_responses(wire):
                self.report(wire, NEWS_FRAMES, 0)
            if wire.held:
                self.enlist(wire)
            elif wire.waiting != NULL and wire.credit > 0 and not wire.armed:
                self.write_out(wire)
        elif got == 0:
            self.report(wire, NEWS_FAILED, ERROR_END_OF_STREAM)
        elif errno != EAGAIN and errno != EINTR:
            self.report(wire, NEWS_FAILED, errno)

    cdef void report(self, Wire* wire, int news, int error) noexcept nogil:
        if wire.news == 0:
            wire.next_news = self.news
            self.news = wire
        wire.news |= news
        if wire.error == 0:
            wire.error = error
