# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The rules of _partition.pxd under the names that `partitioner.class` takes."""

from libc.stdint cimport int32_t

from kafkabuf.memory._held cimport field_of, view_or_none
from kafkabuf.wire._wire cimport Field, kb_crc32_init

kb_crc32_init()

KEY_RULES = {
    "murmur2_random": MURMUR2_RANDOM,
    "murmur2": MURMUR2,
    "consistent": CONSISTENT,
    "consistent_random": CONSISTENT_RANDOM,
    "fnv1a": FNV1A,
    "fnv1a_random": FNV1A_RANDOM,
}
KEYS_IGNORED = IGNORE_KEYS


def select_partition(str rule not None, key, int32_t partitions):
    """The partition of a key (None: null) under the rule of that name, or -1 if the key selects no partition."""
    cdef Field field
    view = view_or_none(key)
    field = field_of(view)
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, found {partitions}")
    return partition_by_key(<KeyRule><int>KEY_RULES[rule], &field, partitions)
