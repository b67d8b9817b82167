# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# distutils: extra_compile_args = -O1
"""The result for one partition's records: a response to Produce may have thousands."""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memset

from kafkabuf.broker.wire._numbers cimport store_int64, store_uint32

cdef enum:
    # partition i32 | error i16 | base offset i64 | append time i64 | log start offset i64 | record errors |
    # message | tags
    SUCCESS = 33


@cython.final
cdef class PartitionResult:
    """See the .pyi."""

    def __init__(
        self,
        int32_t partition,
        int error_code=0,
        int64_t base_offset=-1,
        int64_t log_append_time_ms=-1,
        int64_t log_start_offset=-1,
        error_message=None,
        leader=None,
        record_errors=(),
    ):
        self.partition = partition
        self.error_code = error_code
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.error_message = error_message
        self.leader = leader
        self.record_errors = record_errors


def first_error(list results not None):
    """The first error code of the results; 0 without an error."""
    cdef PartitionResult result
    for result in results:
        if result.error_code:
            return result.error_code
    return 0


def put_successes(bytearray out not None, list results not None, Py_ssize_t first):
    """Writes the results from `first` on in a flexible version, up to the first that has an error. Returns its index,
    or the number of results."""
    cdef Py_ssize_t count = len(results), number = first, size = PyByteArray_GET_SIZE(out)
    cdef PartitionResult result
    cdef unsigned char* at
    while number < count and (<PartitionResult?> results[number]).error_code == 0:
        number += 1
    PyByteArray_Resize(out, size + SUCCESS * (number - first))
    at = <unsigned char*> PyByteArray_AS_STRING(out) + size
    for result in results[first:number]:
        store_uint32(at, <uint32_t> result.partition)
        memset(at + 4, 0, 2)
        store_int64(at + 6, result.base_offset)
        store_int64(at + 14, result.log_append_time_ms)
        store_int64(at + 22, result.log_start_offset)
        # No record errors, no message, no tags.
        at[30], at[31], at[32] = 1, 0, 0
        at += SUCCESS
    return number
