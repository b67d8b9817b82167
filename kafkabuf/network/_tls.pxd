# cython: language_level=3
from kafkabuf.protocol._frame cimport Frame
from kafkabuf.network._io cimport Connection
from kafkabuf.network._socket cimport Wire, iovec


cdef class TlsConnection(Connection):
    """A Connection between whose frames and socket stands Python's ssl. Thread: the Poller's owner.

    The frames, their credit and what was decrypted are in `clear`; ciphertext goes over `wire` in frames of its own.
    A frame's spans are read while it is encrypted, never after; it is `written` when its last ciphertext byte is.
    """
    cdef Wire clear
    cdef object tls                 # ssl.SSLObject over
    cdef object incoming            # ssl.MemoryBIO of ciphertext from the socket
    cdef object outgoing            # and for it
    cdef object shipped             # deque of ciphertext frames not out yet; each owns the frames that end in it
    cdef readonly Py_ssize_t unsent  # bytes of these, at most
    cdef bint sealing               # seal is under way: what ssl calls back must not start another
    cdef bint heard                 # the peer has said something over the finished handshake

    cdef int shake_hands(self) except -1
    cdef int send_alert(self) except -1
    cdef int take_bytes(self) except -1
    cdef int decrypt(self) except -1
    cdef int seal(self) except -1
    cdef Py_ssize_t encrypt(self, const iovec* vector, size_t count) except -1
    cdef int write(self, const void* data, Py_ssize_t size) except -1
    cdef int ship(self, bint finished) except -1
    cdef int forget_shipped(self) except -1
