# cython: language_level=3
"""What the network client does for every request and response. client.py holds the rest."""

from kafkabuf.network._metrics cimport ProducerStats
from kafkabuf.network._io cimport Connection, Poller
from kafkabuf.network._node cimport NodeCore
from kafkabuf.network._request cimport InFlight, Request


cdef class ClientCore:
    # ---- fixed at construction
    cdef readonly object _clock, _metadata
    cdef bint system_clock                  # the clock is the machine's, and `now` reads it in C
    cdef public object _updater             # MetadataUpdater
    cdef readonly Poller _poller
    cdef bint plain_poller                  # no subclass of Poller, whose poll() would have to be called
    cdef int max_in_flight
    cdef public int most_ahead              # requests that may wait behind a full in-flight table
    cdef public object _authenticator       # Authenticator, or None without SASL
    cdef double request_timeout             # seconds
    cdef double max_idle                    # seconds after which an unused connection is closed
    cdef public ProducerStats stats         # counts requests, responses and throttle times; None: nothing is counted
    cdef public object on_throttle          # called with (node id, ms) for each throttle time, 0 too; None: nobody asks
    # ---- thread: Sender
    cdef readonly dict _nodes               # node id -> NodeConnection
    cdef readonly list _completions         # the next poll returns them
    cdef readonly set _resolving            # NodeConnections whose host names are being looked up
    cdef readonly list _decoding            # Decodings of long responses under way
    cdef public double _next_check          # no time-out of any kind is due earlier
    cdef int correlation_id                 # of the newest request
    cdef object changes_seen                # Metadata.changes when metadata_due was computed
    cdef double metadata_due                # clock time at which the next metadata update is due
    # What a lack of memory has left to the next poll: connections with news, the next one last, and whether a node may
    # have a connection whose end is not complete (NodeCore.failing).
    cdef list unread
    cdef public bint unfinished
    cdef int unanswered                     # requests in flight that get no response (acks=0)

    cdef double now(self) except? -1
    # The public methods ready, api_version, throttle, send and poll, without the cost of a Python call
    cdef bint is_ready(self, int node_id) except -1
    # How many requests a node takes now; -1: it is not connected. And how many behind its full in-flight table.
    cdef int free_slots(self, NodeCore node) except -2
    cdef int free_behind(self, NodeCore node) except -1
    cdef int agreed_version(self, int node_id, int api_key, object supported) except -1
    cdef int keep_pause(self, int node_id, Request request, int throttle_ms) except -1
    cdef int tell_throttle(self, int node_id, int throttle_ms) except -1
    cdef int put_in_flight(self, NodeCore node, Request request, object deliver) except -1
    cdef list poll_for(self, double timeout)
    cdef bint throttled(self, NodeCore node) except -1
    cdef NodeCore connected_node(self, int node_id)
    cdef double metadata_wait(self, double now) except? -1
    cdef int note_started(self, NodeCore node, double now) except -1
    cdef int on_news(self, Connection connection) except -1
    cdef int on_frame(self, NodeCore node, bytes frame) except -1
    cpdef int _complete(self, NodeCore node, InFlight entry, object response, object error, object entity=*,
                        bint never_left=*) except -1
    cpdef list _take_completions(self)
    cdef bint is_completed(self, InFlight entry) noexcept

    # ---- methods that the subclass defines
    # _start(node_id: int) -> None: connect to the node, if its back-off is over
    # _greet(node: NodeConnection) -> None: the connection is open: send ApiVersions
    # _disconnect(node: NodeConnection, error: KafkaError, now: float) -> None: close the connection and complete its
    #     requests with an error
    # _finish_disconnects(now: float) -> None: complete the ends of connections for which there was no memory
    # _decode_in_background(node: NodeConnection, entry: InFlight, frame: bytes) -> None: decode a long response in
    #     another thread
    # _take_decoded(now: float) -> None: complete the requests whose long responses are decoded
    # _take_resolved(now: float) -> None: connect to the nodes whose host names have been looked up
    # _take_steps(now: float) -> None: continue authentications whose slow step another thread has finished
    # _check_time_outs(now: float) -> None: close late and idle connections, and set _next_check
