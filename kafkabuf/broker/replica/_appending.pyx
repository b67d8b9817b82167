# cython: language_level=3
# distutils: extra_compile_args = -O1
"""The leader appends a producer's batch to its log (Kafka's ReplicaManager.appendToLocalLog).

Version 2 of Produce brings message sets of magic 0 and 1, later versions a single batch of magic 2. The leader checks
the batch and its records, writes its base offset and leader epoch into the header, and stores all other bytes as they
came, except for timestamps that the topic's message.timestamp.type replaces. The leader checks the batches of
idempotent producers against the partition's producer state (records/producer_state.py). rare_appends.py has the steps
that few batches need: message sets, and the question to the coordinator of a transaction.
"""

cimport cython
from libc.stdint cimport int64_t

from kafkabuf.broker.records._batch cimport BatchInfo, check_batch, stamp
from kafkabuf.broker.log._log cimport LogCore

from kafkabuf.broker.records import batch, records
from kafkabuf.broker.records.validator import RefusedRecordsError, check_records
from kafkabuf.broker.replica.rare_appends import ALL, append_message_set, join_transaction
from kafkabuf.errors import InvalidRequiredAcksError, InvalidTopicError, KafkaError, NotEnoughReplicasError

cdef enum:
    FIRST_OF_BATCHES = 3

cdef int all_in_sync = ALL


@cython.final
cdef class Appended:
    """The result of an append (Kafka's LogAppendResult)."""

    def __init__(
        self,
        leader=None,
        int64_t base_offset=-1,
        int64_t end=-1,
        int64_t append_time=-1,
        int64_t log_start_offset=-1,
        error=None,
        record_errors=(),
    ):
        self.leader = leader
        self.base_offset = base_offset
        self.end = end
        self.append_time = append_time
        self.log_start_offset = log_start_offset
        self.error = error
        self.record_errors = record_errors


def append_as_leader(node, topic, index, bytearray data not None, terms, Py_ssize_t most_named):
    """Appends a batch to the log of a partition that the node leads."""
    cdef int64_t start = -1
    cdef BatchInfo info
    cdef int version = terms.version
    try:
        leader = find_leader(node, topic, index, terms.acks)
        if version < FIRST_OF_BATCHES:
            base, end = append_message_set(node, leader, data, most_named)
            return Appended(leader, base, end, -1, leader.log.log_start_offset)
        info = check_batch(data, version, leader.partition.topic.limits)
        if info.producer_id >= 0 and info.transactional:
            join_transaction(node, leader, info, terms)
        start = leader.log.log_start_offset
        return append_batch(node, leader, info, data, most_named)
    except RefusedRecordsError as refused:
        outcome = Appended(log_start_offset=start, error=refused.error, record_errors=refused.records)
    except KafkaError as error:
        # The traceback would keep the frames of thousands of partitions.
        outcome = Appended(log_start_offset=start, error=error.with_traceback(None))
    return outcome


cdef object find_leader(node, topic, index, int acks):
    """The replica to append to. For acks=all enough replicas must be in sync."""
    if acks != all_in_sync and acks != 0 and acks != 1:
        raise InvalidRequiredAcksError(f"acks={acks}: -1, 0 and 1 are allowed")
    known = node.cluster.catalogue.topic(topic)
    if known.internal:
        raise InvalidTopicError(f"{known.name} is internal: only the cluster writes to it")
    leader = known.partition(index).led_by(node.node_id)
    if acks == all_in_sync and not leader.enough_in_sync:
        raise NotEnoughReplicasError(
            f"{len(leader.known.isr)} replicas are in sync, min.insync.replicas is {leader.partition.min_isr}"
        )
    return leader


cdef Appended append_batch(node, leader, BatchInfo info, bytearray data, Py_ssize_t most_named):
    cdef LogCore log = leader.log
    cdef object limits = leader.partition.topic.limits, cluster = node.cluster
    cdef int64_t now = cluster.clock.time_ms()
    cdef int64_t newest = check_records(data, info, limits, now, most_named)
    cdef bint log_append_time = limits.log_append_time
    cdef int64_t base
    cdef object epoch = leader.known.epoch
    if info.producer_id >= 0:
        producers = log.producers
        if not producers.is_next(info):
            first = producers.duplicate(info)
            if first is not None:
                base = first.base_offset
                return Appended(leader, base, base + info.count, first.max_timestamp, log.log_start_offset)
            producers.check(info)
    if cluster.config.verify_records:
        records.verify(memoryview(data), limits.max_message_bytes)
    stamp(data, log.end_offset, epoch)
    if newest != info.max_timestamp or info.append_time != log_append_time:
        batch.stamp_timestamps(data, newest, log_append_time)
        info.max_timestamp = newest
    base = log.append(data, info, epoch)
    return Appended(leader, base, base + info.count, newest if log_append_time else -1, log.log_start_offset)
