# cython: language_level=3
"""The fields of a NodeConnection that every request reads. connection_state.py holds the others."""

from kafkabuf.network._io cimport Connection


cdef class NodeCore:
    # ---- fixed at construction
    cdef readonly int node_id
    # ---- thread: Sender
    cdef public object state            # State
    cdef public Connection connection   # None exactly while DISCONNECTED or RESOLVING
    cdef public object in_flight        # deque of InFlights in the order sent, which is the order of the responses
    cdef readonly dict agreed           # (API key, versions of the caller) -> the version to use
    cdef public object failing          # the error of a connection whose end is not complete; None: no such error
    cdef public double last_used        # seconds of the clock
    cdef public double throttled_until  # the broker asked for a pause until then (KIP-219); 0: it never did
