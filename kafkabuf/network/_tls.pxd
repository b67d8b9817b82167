# cython: language_level=3
"""TLS between the frames of a Connection and its socket."""

from kafkabuf.network._io cimport Connection
from kafkabuf.network._socket cimport Wire, iovec
from kafkabuf.protocol._frame cimport Frame


cdef class TlsConnection(Connection):
    """A Connection with Python's ssl between its frames and its socket. Thread: the Poller's owner.

    `clear` holds the plaintext frames, their credit and the decrypted bytes. The ciphertext goes over `wire` in frames
    of its own. A frame's spans are read while it is encrypted, never after. A frame is `written` when the kernel
    has taken its last byte of ciphertext. No ciphertext frame has bytes of two requests: else the peer could answer the
    first while the frame is not written. Encryption needs the GIL, so no request waits behind a full in-flight table.
    """
    cdef Wire clear
    cdef object tls                 # ssl.SSLObject over `incoming` and `outgoing`
    cdef object incoming            # ssl.MemoryBIO: ciphertext from the socket
    cdef object outgoing            # ssl.MemoryBIO: ciphertext for the socket
    cdef object shipped             # deque of unwritten ciphertext Frames; each owns the Frames that end in it
    cdef readonly Py_ssize_t unsent  # bytes of all frames in `shipped`: an upper bound of what is not written
    cdef bint encrypting            # encrypt_frames runs: Python code that ssl calls must not start it again
    cdef bint heard                 # the peer has sent application data

    cdef int shake_hands(self) except -1
    cdef int send_alert(self) except -1
    cdef int end_with(self, object failure) except -1
    cdef int take_bytes(self) except -1
    cdef int decrypt(self) except -1
    cdef int encrypt_frames(self) except -1
    cdef Py_ssize_t encrypt(self, const iovec* vector, size_t count) except -1
    cdef int write(self, const void* data, Py_ssize_t size) except -1
    cdef int ship(self, bint finished) except -1
    cdef int forget_shipped(self) except -1
