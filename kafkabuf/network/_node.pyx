# cython: language_level=3
"""One broker as every request sees it: the part of NodeConnection that is read in C."""

from collections import deque


cdef class NodeCore:
    """Base of NodeConnection. It is made without a connection."""

    def __cinit__(self, int node_id, *args):
        self.node_id = node_id
        self.in_flight = deque()
        self.agreed = {}
