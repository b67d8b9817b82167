# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: extra_compile_args = -O1
"""TLS: frames are encrypted before the poll call, and received ciphertext is decrypted into frames after it.

This code holds the GIL. Python's ssl releases the GIL while it encrypts. Kafka's counterpart is SslTransportLayer.
"""

from collections import deque
from ssl import MemoryBIO, SSLEOFError, SSLError, SSLWantReadError, SSLZeroReturnError

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport ENOMEM, EPROTO
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from kafkabuf.network._io cimport Connection
from kafkabuf.network._socket cimport (
    ERROR_END_OF_STREAM, HELD_UNTIL_SEEN, KB_SEND_FLAGS, LENGTH_PREFIX, MOST_SPANS, NEWS_CONNECTED, NEWS_FAILED, Wire,
    advance, count_responses, gather, iovec, make_room, sendmsg, msghdr, start_waiting,
)
from kafkabuf.protocol._frame cimport Frame

from kafkabuf.network.tls import context as explanations

cdef enum:
    RECORD = 16384              # the most bytes that one TLS record holds
    SMALL_SPAN = 4096           # shorter spans are copied together, to share a TLS record
    STRETCH = 262144            # the most bytes that encrypt takes at once
    MOST_UNSENT = 262144        # no further bytes are encrypted while this many wait for the socket


