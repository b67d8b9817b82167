# cython: language_level=3
"""send() in the thread of an event loop: one call from the coroutine to the bytes in a slab."""

from libc.stdint cimport int64_t

from kafkabuf.aio._futures cimport BatchEnds
from kafkabuf.append._producer cimport ProducerCore


cdef class LoopCore(ProducerCore):
    # All fields belong to the loop's thread.
    cdef object loop
    cdef BatchEnds ends
    cdef dict lines                     # by topic, if a record of the topic waits
    cdef bint users_objects             # serializers, a partitioner or interceptors prepare each record first
    cdef readonly int64_t sent          # calls of queue() in the loop
