# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The outcome of each awaited record of compat/aiokafka/__init__.py: aiokafka's RecordMetadata and errors."""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int64_t

from kafkabuf.batches._batch cimport SUCCEEDED, Batch, RecordFuture, offset_in, timestamp_in

from kafkabuf.compat.aiokafka.errors import peer_error
from kafkabuf.compat.aiokafka.records import CREATE_TIME, LOG_APPEND_TIME, RecordMetadata, TopicPartition
from kafkabuf.errors import KafkaError

cdef object create_time = CREATE_TIME
cdef object log_append_time = LOG_APPEND_TIME
cdef tuple FIELDS = (
    "topic", "partition", "topic_partition", "offset", "timestamp", "timestamp_type", "log_start_offset",
)
if RecordMetadata._fields != FIELDS:
    raise ImportError(f"this aiokafka has a RecordMetadata of other fields than {FIELDS}: {RecordMetadata._fields}")

cdef extern from *:
    """
    static PyObject *kb_empty_tuple(PyObject *type, Py_ssize_t size) {
        return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, size);
    }
    """
    object empty_tuple "kb_empty_tuple"(object type, Py_ssize_t size)
    PyObject* item "PyTuple_GET_ITEM"(object named_tuple, Py_ssize_t index)


@cython.final
cdef class Outcomes:
    # The partition of a record before: the records of a batch share one tuple. It is no batch, which would hold memory.
    # Loops in several threads may read and write it.
    cdef object place

    def result(self, RecordFuture record not None):
        cdef Batch part = record.part()
        cdef int64_t offset
        if part.outcome != SUCCEEDED:
            try:
                record.result(0)
            except KafkaError as error:
                raise peer_error(error) from error.__cause__
            part = record.part()
        offset = offset_in(part, record)
        return None if offset < 0 else self.metadata(part, offset, timestamp_in(part, record))

    def exception(self, RecordFuture record not None):
        error = record.exception(0)
        return None if error is None else peer_error(error)

    cdef object metadata(self, Batch part, int64_t offset, int64_t timestamp):
        place = self.place
        if place is None or <object>item(place, 0) is not part.topic or part.partition != <object>item(place, 1):
            place = self.place = TopicPartition(part.topic, part.partition)
        # A call of the class would make a tuple of the arguments, and look at each.
        metadata = empty_tuple(RecordMetadata, len(FIELDS))
        fill(metadata, 0, part.topic)
        fill(metadata, 1, <object>item(place, 1))
        fill(metadata, 2, place)
        fill(metadata, 3, offset)
        fill(metadata, 4, timestamp)
        fill(metadata, 5, create_time if part.log_append_time < 0 else log_append_time)
        # kafkabuf does not keep the start of the log, which some responses name.
        fill(metadata, 6, None)
        return metadata


cdef inline void fill(object named_tuple, Py_ssize_t index, object value):
    Py_INCREF(value)
    PyTuple_SET_ITEM(named_tuple, index, value)
