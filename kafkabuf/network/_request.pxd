# cython: language_level=3
"""The contract of requests: a Request is sent to a broker, an InFlight records it meanwhile, a Completion ends it."""

from kafkabuf.protocol._frame cimport Frame


cdef class Request:
    cdef readonly int api_key
    cdef readonly int version
    cdef readonly object build              # callable: correlation id -> Frame
    cdef readonly object context            # belongs to the caller; the client does not look at it
    cdef readonly bint expects_response
    cdef readonly object timeout            # seconds; None: request.timeout.ms


cdef class Completion:
    cdef readonly Request request
    cdef readonly int node_id
    cdef readonly object response           # frame with its header; None: `error` is set, or no response was expected
    cdef readonly object error              # KafkaError or None
    cdef readonly double latency            # seconds from the request's start to its completion
    cdef readonly bint never_left           # the connection ended before the first byte was written
    cdef object entity                      # the response, once it is decoded


cdef class InFlight:
    cdef readonly Request request
    cdef readonly int correlation_id
    cdef readonly Frame frame
    cdef readonly double sent_at            # when the request was started; when it was queued, until it is started
    cdef readonly double deadline           # infinite until the request is started
    cdef object deliver                     # callable(Completion); None: the next poll returns the Completion


# As the constructors, without the cost of a Python call. The Sender and the client make these for each request.
cdef Request new_request(int api_key, int version, object build, object context, bint expects_response)
cdef Completion new_completion(InFlight entry, int node_id, object response, object error, double latency,
                               bint never_left)

# The throttle time of a decoded response, in milliseconds; -1: the response has no such field.
# Raises CorruptMessageError.
cdef int throttle_ms_of(object entity) except -2
