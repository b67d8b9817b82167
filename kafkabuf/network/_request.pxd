# cython: language_level=3
"""What the Sender asks of a broker, the record of what is under way, and what comes back."""

from kafkabuf.protocol._frame cimport Frame


cdef class Request:
    cdef readonly int api_key
    cdef readonly int version
    cdef readonly object build              # callable: correlation id -> Frame
    cdef readonly object context            # the caller's own
    cdef readonly bint expects_response
    cdef readonly object timeout            # seconds, or None: request.timeout.ms


cdef class Completion:
    cdef readonly Request request
    cdef readonly int node_id
    cdef readonly object response           # the frame that answered, header included; None: `error`, or none expected
    cdef readonly object error              # KafkaError or None
    cdef readonly double latency            # seconds from `send` to here
    cdef readonly bint never_left           # the connection ended before the first byte was written
    cdef object entity                      # the response, once decoded


cdef class InFlight:
    cdef readonly Request request
    cdef readonly int correlation_id
    cdef readonly Frame frame
    cdef readonly double sent_at            # or queued at, until it may be started
    cdef readonly double deadline           # infinite until then
    cdef object deliver                     # takes the Completion; None: the next poll returns it


# Of a decoded answer; -1: the answer has no such field. Raises CorruptMessageError.
cdef int throttle_ms_of(object entity) except -2
