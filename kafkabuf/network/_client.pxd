# cython: language_level=3
"""What the network client does for every request and response. connections.py holds the rest.

One class stands on the other: Requests, then the connections, which complete requests, then the poll, which calls both.
Thread: Sender, if nothing else is said.
"""

from kafkabuf.network._metrics cimport ProducerStats
from kafkabuf.network._io cimport Connection, Poller
from kafkabuf.network._node cimport NodeCore
from kafkabuf.network._request cimport InFlight, Request


cdef class Requests:
    # ---- fixed at construction
    cdef readonly object clock
    cdef bint system_clock                  # the clock is the machine's, and `now` reads it in C
    cdef int max_in_flight
    cdef double request_timeout             # seconds
    cdef double max_idle                    # seconds after which an unused connection is closed
    cdef public ProducerStats stats         # counts requests, responses and throttle times; None: nothing is counted
    cdef public object on_throttle          # called with (node id, ms) for each throttle time, 0 too; None: nobody asks
    # ---- thread: Sender
    cdef readonly dict nodes                # node id -> NodeConnection, which has the node's in-flight table
    cdef list completions                   # the next poll returns them
    cdef public double next_check           # no time-out of any kind is due earlier
    cdef int correlation_id                 # of the newest request
    cdef int unanswered                     # requests in flight that get no response (acks=0)

    cdef double now(self) except? -1
    cpdef int send(self, NodeCore node, Request request, object deliver=*) except -1
    cdef int note_started(self, NodeCore node, double now) except -1
    cdef bint throttled(self, NodeCore node) except -1
    cdef int keep_pause(self, int node_id, Request request, int throttle_ms) except -1
    cdef int tell_throttle(self, int node_id, int throttle_ms) except -1
    cpdef int complete(self, NodeCore node, InFlight entry, object response, object error, object entity=*,
                       bint never_left=*) except -1
    cpdef bint is_completed(self, InFlight entry) except -1
    cpdef list take_completions(self)


cdef class ConnectionPolicy:
    """How connections begin and end: connections.py."""
    cdef readonly set resolving             # NodeConnections whose host names are being looked up
    cdef readonly list decoding             # Decodings of long responses under way
    cdef public object authenticator        # Authenticator, or None without SASL
    # Whether a lack of memory may have left a node a connection whose end is not complete (NodeCore.failing).
    cdef public bint unfinished

    cpdef object start(self, int node_id)               # connect to the node, if its back-off is over
    cpdef object greet(self, NodeCore node)             # the connection is open: send ApiVersions
    # Close the connection, and complete its requests with an error.
    cpdef object disconnect(self, NodeCore node, object error, double now)
    cpdef object finish_disconnects(self, double now)   # complete the ends of connections for which no memory was there
    cpdef object decode(self, NodeCore node, InFlight entry, bytes frame)   # decode a long response in another thread
    # Ask for metadata, or connect to a broker that may have it. Returns the seconds until the next call is due.
    cpdef double update_metadata(self, double now) except? -1
    # Continue what another thread has finished, then close late and idle connections and set next_check.
    cpdef object run(self, double now)


cdef class ClientCore:
    # ---- fixed at construction
    cdef readonly object _metadata
    cdef readonly Poller _poller
    cdef bint plain_poller                  # no subclass of Poller, whose poll() would have to be called
    cdef readonly Requests requests
    cdef readonly ConnectionPolicy connections
    cdef public int most_ahead              # requests that may wait behind a full in-flight table
    # ---- thread: Sender
    cdef object changes_seen                # Metadata.changes when metadata_due was computed
    cdef double metadata_due                # clock time at which the next metadata update is due
    cdef list unread                        # connections with news, the next one last, if memory was short

    # The public methods ready, api_version and poll, without the cost of a Python call
    cdef bint is_ready(self, int node_id) except -1
    cdef int agreed_version(self, int node_id, int api_key, object supported) except -1
    cdef list poll_for(self, double timeout)
    # How many requests a node takes now; -1: it is not connected. And how many behind its full in-flight table.
    cdef int free_slots(self, NodeCore node) except -2
    cdef int free_behind(self, NodeCore node) except -1
    cdef NodeCore connected_node(self, int node_id)
    cdef bint is_due(self, double now) except -1        # whether ConnectionPolicy.run has work
    cdef double metadata_wait(self, double now) except? -1
    cdef int on_news(self, Connection connection) except -1
    cdef int on_frame(self, NodeCore node, bytes frame) except -1
