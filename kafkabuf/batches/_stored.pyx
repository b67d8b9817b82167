# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Hands out the entries of a file's tables. _stored.pxd has the layouts."""

cimport cython
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from uuid import UUID

from kafkabuf._records cimport records_start
from kafkabuf.memory._view cimport items_of, length_of, view_of
from kafkabuf.wire._wire cimport kb_crc32c, kb_crc32c_init

from kafkabuf.errors import KafkaError

cdef extern from "memory/_pages.h" nogil:
    void kb_forget_pages(unsigned char* memory, size_t size)

kb_crc32c_init()

SIZE_OF_TOPIC = sizeof(StoredTopic)
SIZE_OF_PARTITION = sizeof(StoredPartition)
SIZE_OF_BATCH = sizeof(StoredBatch)
SIZE_OF_SPLIT = sizeof(StoredSplit)
FOR_PARTS = KEPT_FOR_PARTS


cdef uint32_t seal_of(const StoredBatch* stored, const uint8_t* records) noexcept nogil:
    cdef const RecordsBuilder* b = &stored.builder
    cdef int64_t[14] fields
    fields[:] = [stored.run, stored.offset, stored.number, stored.first, stored.transactional, stored.partition,
                 stored.created_ms, b.magic, b.codec, <int64_t>b.position, b.count, b.base_timestamp,
                 b.first_timestamp, b.max_timestamp]
    cdef uint32_t seal = kb_crc32c(0, <const uint8_t*>fields, sizeof(fields))
    return kb_crc32c(seal, records, b.position - records_start(b)) | 1


cdef uint32_t life_of(const StoredBatch* stored) noexcept nogil:
    cdef int64_t[5] fields
    fields[:] = [stored.number, stored.transactional, stored.partition, stored.created_ms, stored.builder.magic]
    return kb_crc32c(0, <const uint8_t*>fields, sizeof(fields)) | 1


cdef uint32_t seal_of_partition(const StoredPartition* entry) noexcept nogil:
    cdef int32_t[2] fields
    fields[:] = [entry.topic, entry.partition]
    return kb_crc32c(0, <const uint8_t*>fields, sizeof(fields))


cdef uint32_t seal_of_topic(const StoredTopic* entry) noexcept nogil:
    return kb_crc32c(0, <const uint8_t*>entry.name, <size_t>entry.name_size)


