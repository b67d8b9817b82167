# cython: language_level=3
"""The producer's counts: per batch, request, poll and connection, never per record.

The Sender's thread writes them, except `waits` and `exhausted`: the threads that need memory write these. The folder
metrics/ reads all counts.
"""

from libc.stdint cimport int64_t

from kafkabuf.process._lock cimport kb_lock


cdef struct Sample:
    double started          # Clock.monotonic()
    double sum, max
    int64_t count


cdef class Stat:
    """Count, sum and maximum of values in the last few time windows; count and sum since the start (SampledStat)."""
    # ---- fixed at construction
    cdef Sample* samples
    cdef int kept                       # metrics.num.samples
    cdef double window                  # seconds of one window
    cdef kb_lock guard
    # ---- guarded by the GIL, or by `guard` where there is no GIL
    cdef int current
    cdef readonly double total          # the sum of all values since the start
    cdef readonly int64_t count         # the number of all values since the start

    # `now` is in seconds of Clock.monotonic(). Neither method allocates memory.
    cdef void record(self, double value, double now) noexcept
    cdef void count_in(self, double value, double now) noexcept
    cdef void forget_old(self, double now) noexcept


cdef class TopicStats:
    cdef readonly Stat records          # a value for each batch that is sent: its records
    cdef readonly Stat bytes, compression
    cdef readonly Stat retries, errors


cdef class NodeStats:
    cdef readonly Stat requests         # a value for each request: its bytes on the wire
    cdef readonly Stat responses
    cdef readonly Stat latency          # ms, of Produce requests


cdef class ProducerStats:
    # ---- fixed at construction
    cdef readonly int kept
    cdef readonly double window
    cdef readonly Stat batch_size, compression, queue_time      # a value for each batch sent: bytes, ratio, ms
    cdef readonly Stat record_size                              # a value for each batch: mean bytes of its records
    cdef readonly Stat records                                  # a value for each Produce request: its records
    cdef readonly Stat retries, errors, splits                  # a value for each batch: its records (splits: 1)
    cdef readonly Stat dropped                                  # records that made room for newer ones
    cdef readonly Stat latency, throttle                        # ms
    cdef readonly Stat requests, responses                      # bytes on the wire, of all APIs
    cdef readonly Stat opened, closed                           # 1 for each connection
    cdef readonly Stat io_waits, io_times                       # a value for each poll: ns that it waited, ns of work
    cdef readonly Stat waits                                    # a value for each wait for memory: seconds
    cdef readonly Stat exhausted                                # 1 for each send() that got no memory in time
    # ---- the Sender's thread adds entries
    cdef readonly dict topics           # name: TopicStats
    cdef readonly dict nodes            # id: NodeStats

    cdef Stat new_stat(self)
    cdef TopicStats topic(self, str name)
    cdef NodeStats node(self, int node_id)
    # The response to a Produce request came after `latency` seconds.
    cdef int answered(self, int node_id, double latency, double now) except -1
    # The nanoseconds that a poll waited for sockets, and the nanoseconds in which it wrote and read.
    cdef void polled(self, double waited, double worked, double now) noexcept
    # The bytes on the wire of a request or response, of any API.
    cpdef int request(self, int node_id, Py_ssize_t nbytes, double now) except -1
    cpdef int response(self, int node_id, Py_ssize_t nbytes, double now) except -1