cdef class TlsConnection(Connection):
    """See the .pxd."""

    # Not __init__: a caller could skip it, or call it again while frames and ciphertext are pending.
    def __cinit__(self, context, str host not None):
        memset(&self.clear, 0, sizeof(Wire))
        self.clear.need = LENGTH_PREFIX
        self.clear.armed = True  # never in the Poller's chain: it has no socket
        self.frames = &self.clear
        self.wire.raw = True
        self.incoming = MemoryBIO()
        self.outgoing = MemoryBIO()
        self.tls = explanations.wrap(context, self.incoming, self.outgoing, host)
        self.shipped = deque()

    def __dealloc__(self):
        free(self.clear.data)
        free(self.clear.responses)

    @property
    def queued(self):
        self.forget_shipped()
        if self.poller is None:
            return 0
        count = len(self.queue)
        for cipher in self.shipped:
            count += len((<Frame> cipher).owners) - 1
        return count

    cpdef int send(self, Frame frame) except -1:
        Connection.send(self, frame)
        frame.spans.ciphertext_waits = True
        try:
            self.encrypt_frames()
        except (SSLError, MemoryError) as error:
            # The next poll reports this error: callers of send do not expect an error, and the frame is queued. After
            # a lack of memory TLS may have a part of the frame. A closed connection reports nothing.
            if self.poller is not None:
                self.poller.report(&self.wire, NEWS_FAILED, ENOMEM if isinstance(error, MemoryError) else EPROTO)
        return 0

    cdef int on_news(self, int news_bits) except -1:
        cdef object failure = None
        self.forget_shipped()
        try:
            if self.wire.error != ENOMEM:  # else the connection ends, and TLS may have a part of a frame
                if news_bits & NEWS_CONNECTED:
                    self.shake_hands()
                if self.wire.length:
                    self.take_bytes()
                self.encrypt_frames()
        except Exception as error:  # an error raised here would end the Sender's turn and leave the connection open
            failure = error
        if failure is not None:
            self.end_with(failure)
        if self.error is None and self.wire.error and not self.connected and not self.wire.connecting:
            self.error = explanations.hung_up(self.peer, self.reason())
        return 0

    cdef int end_with(self, object failure) except -1:
        """The connection ends with this error. Without memory for the error the caller makes a shorter one."""
        try:
            self.error = explanations.explain(failure, self.peer, not self.heard)
            self.send_alert()
        except MemoryError:
            pass
        if self.error is None:
            self.wire.error = ENOMEM
        return 0

    # ---- from the peer -----------------------------------------------------------------------------------------------

    cdef int take_bytes(self) except -1:
        view = PyMemoryView_FromMemory(<char*> self.wire.data, self.wire.length, PyBUF_READ)
        self.incoming.write(view)
        view.release()
        self.wire.length = 0
        if not self.connected:
            self.shake_hands()
        return self.decrypt() if self.connected else 0

    cdef int shake_hands(self) except -1:
        try:
            self.tls.do_handshake()
            self.connected = True
        except SSLWantReadError:
            pass
        return self.ship(False)

    cdef int send_alert(self) except -1:
        """Send the peer the TLS alert that says why the connection fails, if the socket takes it at once."""
        cdef bytes data = self.outgoing.read()
        cdef iovec vector
        cdef msghdr message
        memset(&message, 0, sizeof(message))
        vector.iov_base = PyBytes_AS_STRING(data)
        vector.iov_len = PyBytes_GET_SIZE(data)
        message.msg_iov = &vector
        message.msg_iovlen = 1
        if self.wire.head == NULL and vector.iov_len:
            sendmsg(self.wire.fd, &message, KB_SEND_FLAGS)
        return 0

    cdef int decrypt(self) except -1:
        cdef Wire* clear = &self.clear
        cdef Py_ssize_t got = 0, room
        cdef bint dry = False  # TLS has no further bytes now
        while clear.error == 0:
            if clear.length == clear.room and not make_room(clear):
                self.wire.error = ENOMEM
                break
            room = clear.room - clear.length
            view = PyMemoryView_FromMemory(<char*> clear.data + clear.length, room, PyBUF_WRITE)
            try:
                got = self.tls.read(room, view)
            except SSLWantReadError:
                dry = True
            except (SSLZeroReturnError, SSLEOFError):
                got = 0
            finally:
                view.release()
            if dry:
                break
            if not 0 <= got <= room:
                raise ValueError(f"ssl says that it has read {got} bytes into a buffer of {room}")
            if got == 0:
                self.wire.error = self.wire.error or ERROR_END_OF_STREAM
                break
            self.heard = True
            clear.length += got
            if count_responses(clear):
                if clear.held == HELD_UNTIL_SEEN:
                    clear.held = 0  # over TLS no request waits behind a full in-flight table: ClientCore.most_ahead
                self.cut_frames()
        return self.ship(False)  # TLS responds to some messages by itself

    # ---- to the peer -------------------------------------------------------------------------------------------------

    cdef int encrypt_frames(self) except -1:
        """Encrypt the frames that may be started, until MOST_UNSENT bytes wait for the socket.

        No ciphertext has bytes of two frames. If it had the end of a request and the beginning of the next, the peer
        could answer the first request before the socket takes the rest of the ciphertext.
        """
        cdef Wire* clear = &self.clear
        cdef iovec vector[MOST_SPANS]
        cdef size_t count
        if self.encrypting:
            return 0  # Python code that ssl called has sent a frame: the loop further up the stack encrypts it
        self.encrypting = True
        _held = self.queue  # keeps the frames alive: Python code that ssl calls may close the connection
        try:
            while self.connected and self.poller is not None and self.unsent < MOST_UNSENT:
                start_waiting(clear)
                if clear.head == clear.waiting:
                    break
                count = min(gather(clear, vector), <size_t> (clear.head.count - clear.head.done))
                advance(clear, self.encrypt(vector, count))
                self.ship(True)
        finally:
            self.encrypting = False
        return 0

    cdef Py_ssize_t encrypt(self, const iovec* vector, size_t count) except -1:
        """Encrypt the first bytes of the spans, at most STRETCH. Returns how many bytes."""
        cdef unsigned char together[RECORD]
        cdef Py_ssize_t gathered = 0
        cdef Py_ssize_t taken = 0
        cdef Py_ssize_t size
        cdef size_t i
        for i in range(count):
            size = min(<Py_ssize_t> vector[i].iov_len, STRETCH - taken)
            if gathered and (size >= SMALL_SPAN or gathered + size > RECORD):
                self.write(together, gathered)
                gathered = 0
            if size >= SMALL_SPAN:
                self.write(vector[i].iov_base, size)
            else:
                memcpy(together + gathered, vector[i].iov_base, size)
                gathered += size
            taken += size
            if taken == STRETCH:
                break
        if gathered:
            self.write(together, gathered)
        return taken

    cdef int write(self, const void* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t done = 0
        view = PyMemoryView_FromMemory(<char*> data, size, PyBUF_READ)
        try:
            while done < size and self.poller is not None:
                done += <Py_ssize_t> self.tls.write(view[done:])
        finally:
            view.release()
        return 0

    cdef int ship(self, bint finished) except -1:
        """Queue the ciphertext from `outgoing` as a frame. With `finished` it owns the frames that end in it."""
        cdef bytes data = self.outgoing.read()
        cdef Frame cipher
        cdef Frame oldest
        if PyBytes_GET_SIZE(data) == 0:
            return 0
        cipher = Frame()
        cipher.add_bytes(data)
        cipher.notify = True
        if self.poller is None:  # checked last: a new Frame may run the garbage collector, and that may close self
            return 0
        while finished and self.queue:
            oldest = <Frame> self.queue[0]
            if oldest.spans.done < oldest.spans.count:
                break
            cipher.own(self.queue.popleft())
        self.unsent += cipher.nbytes
        self.shipped.append(cipher)
        return self.chain(&self.wire, cipher)

    cdef int forget_shipped(self) except -1:
        """Drop the ciphertext frames that are written: the frames that end in them are written too."""
        cdef Frame cipher
        while self.shipped:
            cipher = <Frame> self.shipped[0]
            if not cipher.written:
                break
            for owned in cipher.owners:
                if type(owned) is Frame:
                    (<Frame> owned).spans.ciphertext_waits = False
            self.unsent -= cipher.nbytes
            self.shipped.popleft()
        return 0
