# cython: language_level=3
"""The partition that a record's key selects: Java's rule, or a rule of librdkafka (`partitioner.class`).

A module that selects partitions calls kb_crc32_init once, when Python imports the module.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint32_t

from kafkabuf.wire._wire cimport Field, kb_crc32, murmur2, partition_of_key, payload


cdef enum KeyRule:
    MURMUR2_RANDOM      # Java's: murmur2; a null key selects no partition
    IGNORE_KEYS         # partitioner.ignore.keys: no key selects a partition
    MURMUR2             # a null key counts as an empty key
    CONSISTENT          # CRC-32; a null key counts as an empty key
    CONSISTENT_RANDOM   # CRC-32; null and empty keys select no partition
    FNV1A               # FNV-1a; a null key counts as an empty key
    FNV1A_RANDOM        # FNV-1a; a null key selects no partition


# The key's partition; -1: the key selects no partition, and the record goes to the sticky partition.
cdef inline int32_t partition_by_key(KeyRule rule, const Field* key, int32_t partitions) noexcept nogil:
    if rule == MURMUR2_RANDOM:
        return partition_of_key(key.data, <size_t>key.size, partitions) if key.size >= 0 else -1
    if rule == IGNORE_KEYS:
        return -1
    return partition_by_librdkafka(rule, key, partitions)


cdef inline int32_t partition_by_librdkafka(KeyRule rule, const Field* key, int32_t partitions) noexcept nogil:
    cdef size_t size = <size_t>payload(key)
    if rule == MURMUR2:
        return partition_of_key(key.data, size, partitions)
    if rule == CONSISTENT or rule == CONSISTENT_RANDOM:
        if rule == CONSISTENT_RANDOM and size == 0:
            return -1
        return <int32_t>(kb_crc32(0, key.data, size) % <uint32_t>partitions)
    if rule == FNV1A_RANDOM and key.size < 0:
        return -1
    return <int32_t>(fnv1a(key) % <uint32_t>partitions)


# FNV-1a of 32 bits, read as a signed number; the result is the number without its sign, as Sarama computes it.
cdef inline uint32_t fnv1a(const Field* key) noexcept nogil:
    cdef uint32_t h = 0x811C9DC5
    cdef int64_t i
    for i in range(payload(key)):
        h = (h ^ key.data[i]) * <uint32_t>0x01000193
    return 0 - h if h >> 31 else h
