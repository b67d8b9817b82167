# cython: language_level=3
"""What is counted, per batch and per request, never per record. Thread: the Sender's, but for what metrics.py reads."""

from libc.stdint cimport int64_t


cdef struct Sample:
    double started          # Clock.monotonic()
    double sum, max
    int64_t count


cdef class Stat:
    """Values of the last few windows of time, and of all time (Kafka's SampledStat)."""
    # ---- fixed at construction
    cdef Sample* samples
    cdef int kept                       # metrics.num.samples
    cdef double window                  # seconds of one
    # ---- guarded by the GIL
    cdef int current
    cdef readonly double total          # of all values ever
    cdef readonly int64_t count         # how many there were

    # `now` in seconds of Clock.monotonic(). Nothing is allocated.
    cdef void record(self, double value, double now) noexcept
    cdef void forget_old(self, double now) noexcept


cdef class TopicStats:
    cdef readonly Stat records          # a value for each batch sent: its records
    cdef readonly Stat bytes, compression
    cdef readonly Stat retries, errors


cdef class NodeStats:
    cdef readonly Stat requests         # a value for each: its bytes on the wire
    cdef readonly Stat responses
    cdef readonly Stat latency          # ms, of Produce requests


cdef class ProducerStats:
    # ---- fixed at construction
    cdef readonly int kept
    cdef readonly double window
    cdef readonly Stat batch_size, compression, queue_time      # a value for each batch sent: bytes, ratio, ms
    cdef readonly Stat record_size                              # a value for each batch: mean bytes of its records
    cdef readonly Stat records                                  # a value for each Produce request: its records
    cdef readonly Stat retries, errors, splits                  # a value for each batch: its records, or 1
    cdef readonly Stat latency, throttle                        # ms
    cdef readonly Stat requests, responses                      # bytes on the wire, of all APIs
    cdef readonly Stat opened, closed                           # 1 for each connection
    cdef readonly Stat io_waits, io_times                       # a value for each poll: ns that it waited, and worked
    cdef readonly Stat waits                                    # for memory, seconds
    cdef readonly Stat exhausted                                # 1 for each send that got none
    # ---- grown by the Sender's thread
    cdef readonly dict topics           # name: TopicStats
    cdef readonly dict nodes            # id: NodeStats

    cdef Stat new_stat(self)
    cdef TopicStats topic(self, str name)
    cdef NodeStats node(self, int node_id)
    # It was answered after so many seconds.
    cdef int answered(self, int node_id, double latency, double now) except -1
    # Nanoseconds that a poll waited for sockets, and that it wrote and read.
    cdef void polled(self, double waited, double worked, double now) noexcept
    # Bytes on the wire, of any API.
    cpdef int request(self, int node_id, Py_ssize_t nbytes, double now) except -1
    cpdef int response(self, int node_id, Py_ssize_t nbytes, double now) except -1