@cython.final
cdef class StoredTables:
    """The tables in writable buffers. An entry that is not used, or not live, is free.

    `arena` and `scratch` lie in one piece of memory with the tables: in `mapping`, if that is the shared mapping of a
    file. A split that a kill has cut off is carried out.
    Raises MemoryError without memory for the lists of free entries.
    """

    def __cinit__(self, topics, partitions, batches, split, arena, scratch, mapping=None):
        cdef Py_ssize_t place
        topics, partitions, batches = view_of(topics, 1, True), view_of(partitions, 1, True), view_of(batches, 1, True)
        split, arena, scratch = view_of(split, 1, True), view_of(arena, 1, True), view_of(scratch, 1, True)
        self.memory = (topics, partitions, batches, split, arena, scratch)
        self.split = <StoredSplit*>items_of(split)
        self.arena = <uint8_t*>items_of(arena)
        self.scratch = <uint8_t*>items_of(scratch)
        self.scratch_size = length_of(scratch) // 2
        self.topics = <StoredTopic*>items_of(topics)
        self.partitions = <StoredPartition*>items_of(partitions)
        self.batches = <StoredBatch*>items_of(batches)
        self.topic_count = length_of(topics) // <Py_ssize_t>sizeof(StoredTopic)
        self.partition_count = length_of(partitions) // <Py_ssize_t>sizeof(StoredPartition)
        self.batch_count = length_of(batches) // <Py_ssize_t>sizeof(StoredBatch)
        self.fewest_free = length_of(arena)
        if mapping is not None:
            mapping = view_of(mapping, 1, True)
            self.mapping = <uint8_t*>items_of(mapping)
            self.mapping_size = length_of(mapping)
        self.free = <int32_t*>malloc(max(1, self.batch_count) * sizeof(int32_t))
        if self.free == NULL:
            raise MemoryError(f"no memory for the bookkeeping of {self.batch_count} batches")
        self.finish_split(length_of(arena))
        for place in range(self.batch_count - 1, -1, -1):
            if not self.batches[place].live:
                self.free[self.free_count] = <int32_t>place
                self.free_count += 1
            self.after_entry(place)
        self.topic_places = {self.name_of(place): place for place in range(self.topic_count)
                             if self.knows_topic(place)}
        self.partition_places = {(self.partitions[place].topic, self.partitions[place].partition): place
                                 for place in range(self.partition_count) if self.knows_partition(place)}

    def __dealloc__(self):
        free(self.free)

    cdef void forget_pages(self) noexcept nogil:
        if self.mapping != NULL:
            kb_forget_pages(self.mapping, self.mapping_size)

    cdef StoredBatch* take(self) noexcept nogil:
        return self.take_for_part() if self.free_count > KEPT_FOR_PARTS else NULL

    cdef StoredBatch* take_for_part(self) noexcept nogil:
        if self.free_count == 0:
            return NULL
        self.free_count -= 1
        return &self.batches[self.free[self.free_count]]

    cdef void give_back(self, StoredBatch* entry) noexcept nogil:
        unshadow(entry)
        entry.live = 0
        kb_in_order()
        unseal(entry)
        self.free[self.free_count] = <int32_t>(entry - self.batches)
        self.free_count += 1

    @property
    def live_count(self):
        """The number of entries that hold a batch."""
        return self.batch_count - self.free_count

    # ---- a split -----------------------------------------------------------------------------------------------------

    cdef void divide(
        self, StoredBatch* whole, StoredBatch* entry, const StoredBatch* front, const StoredBatch* rest
    ) noexcept nogil:
        cdef const RecordsBuilder* b = &rest.builder
        self.split.front = front[0]
        self.split.rest = rest[0]
        self.split.front_place = <int32_t>(entry - self.batches)
        self.split.rest_place = <int32_t>(whole - self.batches)
        self.split.at = b.base + records_start(b) - self.arena
        self.split.size = <int64_t>(b.position - records_start(b))
        kb_in_order()
        self.split.decided = self.split_checksum()
        kb_in_order()
        self.carry_out_split()

    cdef uint32_t split_checksum(self) noexcept nogil:
        cdef size_t fields = <size_t>(<uint8_t*>&self.split.decided - <uint8_t*>self.split)
        cdef uint32_t checksum = kb_crc32c(0, <uint8_t*>self.split, fields)
        return kb_crc32c(checksum, self.scratch, <size_t>self.split.size) | 1

    cdef void carry_out_split(self) noexcept nogil:
        memcpy(self.arena + self.split.at, self.scratch, <size_t>self.split.size)
        self.batches[self.split.front_place] = self.split.front
        self.batches[self.split.rest_place] = self.split.rest
        kb_in_order()
        self.split.decided = 0
        kb_in_order()

    cdef void finish_split(self, Py_ssize_t arena_size) noexcept:
        """A kill came between the decision and its end: carry the split out. It may have been carried out in part."""
        cdef StoredSplit* split = self.split
        if split.decided == 0:
            return
        if (0 <= split.size <= self.scratch_size and 0 <= split.at <= arena_size - split.size
                and 0 <= split.front_place < self.batch_count and 0 <= split.rest_place < self.batch_count
                and split.decided == self.split_checksum()):
            self.carry_out_split()
        split.decided = 0

    # ---- topics and partitions ---------------------------------------------------------------------------------------

    cdef bint knows_topic(self, Py_ssize_t place) noexcept:
        cdef StoredTopic* entry = &self.topics[place]
        return 0 < entry.name_size <= LONGEST_NAME and entry.seal == seal_of_topic(entry)

    cdef bint knows_partition(self, Py_ssize_t place) noexcept:
        cdef StoredPartition* entry = &self.partitions[place]
        return entry.used and entry.seal == seal_of_partition(entry)

    def name_of(self, Py_ssize_t place):
        """The name of the topic in an entry that is used."""
        cdef StoredTopic* entry = &self.topics[place]
        return entry.name[:entry.name_size].decode("ascii", "backslashreplace")

    def note_topic(self, str name not None, int32_t partitions, topic_id=None):
        """Remember a topic's id and number of partitions, so that the next process needs no broker to queue records.

        Raises KafkaError if the table is full.
        """
        cdef StoredTopic* entry = &self.topics[self.topic_place(name)]
        cdef bytes identity = b"" if topic_id is None else topic_id.bytes
        memcpy(entry.topic_id, <const char*>identity, len(identity))
        entry.partitions = partitions

    def noted_topics(self):
        """(name, number of partitions, topic id or None) of each topic."""
        noted = []
        for name, place in self.topic_places.items():
            if 0 < self.topics[place].partitions <= MOST_PARTITIONS:
                noted.append((name, self.topics[place].partitions, self.topic_id_of(place)))
        return noted

    def remembered(self, Py_ssize_t place):
        """(producer id, epoch, last acknowledged sequence, its offset, next sequence) of a partition's entry."""
        cdef StoredPartition* entry = &self.partitions[place]
        return (entry.producer_id, entry.producer_epoch, entry.last_acked, entry.last_acked_offset,
                entry.next_sequence)

    def begin_numbers(self, Py_ssize_t place, int64_t producer_id):
        """A partition's entry that has given no number yet takes an id, under which it has given none."""
        cdef StoredPartition* entry = &self.partitions[place]
        entry.last_acked = -1
        entry.next_sequence = entry.producer_epoch = 0
        kb_in_order()
        entry.producer_id = producer_id

    def topic_id_of(self, Py_ssize_t place):
        identity = bytes((<const char*>self.topics[place].topic_id)[:16])
        return UUID(bytes=identity) if any(identity) else None

    def topic_place(self, str name not None):
        """The place of a topic's entry, which is made if the topic has none."""
        cdef StoredTopic* entry
        cdef bytes encoded
        cdef Py_ssize_t place
        if name in self.topic_places:
            return self.topic_places[name]
        encoded = name.encode("ascii")
        for place in range(self.topic_count):
            entry = &self.topics[place]
            if entry.name_size == 0:
                memset(entry, 0, sizeof(StoredTopic))
                memcpy(entry.name, <const char*>encoded, len(encoded))
                entry.seal = kb_crc32c(0, <const uint8_t*><const char*>encoded, len(encoded))
                kb_in_order()
                entry.name_size = <int32_t>len(encoded)
                self.topic_places[name] = place
                return place
        raise KafkaError(f"the file of kafkabuf.buffer.path holds {self.topic_count} topics, and no more: {name!r} "
                         f"does not fit. Use another file for other topics")

    cdef StoredPartition* enter(self, str topic, int32_t partition) except NULL:
        cdef StoredPartition* entry
        cdef Py_ssize_t topic_place = self.topic_place(topic), place
        known = self.partition_places.get((topic_place, partition))
        if known is not None:
            return &self.partitions[<Py_ssize_t>known]
        for place in range(len(self.partition_places), self.partition_count):
            entry = &self.partitions[place]
            if not entry.used:
                entry.topic = <int32_t>topic_place
                entry.partition = partition
                entry.last_acked_offset = entry.producer_id = -1
                entry.last_acked = entry.producer_epoch = -1
                entry.next_sequence = 0
                entry.seal = seal_of_partition(entry)
                kb_in_order()
                entry.used = True
                self.partition_places[topic_place, partition] = place
                return entry
        raise KafkaError(f"the file of kafkabuf.buffer.path holds {self.partition_count} partitions, and no more: "
                         f"{topic}-{partition} does not fit. Use another file for other topics")
