# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encodes Arrow rows as records. Arrow data comes as one array or as a stream of arrays."""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memset

from kafkabuf._held cimport MOST_HEADERS
from kafkabuf._records cimport Record, attach_none
from kafkabuf._sealed cimport seal
from kafkabuf._wire cimport Field, field_size, kb_crc32_init
from kafkabuf.append._arrow cimport (
    ABSENT, ArrowArray, ArrowArrayStream, ArrowSchema, Columns, bind_columns, bytes_at, int32_at, is_null, millis_at,
    offset_at,
)
from kafkabuf.append._bulk cimport (
    BAD_HEADERS, BAD_PARTITION, BAD_TIMESTAMP, END, NEW_TOPIC, NO_MEMORY, RAISED, Stop, Walker, append_record,
    choose_partition,
)
from kafkabuf.append._producer cimport ProducerCore

from kafkabuf.errors import InvalidTopicError, KafkaError, SerializationError

kb_crc32_init()


@cython.final
cdef class ArrowWalker(Walker):
    """Visits the rows of one send_arrow call and encodes them."""

    def __dealloc__(self):
        free(self.header_fields)

    # ---- without the GIL ---------------------------------------------------------------------------------------------

    cdef Stop walk(self) except RAISED:
        cdef Stop stop
        with nogil:
            stop = self.walk_rows()
        return stop

    cdef Stop walk_rows(self) noexcept nogil:
        cdef Stop stop
        if self.only_values:
            return self.walk_values()
        while self.row < self.columns.rows:
            stop = self.read_row()
            if stop == END:
                stop = append_record(self)
            if stop != END:
                return stop
        return END

    cdef Stop walk_values(self) noexcept nogil:
        """As `walk_rows`, for rows that differ in their value only."""
        cdef Record* r = &self.record
        cdef Stop stop = END
        r.key.size = -1
        r.timestamp = self.now
        attach_none(r)
        choose_partition(self, -1)
        while stop == END and self.row < self.columns.rows:
            r.value = bytes_at(&self.columns.value, self.row)
            stop = append_record(self)
        return stop

    cdef Stop read_row(self) noexcept nogil:
        cdef Columns* c = self.columns
        cdef Record* r = &self.record
        cdef Field topic
        cdef int64_t headers_size, row = self.row
        cdef int32_t partition = -1
        if self.name != NULL or self.cursors == NULL:
            topic = bytes_at(&c.topic, row)
            if (self.name == NULL or topic.size != self.name_size
                    or memcmp(topic.data, self.name, <size_t>topic.size) != 0):
                return NEW_TOPIC
        r.key = bytes_at(&c.key, row)
        r.value = bytes_at(&c.value, row)
        r.timestamp = self.now
        if c.timestamp.layout != ABSENT and not is_null(&c.timestamp, row):
            r.timestamp = millis_at(&c.timestamp, row)
            if r.timestamp < 0:
                return BAD_TIMESTAMP
        attach_none(r)
        if c.headers.layout != ABSENT and not is_null(&c.headers, row):
            headers_size = self.read_headers()
            if headers_size < 0:
                return NO_MEMORY if headers_size == -1 else BAD_HEADERS
            r.headers = self.header_fields
            r.headers_size = headers_size
            if r.header_count and self.magic < 2:
                return BAD_HEADERS
        if c.partition.layout != ABSENT and not is_null(&c.partition, row):
            partition = int32_at(&c.partition, row)
            if partition < 0 or partition >= self.partitions:
                self.partition = partition
                return BAD_PARTITION
        choose_partition(self, partition)
        return END

    cdef int64_t read_headers(self) noexcept nogil:
        """Point header_fields at the row's headers and return their encoded size; -1: no memory, -2: a null key."""
        cdef Columns* c = self.columns
        cdef int64_t item, size = 0, place = c.headers.start + self.row
        cdef int64_t begin = offset_at(&c.headers, place), end = offset_at(&c.headers, place + 1)
        cdef Field* fields = self.header_fields
        if end - begin > MOST_HEADERS:
            return -1
        if end - begin > self.header_room:
            fields = <Field*>realloc(fields, <size_t>(4 * (end - begin)) * sizeof(Field))
            if fields == NULL:
                return -1
            self.header_fields = fields
            self.header_room = 2 * (end - begin)
        for item in range(begin, end):
            fields[0] = bytes_at(&c.header_key, item)
            fields[1] = bytes_at(&c.header_value, item)
            if fields[0].size < 0 or is_null(&c.header, item):
                return -2
            size += field_size(&fields[0]) + field_size(&fields[1])
            fields += 2
        self.record.header_count = <int32_t>(end - begin)
        return size

    # ---- with the GIL ------------------------------------------------------------------------------------------------

    cdef int enter_topic(self) except -1:
        cdef Field name = bytes_at(&self.columns.topic, self.row)
        if name.size < 0:
            raise InvalidTopicError(f"row {self.first_row + self.row}: there is no topic: its column 'topic' is null")
        self.give_back_all()
        self.use_topic(self.producer.topic_of((<const char*>name.data)[:name.size].decode("utf-8", "replace"),
                                              &self.waited))
        self.topic_bytes = self.topic.name.encode()
        self.name = self.topic_bytes
        self.name_size = len(self.topic_bytes)
        return 0

    cdef int append_array(self, ArrowSchema* schema, ArrowArray* array) except -1:
        cdef Columns columns
        bind_columns(&columns, schema, array)
        if self.topic is None and columns.topic.layout == ABSENT:
            raise InvalidTopicError("there is no topic: give the topic argument, or a column 'topic'")
        self.columns = &columns
        self.only_values = self.topic_bytes is None and self.topic is not None and not (
            columns.key.layout or columns.partition.layout or columns.timestamp.layout or columns.headers.layout)
        return self.append_rows(columns.rows, columns.timestamp.layout != ABSENT)


