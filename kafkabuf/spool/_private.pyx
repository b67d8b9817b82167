# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Takes a mapped file away from a forked child, which goes on with a copy of its own at the same addresses."""

from libc.errno cimport errno
from posix.mman cimport MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap

from kafkabuf.memory._view cimport items_of, length_of, view_of

import os


def map_privately(memory, int descriptor):
    """Have no store to `memory`, which is all of the mapped file, reach the file any more. Raises OSError."""
    view = view_of(memory, 1, True)
    cdef void* begin = items_of(view)
    cdef size_t size = <size_t>length_of(view)
    cdef int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE
    if mmap(begin, size, PROT_READ | PROT_WRITE, flags, descriptor, 0) == MAP_FAILED:
        raise OSError(errno, os.strerror(errno))
