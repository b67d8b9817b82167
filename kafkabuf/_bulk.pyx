# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""send_arrow: rows of Arrow data into batches, with the GIL only where a batch begins or ends."""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memset

import numpy as np

from kafkabuf._accumulator cimport PartitionQueue, TopicQueues
from kafkabuf._arrow cimport (
    ArrowArray, ArrowArrayStream, ArrowSchema, Columns, bind_columns, bytes_at, int32_at, is_null, millis_at,
    offset_at,
)
from kafkabuf._batch cimport Batch
from kafkabuf._producer cimport ProducerCore
from kafkabuf._records cimport append, has_room, size_upper_bound
from kafkabuf._wire cimport Field, field_size, partition_of_key

from kafkabuf.errors import (
    InvalidPartitionsError, InvalidTimestampError, InvalidTopicError, KafkaError, RecordTooLargeError,
    SerializationError,
)
from kafkabuf.report import ArrowReport, RowPlaces


@cython.final
cdef class Segment:
    """Neighbouring records of one batch that one send_arrow put there."""


@cython.final
cdef class Walker:
    """The way of one send_arrow call through its rows."""

    def __cinit__(self, ProducerCore producer, TopicQueues fixed_topic):
        self.producer = producer
        self.accumulator = producer.accumulator
        self.magic = producer.accumulator.magic
        self.max_request_size = producer.max_request_size
        self.ignore_keys = producer.ignore_keys
        self.segments = []
        self.claimed = {}
        if fixed_topic is not None:
            self.use_topic(fixed_topic)

    def __dealloc__(self):
        free(self.cursors)
        free(self.header_fields)

    # ---- without the GIL ---------------------------------------------------------------------------------------------

    cdef Stop walk(self, int64_t* row) noexcept nogil:
        """Append rows from `row[0]` on until one needs Python; `row[0]` is then that row."""
        cdef Stop stop
        cdef Cursor* cursor
        while row[0] < self.columns.rows:
            stop = self.read_row(row[0])
            if stop != END:
                return stop
            cursor = &self.cursors[self.partition]
            if cursor.builder == NULL or not has_room(cursor.builder, &self.record):
                return NO_ROOM
            self.row_segment[row[0]] = cursor.segment
            self.row_index[row[0]] = cursor.builder.count
            self.row_timestamp[row[0]] = self.record.timestamp
            append(cursor.builder, &self.record)
            row[0] += 1
        return END

    cdef Stop read_row(self, int64_t row) noexcept nogil:
        cdef Columns* c = self.columns
        cdef Record* r = &self.record
        cdef Field topic
        cdef int64_t headers_size
        if self.name != NULL or self.cursors == NULL:
            topic = bytes_at(&c.topic, row)
            if (self.name == NULL or topic.size != self.name_size
                    or memcmp(topic.data, self.name, <size_t>topic.size) != 0):
                return NEW_TOPIC
        r.key = bytes_at(&c.key, row)
        r.value = bytes_at(&c.value, row)
        r.timestamp = self.now
        if c.timestamp.present and not is_null(&c.timestamp, row):
            r.timestamp = millis_at(&c.timestamp, row)
            if r.timestamp < 0:
                return BAD_TIMESTAMP
        r.headers_size = r.header_count = 0
        if c.headers.present and not is_null(&c.headers, row):
            headers_size = self.read_headers(row)
            if headers_size < 0:
                return NO_MEMORY if headers_size == -1 else BAD_HEADERS
            r.headers = self.header_fields
            r.headers_size = headers_size
            if r.header_count and self.magic < 2:
                return BAD_HEADERS
        if size_upper_bound(self.magic, r) > self.max_request_size:
            return TOO_LARGE
        return self.read_partition(row)

    cdef Stop read_partition(self, int64_t row) noexcept nogil:
        cdef Columns* c = self.columns
        if c.partition.present and not is_null(&c.partition, row):
            self.partition = int32_at(&c.partition, row)
            if self.partition < 0 or self.partition >= self.partitions:
                return BAD_PARTITION
        elif self.record.key.size >= 0 and not self.ignore_keys:
            self.partition = partition_of_key(
                self.record.key.data, <size_t>self.record.key.size, self.partitions)
        else:
            self.partition = self.sticky
        return END

    cdef int64_t read_headers(self, int64_t row) noexcept nogil:
        """Point the scratch at the row's headers; their encoded bytes; -1 without memory, -2 for one without key."""
        cdef Columns* c = self.columns
        cdef int64_t item, begin = offset_at(&c.headers, row), end = max(begin, offset_at(&c.headers, row + 1))
        cdef int64_t size = 0
        cdef Field* fields = self.header_fields
        if end - begin > self.header_room:
            fields = <Field*>realloc(fields, <size_t>(4 * (end - begin)) * sizeof(Field))
            if fields == NULL:
                return -1
            self.header_fields = fields
            self.header_room = 2 * (end - begin)
        for item in range(begin, end):
            fields[0] = bytes_at(&c.header_key, item)
            fields[1] = bytes_at(&c.header_value, item)
            if fields[0].size < 0:
                return -2
            size += field_size(&fields[0]) + field_size(&fields[1])
            fields += 2
        self.record.header_count = <int32_t>(end - begin)
        return size

    # ---- with it -----------------------------------------------------------------------------------------------------

    cdef int append_rows(self, Columns* columns) except -1:
        """All rows of `columns`, or an error with what was claimed given back."""
        cdef int64_t row = 0
        cdef Stop stop
        self.columns = columns
        self.now = self.producer.now_ms()
        try:
            while True:
                with nogil:
                    stop = self.walk(&row)
                if stop == END:
                    return 0
                self.serve(stop, row)
        except KafkaError as error:
            error.rows_queued = row
            raise
        finally:
            self.give_back_all()

    cdef int serve(self, Stop stop, int64_t row) except -1:
        if stop == NEW_TOPIC:
            self.enter_topic(row)
        elif stop == NO_ROOM:
            self.make_room()
        elif stop == BAD_PARTITION and self.partition >= self.partitions:
            # It may be new: ask once, with nothing claimed, since asking waits.
            self.give_back_all()
            self.producer.queue_of_partition(self.topic, self.partition)
            self.use_topic(self.topic)
        else:
            self.refuse(stop, row)
        return 0

    cdef int refuse(self, Stop stop, int64_t row) except -1:
        if stop == BAD_PARTITION:
            raise InvalidPartitionsError(f"row {row}: partition {self.partition} is negative")
        if stop == BAD_TIMESTAMP:
            raise InvalidTimestampError(f"row {row}: a record's timestamp lies between 0 (1970) and 2^63 - 1 ms")
        if stop == BAD_HEADERS and self.magic >= 2:
            raise SerializationError(f"row {row}: a header has no key, and Kafka takes none without")
        if stop == BAD_HEADERS:
            raise SerializationError(f"row {row}: record.magic is 1, and that format has no headers")
        if stop == TOO_LARGE:
            raise RecordTooLargeError(
                f"row {row} needs up to {size_upper_bound(self.magic, &self.record)} bytes, more than max.request.size "
                f"({self.max_request_size}) allows")
        raise MemoryError(f"row {row}: no memory for its headers")

    cdef int enter_topic(self, int64_t row) except -1:
        cdef Field name = bytes_at(&self.columns.topic, row)
        if name.size < 0:
            raise InvalidTopicError(f"row {row}: no topic: give the topic argument, or a topic column without nulls")
        self.give_back_all()
        self.use_topic(self.producer.topic_of((<const char*>name.data)[:name.size].decode("utf-8", "replace")))
        self.topic_bytes = self.topic.name.encode()
        self.name = self.topic_bytes
        self.name_size = len(self.topic_bytes)
        return 0

    cdef int use_topic(self, TopicQueues topic) except -1:
        cdef Cursor* cursors = <Cursor*>calloc(max(topic.partitions, 1), sizeof(Cursor))
        if cursors == NULL:
            raise MemoryError()
        free(self.cursors)
        self.cursors = cursors
        self.topic = topic
        self.partitions = topic.partitions
        self.sticky = topic.sticky.partition
        return 0

    cdef int make_room(self) except -1:
        """Claim a batch with room for the record, in the partition it is bound for."""
        cdef PartitionQueue queue = self.topic.queues[self.partition]
        # Made first: an allocation may run another thread, and none may come between finding a batch and claiming it.
        cdef Segment segment = Segment()
        cdef Py_ssize_t n_slabs, slab
        if self.cursors[self.partition].builder != NULL:
            self.give_back(self.claimed.pop(self.partition))
            queue.seal()
            self.accumulator.wakeup()
            if self.partition == self.sticky:
                # Read the row again: one without key now goes elsewhere.
                self.topic.next_sticky()
                self.sticky = self.topic.sticky.partition
                return 0
        self.producer.check_open()
        if queue.open is None or not has_room(&queue.open.builder, &self.record):
            n_slabs = self.accumulator.pool.slabs_for(
                max(self.accumulator.pool.slab_size, size_upper_bound(self.magic, &self.record)))
            slab = self.accumulator.pool.try_allocate(n_slabs)
            if slab >= 0:
                self.accumulator.new_batch(queue, slab, n_slabs)
            else:
                self.give_back_all()
                self.accumulator.open_batch(
                    queue, &self.record, self.accumulator.clock.monotonic() + self.producer.max_block)
        return self.claim(queue, segment)

    cdef int claim(self, PartitionQueue queue, Segment segment) except -1:
        segment.queue = queue
        segment.batch = queue.open
        segment.first_index = queue.open.builder.count
        segment.bytes = -<int64_t>queue.open.builder.position
        self.accumulator.claim(queue)
        self.claimed[queue.partition] = segment
        self.cursors[queue.partition].builder = &segment.batch.builder
        self.cursors[queue.partition].segment = <int32_t>len(self.segments)
        self.segments.append(segment)
        return 0

    cdef int give_back(self, Segment segment) except -1:
        """The batch is everybody's again; what was put into it since the claim is the segment."""
        cdef Batch batch = segment.batch
        segment.rows = batch.builder.count - segment.first_index
        segment.bytes += batch.builder.position
        self.cursors[batch.partition].builder = NULL
        self.accumulator.unclaim(segment.queue, batch)
        return 0

    cdef int give_back_all(self) except -1:
        # All of them before anything that may raise or wait: what stays claimed is never sent.
        if self.claimed:
            while self.claimed:
                self.give_back(self.claimed.popitem()[1])
            self.accumulator.wakeup()
        return 0

    # ---- the data ----------------------------------------------------------------------------------------------------

    cdef append_array(self, ArrowSchema* schema, ArrowArray* array):
        """Append the rows of one exported array; where each went, as RowPlaces."""
        cdef Columns columns
        cdef int32_t[::1] segment, index
        cdef int64_t[::1] timestamp
        bind_columns(&columns, schema, array)
        if self.topic is None and not columns.topic.present:
            raise InvalidTopicError("no topic: give the topic argument, or a 'topic' column")
        places = RowPlaces(*(np.empty(columns.rows, dtype) for dtype in (np.int32, np.int32, np.int64)))
        if columns.rows:
            segment, index, timestamp = places
            self.row_segment, self.row_index, self.row_timestamp = &segment[0], &index[0], &timestamp[0]
            self.append_rows(&columns)
        return places


