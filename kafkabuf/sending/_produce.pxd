# cython: language_level=3
"""Produce requests, which the Sender builds, and Produce responses, which it reads."""

from libc.stdint cimport int64_t

from kafkabuf.protocol._frame cimport Frame


cdef class PartitionResponse:
    """The part of a Produce response that concerns one batch."""
    cdef readonly int error_code            # 0: success
    cdef readonly int leader, leader_epoch  # -1: the broker names no leader
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time
    cdef readonly int64_t log_start_offset  # -1: the broker does not name it
    cdef readonly object message
    cdef readonly list record_errors        # (place in the batch, text or None) of each invalid record; None before v8


cdef class ProduceResponse:
    """The response to one Produce request."""
    cdef readonly dict partitions           # (topic, partition): PartitionResponse
    cdef readonly dict nodes                # node id: (host, port, rack), for leaders that the response names
    cdef readonly int throttle_ms           # the client sends nothing to this broker for this time (KIP-219)


# The frame counts as a reader of every batch. The caller calls `end_read` on each batch once the frame is written or
# dropped.
cpdef Frame build_request(int version, int correlation_id, bytes client_id, int acks, int timeout_ms, list batches,
                          bytes transactional_id=*)
# Whether a response says without an error that all `asked` partitions were taken. The poll call asks this.
cdef bint took_all(const unsigned char* response, Py_ssize_t size, int version, int asked) noexcept nogil
# Raises CorruptMessageError.
cpdef ProduceResponse parse_response(int version, bytes frame)