seal(ArrowWalker)


def append_arrow(ProducerCore producer not None, report, data, topic):
    """See KafkaProducer.send_arrow. `report` gets all rows that were queued or left out, also if the call raises."""
    cdef ArrowWalker walker
    try:
        producer.check_open()
        producer.check_takes_columns()
        walker = ArrowWalker.__new__(ArrowWalker, producer, report)
        if topic is not None:
            walker.use_topic(producer.topic_of(topic, &walker.waited))
        if hasattr(data, "__arrow_c_array__"):
            schema, array = data.__arrow_c_array__()
            append_borrowed(
                walker, <ArrowSchema*>pointer(schema, "arrow_schema"), <ArrowArray*>pointer(array, "arrow_array"))
        elif hasattr(data, "__arrow_c_stream__"):
            capsule = data.__arrow_c_stream__()
            append_stream(walker, <ArrowArrayStream*>pointer(capsule, "arrow_array_stream"))
        else:
            raise SerializationError(
                f"send_arrow needs data with the Arrow PyCapsule interface (a pyarrow RecordBatch or Table, a pandas "
                f"or polars DataFrame), found {type(data).__name__}")
    except KafkaError as error:
        error.rows_queued = report.rows
        error.report = report
        raise


cdef void* pointer(capsule, const char* name) except NULL:
    try:
        return PyCapsule_GetPointer(capsule, name)
    except ValueError as error:
        raise SerializationError(
            f"the Arrow PyCapsule interface must return a capsule '{name.decode()}', found {capsule!r}") from error


cdef int append_borrowed(ArrowWalker walker, ArrowSchema* callers_schema, ArrowArray* callers_array) except -1:
    cdef ArrowSchema schema = callers_schema[0]
    cdef ArrowArray array = callers_array[0]
    # The caller's capsules are marked as released during the call. Otherwise, while this thread waits for memory,
    # another thread that holds the capsules could import the data and release it.
    callers_schema.release = NULL
    callers_array.release = NULL
    try:
        walker.append_array(&schema, &array)
    finally:
        callers_schema.release = schema.release
        callers_array.release = array.release
    return 0


cdef int append_stream(ArrowWalker walker, ArrowArrayStream* callers_stream) except -1:
    cdef ArrowArrayStream stream
    if callers_stream.release == NULL:
        raise SerializationError("the Arrow stream was read or released before: give a new stream")
    # The interface moves a stream out of its capsule. Without the move, a second call with the same capsule would find
    # a stream without rows.
    stream = callers_stream[0]
    callers_stream.release = NULL
    try:
        append_batches(walker, &stream)
    finally:
        stream.release(&stream)


cdef int append_batches(ArrowWalker walker, ArrowArrayStream* stream) except -1:
    cdef ArrowSchema schema
    cdef ArrowArray array
    memset(&schema, 0, sizeof(schema))
    require(stream, stream.get_schema(stream, &schema))
    try:
        while True:
            memset(&array, 0, sizeof(array))
            require(stream, stream.get_next(stream, &array))
            if array.release == NULL:
                return 0
            try:
                walker.append_array(&schema, &array)
            finally:
                array.release(&array)
    finally:
        if schema.release != NULL:
            schema.release(&schema)


cdef int require(ArrowArrayStream* stream, int status) except -1:
    cdef const char* text
    if status != 0:
        text = stream.get_last_error(stream)
        reason = text.decode("utf-8", "replace") if text != NULL else f"error {status}"
        raise SerializationError(f"the Arrow stream failed: {reason}")
    return 0
