# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, nonecheck=True
"""Sends requests, matches responses to them, and delivers completions. Thread: the Sender's."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.math cimport INFINITY

from kafkabuf.process._time cimport kb_monotonic
from kafkabuf.network._io cimport Connection, Poller
from kafkabuf.network._node cimport NodeCore
from kafkabuf.network._request cimport Completion, InFlight, Request, new_completion, throttle_ms_of
from kafkabuf.network._socket cimport kb_big_endian

from kafkabuf.clock import SystemClock
from kafkabuf.errors import AuthenticationError, CorruptMessageError, KafkaError, NetworkError, ProtocolError
from kafkabuf.network import bounds
from kafkabuf.network.connection_state import State
from kafkabuf.protocol import messages

cdef object CONNECTING = State.CONNECTING
cdef object READY = State.READY
cdef int PRODUCE = messages.PRODUCE

# Requests that may wait behind a full in-flight table. They keep the connection busy while its owner waits for the GIL.
# With fewer it would fall idle. With more the Sender would notice an error of a partition late.
cdef enum:
    MOST_AHEAD = 8

# The client cuts a longer throttle time to this length. Kafka's request quotas ask for at most a second. Its bandwidth
# quotas have no bound, but no record outlives such a pause: delivery.timeout.ms is two minutes.
cdef int LONGEST_PAUSE_MS = 300_000
cdef Py_ssize_t LARGEST_DECODED_AT_ONCE = bounds.LARGEST_DECODED_AT_ONCE

# From these versions on a broker responds at once and leaves the pause to the client (KIP-219).
cdef dict FIRST_TO_THROTTLE = {messages.PRODUCE: 6, messages.METADATA: 6, messages.FIND_COORDINATOR: 2,
                               messages.API_VERSIONS: 2}


cdef class Requests:
    """Sends the requests of one client, and completes them."""

    def __init__(self, config, clock):
        self.clock = clock
        self.system_clock = type(clock) is SystemClock
        self.max_in_flight = config.max_in_flight_requests_per_connection
        self.request_timeout = config.request_timeout_ms / 1000
        self.max_idle = config.connections_max_idle_ms / 1000 if config.connections_max_idle_ms >= 0 else INFINITY
        self.nodes = {}
        self.completions = []
        self.next_check = INFINITY

    cdef double now(self) except? -1:
        return kb_monotonic() if self.system_clock else self.clock.monotonic()

    cpdef int send(self, NodeCore node, Request request, object deliver=None) except -1:
        """Queue a request. If `deliver` is given, `poll` calls it with the Completion and does not return that."""
        cdef InFlight entry = InFlight.__new__(InFlight)
        cdef Connection connection = node.connection
        cdef double now = self.now()
        self.correlation_id = (self.correlation_id + 1) & 0x7FFF_FFFF
        entry.request = request
        entry.correlation_id = self.correlation_id
        entry.frame = request.build(self.correlation_id)
        entry.frame.require_unsent()
        entry.frame.spans.notify = not request.expects_response
        entry.frame.spans.response.correlation_id = self.correlation_id
        entry.sent_at = now
        entry.deadline = INFINITY
        entry.deliver = deliver
        if self.stats is not None:
            self.stats.request(node.node_id, entry.frame.nbytes, now)
        # An exception says that the request was not sent. So nothing may fail once the connection has the frame.
        node.in_flight.append(entry)
        try:
            connection.send(entry.frame)
        except BaseException:
            if node.in_flight and node.in_flight[len(node.in_flight) - 1] is entry:
                node.in_flight.pop()
            raise
        self.unanswered += not request.expects_response
        node.last_used = now
        return self.note_started(node, now)

    cdef int note_started(self, NodeCore node, double now) except -1:
        """Start the time-outs of the requests at the head of the in-flight table: the connection has started them."""
        cdef object in_flight = node.in_flight
        cdef Py_ssize_t i
        cdef double timeout
        cdef InFlight entry
        for i in range(min(<Py_ssize_t>len(in_flight), self.max_in_flight)):
            entry = in_flight[i]
            if entry.deadline == INFINITY:
                entry.sent_at = now
                timeout = self.request_timeout if entry.request.timeout is None else <double>entry.request.timeout
                entry.deadline = now + timeout
                self.next_check = min(self.next_check, entry.deadline)
        return 0

    cdef bint throttled(self, NodeCore node) except -1:
        return node.throttled_until and self.now() < node.throttled_until

    cdef int keep_pause(self, int node_id, Request request, int throttle_ms) except -1:
        cdef InFlight entry
        cdef double now, until, extension
        cdef NodeCore node
        if self.stats is not None:
            self.stats.throttle.record(throttle_ms, self.now())
        if self.on_throttle is not None:
            self.tell_throttle(node_id, throttle_ms)
        if throttle_ms <= 0:
            return 0
        node = self.nodes.get(node_id)
        if node is None or request.version < FIRST_TO_THROTTLE.get(request.api_key, 1):
            return 0
        now = self.now()
        until = now + min(throttle_ms, LONGEST_PAUSE_MS) / 1000.0
        extension = until - max(node.throttled_until, now)
        if extension <= 0:
            return 0
        node.throttled_until = until
        for entry in node.in_flight:
            entry.deadline += extension
        return 0

    cdef int tell_throttle(self, int node_id, int throttle_ms) except -1:
        try:
            self.on_throttle(node_id, throttle_ms)
        except MemoryError:
            pass  # the response counts for more than the news of its pause
        return 0

    def respond(self, NodeCore node not None, InFlight entry not None, bytes frame, entity):
        """Complete a request whose response another thread has decoded."""
        cdef int pause = throttle_ms_of(entity)
        if pause >= 0:
            self.keep_pause(node.node_id, entry.request, pause)
        self.complete(node, entry, frame, None, entity)

    cpdef int complete(self, NodeCore node, InFlight entry, object response, object error, object entity=None,
                       bint never_left=False) except -1:
        cdef double now = self.now()
        cdef Completion completion = new_completion(entry, node.node_id, response, error, now - entry.sent_at,
                                                    never_left)
        completion.entity = entity
        if entry.deliver is None:
            self.completions.append(completion)  # nothing before this line has changed anything
        self.unanswered -= not entry.request.expects_response
        if response is not None and self.stats is not None:
            self.stats.response(node.node_id, len(response) + 4, now)
        if error is None:
            node.last_used = now
            self.next_check = min(self.next_check, now + self.max_idle)
        if entry.deliver is not None:
            entry.deliver(completion)
        return 0

    cpdef bint is_completed(self, InFlight entry) except -1:
        """Whether the newest completion is that of the entry's request."""
        cdef Py_ssize_t count = len(self.completions)
        if entry.deliver is not None or count == 0:
            return False
        return (<Completion>self.completions[count - 1]).request is entry.request

    cpdef list take_completions(self):
        taken = self.completions
        self.completions = []
        return taken


