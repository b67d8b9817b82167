# cython: language_level=3
"""Requests and their answers: what the network client does for each of them. All else is client.py's.

Request, Completion and InFlight are what is asked of a broker, what comes back, and the record of what is under way.
"""

from kafkabuf.protocol._frame cimport Frame
from kafkabuf._metrics cimport ProducerStats
from kafkabuf.network._io cimport Connection, Poller


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


cdef class ClientCore:
    # ---- fixed at construction
    cdef readonly object _clock, _metadata
    cdef public object _updater             # MetadataUpdater
    cdef readonly Poller _poller
    cdef int max_in_flight
    cdef public int most_ahead              # requests that may wait behind a full in-flight table
    cdef public object _authenticator       # Authenticator, or None without SASL
    cdef double request_timeout             # seconds
    cdef double max_idle                    # seconds after which an unused connection is closed
    cdef public ProducerStats stats         # what is counted of requests, or None
    cdef public object on_throttle_time     # callable(ms), told of every answer's throttle time; None
    # ---- thread: Sender
    cdef readonly dict _nodes               # node id -> NodeConnection
    cdef readonly list _completions         # the next poll returns them
    cdef readonly set _resolving           # NodeConnections whose host names are being looked up
    cdef readonly list _decoding            # Decodings of long answers under way
    cdef public double _next_check          # no time-out of any kind is due earlier
    cdef int correlation_id
    cdef object changes_seen                # Metadata.changes when it was last asked when it wants an update,
    cdef double metadata_due                # and what it said
    cdef int unanswered                     # requests in flight that no response will end (acks=0)

    cdef bint throttled(self, object node) except -1
    cpdef object _connected(self, int node_id)
    cdef double metadata_wait(self, double now) except? -1
    cdef int note_started(self, object node, double now) except -1
    cdef int on_news(self, Connection connection) except -1
    cdef int on_frame(self, object node, bytes frame) except -1
    cpdef int _complete(self, object node, InFlight entry, object response, object error, object entity=*,
                        bint never_left=*) except -1
    cpdef list _take_completions(self)
