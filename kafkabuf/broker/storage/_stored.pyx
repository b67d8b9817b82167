# cython: language_level=3
# distutils: extra_compile_args = -O1
"""A batch in a log. A cluster may hold a million of them."""

cimport cython


@cython.final
@cython.no_gc       # `data` refers to no StoredBatch: the collector need not look at either
cdef class StoredBatch:
    """A batch of magic 2, or a set of messages of magic 0 and 1. `data` is never changed once it is stored."""

    def __init__(
        self, int64_t base_offset, int64_t last_offset, int64_t max_timestamp, int leader_epoch, data not None
    ):
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.leader_epoch = leader_epoch
        self.data = data
