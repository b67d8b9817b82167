# cython: language_level=3
"""Produce requests and answers, as the Sender makes and reads them."""

from libc.stdint cimport int64_t

from kafkabuf.protocol._frame cimport Frame


cdef class PartitionAnswer:
    """What the broker says of one batch; `error_code` 0 is success. `leader` and its epoch: -1 where it names none."""
    cdef readonly int error_code
    cdef readonly int leader, leader_epoch
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time
    cdef readonly int64_t log_start_offset      # -1 where the broker does not know it, or does not tell
    cdef readonly object message
    cdef readonly list record_errors        # (place in the batch, text or None) of each record at fault; None before v8


cdef class ProduceAnswer:
    """What the broker says of one request."""
    cdef readonly dict partitions           # (topic, partition): PartitionAnswer
    cdef readonly dict nodes                # node id: (host, port, rack), for leaders that the answer names
    cdef readonly int throttle_ms           # the client is to leave this broker alone for so long (KIP-219)


# Every batch gets a reader; who gives the frame away calls `end_read` on each once it is written or dropped.
cpdef Frame build_request(int version, int correlation_id, bytes client_id, int acks, int timeout_ms, list batches,
                          bytes transactional_id=*)
# Raises CorruptMessageError.
cpdef ProduceAnswer parse_response(int version, bytes frame)
