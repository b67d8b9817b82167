# cython: language_level=3
# distutils: extra_compile_args = -O1
"""Batches in memory: the append, and what each append asks."""

from libc.stdint cimport int64_t

from kafkabuf.broker.storage._stored cimport StoredBatch


cdef class MemoryCore:
    """MemorySegments (memory.py) without what an append does not need."""

    def __cinit__(self):
        self._batches = []
        self._positions = []

    @property
    def size(self):
        return self._appended - <int64_t> self._positions[self._first] if self._first < len(self._positions) else 0

    @property
    def recovery_point(self):
        return self.end_offset

    def append(self, StoredBatch batch not None):
        self._batches.append(batch)
        self._positions.append(self._appended)
        self._appended += len(batch.data)
        self.end_offset = batch.last_offset + 1