cdef class ConnectionPolicy:
    """How connections begin and end. Connections in connections.py defines the methods."""

    def __cinit__(self):
        self.resolving = set()
        self.decoding = []

    cpdef object start(self, int node_id):
        raise NotImplementedError

    cpdef object greet(self, NodeCore node):
        raise NotImplementedError

    cpdef object disconnect(self, NodeCore node, object error, double now):
        raise NotImplementedError

    cpdef object finish_disconnects(self, double now):
        raise NotImplementedError

    cpdef object decode(self, NodeCore node, InFlight entry, bytes frame):
        raise NotImplementedError

    cpdef double update_metadata(self, double now) except? -1:
        raise NotImplementedError

    cpdef object run(self, double now):
        raise NotImplementedError


cdef class ClientCore:
    """Base of NetworkClient: the part that runs for every request."""

    def __init__(self, metadata, Poller poller not None, Requests requests not None,
                 ConnectionPolicy connections not None):
        self._metadata = metadata
        self._poller = poller
        self.plain_poller = type(poller) is Poller
        self.requests = requests
        self.connections = connections
        self.most_ahead = MOST_AHEAD
        self.unread = []

    # ---- requests ----------------------------------------------------------------------------------------------------

    def ready(self, int node_id):
        """Whether the node takes a request: it is connected, greeted, not throttled, and has room in flight.

        Starts a connection to a node that has no connection.
        """
        return self.is_ready(node_id)

    cdef bint is_ready(self, int node_id) except -1:
        cdef NodeCore node = self.requests.nodes.get(node_id)
        if node is None or node.state is not READY:
            self.connections.start(node_id)
            return False
        return self.free_slots(node) > 0

    cdef int free_slots(self, NodeCore node) except -2:
        if node.state is not READY:
            return -1
        return 0 if self.requests.throttled(node) else max(self.requests.max_in_flight - <int>len(node.in_flight), 0)

    def takes_ahead(self, int node_id):
        """Whether a node takes requests behind its full in-flight table. They start as earlier requests end."""
        cdef NodeCore node = self.requests.nodes.get(node_id)
        return node is not None and self.free_behind(node) > 0

    cdef int free_behind(self, NodeCore node) except -1:
        if node.state is not READY or self.requests.throttled(node):
            return 0
        # The client's own requests are queued there too, beyond the limit.
        return max(self.most_ahead - max(<int>len(node.in_flight) - self.requests.max_in_flight, 0), 0)

    def send(self, int node_id, Request request not None):
        """Queue a request for a node that is `ready` or `takes_ahead`. `poll` writes it when it may be started.

        Raises NetworkError if the node is not connected.
        """
        self.requests.send(self.connected_node(node_id), request)

    def take_back(self, int node_id, int api_key):
        """Take back the requests of one API that the connection has not started. Returns them, oldest first."""
        cdef InFlight entry
        cdef list waiting
        cdef Py_ssize_t place, kept = 0
        cdef NodeCore node = self.requests.nodes.get(node_id)
        if node is None or node.connection is None:
            return []
        waiting = list(node.connection.take_back())
        for place in range(len(waiting) - 1, -1, -1):  # needs no memory: an error here would lose requests
            waiting[place] = node.in_flight.pop()
        for place in range(len(waiting)):
            entry = waiting[place]
            if entry.request.api_key == api_key:
                waiting[kept] = entry.request
                kept += 1
            else:
                node.connection.send(entry.frame)
                node.in_flight.append(entry)
        del waiting[kept:]
        return waiting

    def api_version(self, int node_id, int api_key, supported):
        """The highest version of an API that the node and `supported` (range, or lowest and highest) share.

        Raises UnsupportedVersionError if they share no version, NetworkError if the node is not connected.
        """
        return self.agreed_version(node_id, api_key, supported)

    cdef int agreed_version(self, int node_id, int api_key, object supported) except -1:
        cdef NodeCore node = self.connected_node(node_id)
        version = node.agreed.get((api_key, supported))
        if version is None:
            version = node.agreed[api_key, supported] = (<object>node).api_version(api_key, supported)
        return version

    def throttle(self, int node_id, Request request not None, int throttle_ms):
        """Keep the pause that a response asks for: until its end the node is not `ready`, and its deadlines move.

        Call this for every response that has a throttle time, even if it is 0.
        """
        self.requests.keep_pause(node_id, request, throttle_ms)

    cdef NodeCore connected_node(self, int node_id):
        cdef NodeCore node = self.requests.nodes.get(node_id)
        if node is None or node.state is not READY:
            raise NetworkError(f"{node or f'broker {node_id}'} is not connected")
        return node

    def wakeup(self):
        """Any thread: end the `poll` under way, or the next `poll`.

        This is Cython, because Ctrl-C could interrupt Python code after the record is queued and before the wake-up.
        """
        if self.plain_poller:
            self._poller.wake_up()
        else:
            self._poller.wakeup()

    def poll(self, timeout=None):
        """Write, wait up to `timeout` seconds (None: until there is news), read, and maintain metadata and connections.

        Completions of one node come in the order of its requests. Those of requests that never left come last, the
        newest first. The list may be empty before the time-out.
        """
        return self.poll_for(INFINITY if timeout is None else <double>timeout)

    cdef list poll_for(self, double timeout):
        cdef double now = self.requests.now()
        cdef double wait = self.metadata_wait(now)
        # Not in one expression: Cython's min() reads its second operand first, and metadata_wait may move next_check.
        wait = min(min(wait, self.requests.next_check - now), timeout)
        if self.requests.completions or self.connections.unfinished:  # of a connection that failed since the last poll
            wait = 0.0
        if self.connections.unfinished:
            self.connections.finish_disconnects(now)
        if not self.unread:
            self.unread = self._poller.poll_for(wait) if self.plain_poller else list(self._poller.poll(wait))
            self.unread.reverse()
        while self.unread:
            self.on_news(self.unread.pop())
        now = self.requests.now()
        if self.requests.stats is not None:
            self.requests.stats.polled(<double>self._poller.waited_ns, <double>self._poller.worked_ns, now)
        if self.is_due(now):
            self.connections.run(now)
        return self.requests.take_completions()

    cdef bint is_due(self, double now) except -1:
        cdef ConnectionPolicy connections = self.connections
        return (now >= self.requests.next_check or connections.resolving or connections.decoding
                or connections.authenticator is not None and connections.authenticator.waiting)

    cdef double metadata_wait(self, double now) except? -1:
        """Update metadata if an update is due. Returns the seconds until the next call is due."""
        cdef double wait
        changes = self._metadata.changes
        if changes != self.changes_seen or now >= self.metadata_due:
            wait = self._metadata.time_to_update(now)
            if wait <= 0:
                return self.connections.update_metadata(now)
            self.changes_seen = changes  # read before time_to_update: a change in between makes the next turn ask again
            self.metadata_due = now + wait
        return self.metadata_due - now

    # ---- responses ---------------------------------------------------------------------------------------------------

    cdef int on_news(self, Connection connection) except -1:
        cdef double now = self.requests.now()
        cdef NodeCore node = connection.context
        cdef object failure = None
        try:
            if node.state is CONNECTING and connection.connected:
                if self.requests.stats is not None:
                    self.requests.stats.opened.record(1, now)
                self.connections.greet(node)
            if self.requests.unanswered:
                for entry in (<object>node).written():
                    self.requests.complete(node, entry, None, None)
                    node.in_flight.remove(entry)
            if connection.received:
                for frame in connection.take_frames():
                    self.on_frame(node, frame)
        except Exception as error:
            failure = error
        if failure is None:
            failure = connection.error
        if failure is not None:
            # First: where memory is short, the next poll does the rest.
            node.failing, self.connections.unfinished = failure, True
        if failure is not None and failure is not connection.error and not isinstance(failure, AuthenticationError):
            # The broker broke the protocol, so the client does not know where the next response begins. Only a new
            # connection helps. An error of our own code also leaves the stream in the middle of a response.
            # A broker that refuses the credentials says so and closes: its response counts, not the end of the stream.
            failure = connection.error or broken(node, failure)
        if failure is not None:
            self.connections.disconnect(node, failure, now)
        else:
            self.requests.note_started(node, now)
        return 0

    def fail_connection(self, int node_id, error):
        """Close the connection after a response that breaks the protocol: its requests complete with a NetworkError."""
        node = self.requests.nodes.get(node_id)
        if node is not None and node.established:
            self.connections.disconnect(node, broken(node, error), self.requests.now())

    cdef int on_frame(self, NodeCore node, bytes frame) except -1:
        # The Poller refuses a frame shorter than a correlation id.
        cdef int correlation_id = <int>kb_big_endian(<const unsigned char*>PyBytes_AS_STRING(frame))
        cdef InFlight oldest = node.in_flight[0] if node.in_flight else None
        if oldest is None or oldest.correlation_id != correlation_id:
            expected = "none" if oldest is None else oldest.correlation_id
            raise ProtocolError(f"{node} sent a response with correlation id {correlation_id}, expected {expected}")
        if not oldest.frame.written:
            # A completion says that no socket reads the request's spans any more.
            raise ProtocolError(f"{node} answered request {correlation_id} before it was sent in full")
        cdef object entity = None
        cdef int pause = -1
        if oldest.request.api_key != PRODUCE and len(frame) > LARGEST_DECODED_AT_ONCE:
            self.connections.decode(node, oldest, frame)
            node.in_flight.popleft()  # last: without memory the request fails with the connection
            return 0
        if oldest.request.api_key != PRODUCE:
            # The request is still in flight here: if decoding raises, it fails with the connection.
            entity = messages.decode_response(oldest.request.api_key, oldest.request.version, frame)[1]
            pause = throttle_ms_of(entity)
        node.in_flight.popleft()
        try:
            if pause >= 0:
                self.requests.keep_pause(node.node_id, oldest.request, pause)
            self.requests.complete(node, oldest, frame, None, entity)
        except MemoryError:
            if not self.requests.is_completed(oldest):
                node.in_flight.appendleft(oldest)  # the request fails with the connection
            raise
        return 0


def broken(node, error):
    """The error of the requests on a connection whose broker breaks the protocol. It is retriable."""
    if isinstance(error, KafkaError) and not isinstance(error, CorruptMessageError):
        return error
    reason = error if isinstance(error, KafkaError) else f"{type(error).__name__}: {error}"
    failure = ProtocolError(f"{node} is not understood: {reason}")
    failure.__cause__ = error
    return failure