def append_arrow(ProducerCore producer, data, topic):
    """See KafkaProducer.send_arrow."""
    producer.check_open()
    cdef Walker walker = Walker(producer, None if topic is None else producer.topic_of(topic))
    cdef list places = []
    try:
        if hasattr(data, "__arrow_c_array__"):
            schema, array = data.__arrow_c_array__()
            places.append(walker.append_array(
                <ArrowSchema*>PyCapsule_GetPointer(schema, "arrow_schema"),
                <ArrowArray*>PyCapsule_GetPointer(array, "arrow_array")))
        elif hasattr(data, "__arrow_c_stream__"):
            append_stream(walker, data.__arrow_c_stream__(), places)
        else:
            raise SerializationError(
                f"send_arrow takes data with the Arrow PyCapsule interface (a pyarrow RecordBatch or Table, a pandas "
                f"DataFrame), found {type(data).__name__}")
    except KafkaError as error:
        error.rows_queued += sum(len(chunk.segment) for chunk in places)
        raise
    finally:
        producer.records_sent += sum([(<Segment>segment).rows for segment in walker.segments])
    return ArrowReport(walker.segments, places, producer.clock)


cdef append_stream(Walker walker, capsule, list places):
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    cdef ArrowSchema schema
    cdef ArrowArray array
    memset(&schema, 0, sizeof(schema))
    require(stream, stream.get_schema(stream, &schema))
    try:
        while True:
            memset(&array, 0, sizeof(array))
            require(stream, stream.get_next(stream, &array))
            if array.release == NULL:
                return
            try:
                places.append(walker.append_array(&schema, &array))
            finally:
                array.release(&array)
    finally:
        schema.release(&schema)


cdef int require(ArrowArrayStream* stream, int status) except -1:
    cdef const char* text
    if status != 0:
        text = stream.get_last_error(stream)
        reason = text.decode("utf-8", "replace") if text != NULL else f"error {status}"
        raise SerializationError(f"the Arrow stream failed: {reason}")
    return 0
