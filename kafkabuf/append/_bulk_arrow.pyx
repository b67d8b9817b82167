# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encodes Arrow rows as records. Values and keys are columns of bytes, or what a format makes of columns."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp

from kafkabuf.memory._held cimport MOST_HEADERS
from kafkabuf._records cimport Record, attach_none
from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport Field, field_size, kb_crc32_init
from kafkabuf.arrow._array cimport (
    ABSENT, ArrowArray, ArrowSchema, Columns, bind_columns, bytes_at, check_table, int32_at, is_null, millis_at,
    offset_at,
)
from kafkabuf.append._bulk cimport (
    BAD_HEADERS, BAD_KEY, BAD_PARTITION, BAD_TIMESTAMP, BAD_VALUE, ENCODED_LARGE, END, NEW_TOPIC, NO_MEMORY, BulkAppend,
    Stop, append_record, choose_partition, tell_error,
)
from kafkabuf.arrow._exported cimport visit_arrays
from kafkabuf.append._producer cimport ProducerCore
from kafkabuf.batches._accumulator cimport TopicQueues
from kafkabuf.arrow._schema cimport describe
from kafkabuf.formats.rows._encoder cimport ENCODED_NULL, ENCODED_TOO_LARGE, RowEncoder, new_encoder

from kafkabuf.errors import ConfigError, InvalidTopicError

kb_crc32_init()


def append_arrow(ProducerCore producer not None, report, data, topic, formats=None):
    """See KafkaProducer.send_arrow. `report` gets all rows that were queued or left out, also if the call raises.

    `formats` is a Formats (formats/plan.py); None: value and key are columns of bytes.
    """
    cdef ArrowWalker walker
    try:
        producer.check_open()
        producer.check_takes_columns()
        walker = ArrowWalker.__new__(ArrowWalker)
        walker.bulk = BulkAppend.__new__(BulkAppend, producer, report)
        walker.formats = formats
        walker.by_topic = formats is not None and formats.by_topic
        walker.encodings, walker.encoders = {}, {}
        walker.key_column = "key"
        if topic is not None:
            walker.bulk.use_topic(producer.topic_of(topic, &walker.bulk.waited))
        visit_arrays(data, visit_array, walker, "send_arrow")
    except BaseException as error:  # KeyboardInterrupt, too: a wait may have raised it
        tell_error(error, report)
        raise


cdef int visit_array(object visitor, ArrowSchema* schema, ArrowArray* array) except -1:
    return (<ArrowWalker?>visitor).append_array(schema, array)


@cython.final
cdef class ArrowWalker:
    """Visits the rows of one send_arrow call and encodes them."""

    def __dealloc__(self):
        free(self.header_fields)

    # ---- with the GIL ------------------------------------------------------------------------------------------------

    cdef int append_array(self, ArrowSchema* schema, ArrowArray* array) except -1:
        """Append all rows of an array. If it raises, the report has the rows before the faulty row."""
        cdef BulkAppend bulk = self.bulk
        cdef Columns columns
        cdef Stop stop
        if self.formats is not None and self.sources is None:
            check_table(schema, array)
            self.prepare(schema)
        bind_columns(&columns, schema, array, self.key_column, self.sources is None or self.sources.value is None)
        if bulk.topic is None and columns.topic.layout == ABSENT:
            raise InvalidTopicError("there is no topic: give the topic argument, or a column 'topic'")
        self.schema, self.array, self.bound = schema, array, set()
        if self.encodes and not self.by_topic:
            self.use_formats("")
        elif self.encodes and bulk.topic is not None and columns.rows:
            self.use_formats(bulk.topic.name)
        self.columns = &columns
        self.only_values = self.topic_bytes is None and bulk.topic is not None and not (
            columns.key.layout or columns.partition.layout or columns.timestamp.layout or columns.headers.layout)
        bulk.begin(columns.rows, columns.timestamp.layout != ABSENT)
        try:
            while True:
                with nogil:
                    stop = self.walk_encoded(bulk) if self.encodes else self.walk_rows(bulk)
                if stop == END:
                    return 0
                self.serve(stop)
        finally:
            bulk.end()

    cdef int prepare(self, const ArrowSchema* schema) except -1:
        """Choose the columns that the formats take. No row has been read."""
        self.sources = self.formats.sources(describe(schema).children)
        self.key_column = self.sources.key_column
        self.encodes = self.sources.value is not None or self.sources.key is not None
        return 0

    cdef int serve(self, Stop stop) except -1:
        """Remove the obstacle at which the walk has stopped, leave the row out, or raise."""
        cdef BulkAppend bulk = self.bulk
        cdef int64_t row = bulk.first_row + bulk.row
        if stop == NEW_TOPIC:
            return self.enter_topic()
        if stop == BAD_KEY:
            raise self.key_encoder.refusal(row)
        if stop == BAD_VALUE:
            raise self.value_encoder.refusal(row)
        if stop == ENCODED_LARGE:
            return bulk.leave_out(f"its encoded key or value is larger than max.request.size "
                                  f"({bulk.max_request_size}): raise max.request.size, or send smaller records")
        return bulk.serve(stop)

    cdef int enter_topic(self) except -1:
        cdef BulkAppend bulk = self.bulk
        cdef Field name = bytes_at(&self.columns.topic, bulk.row)
        cdef TopicQueues topic
        if name.size < 0:
            raise InvalidTopicError(f"row {bulk.first_row + bulk.row}: there is no topic: its column 'topic' is null")
        bulk.give_back_all()
        topic = bulk.producer.topic_of((<const char*>name.data)[:name.size].decode("utf-8", "replace"), &bulk.waited)
        if self.by_topic:
            self.use_formats(topic.name)
        bulk.use_topic(topic)
        self.topic_bytes = bulk.topic.name.encode()
        self.name = self.topic_bytes
        self.name_size = len(self.topic_bytes)
        return 0

    cdef int use_formats(self, str topic) except -1:
        """Make key and value with the formats of a topic. Asks the registry about a topic once in a call.

        Once, so that all rows of the call have one schema even if the registry's latest schema changes. The walker
        holds no claim here: the wait may be long, and other threads run meanwhile. Topics whose programs are equal
        share an encoder, which bounds the scratch. An encoder is bound to a chunk when the first of its topics is
        entered.
        """
        encoding = self.encodings.get(topic)
        if encoding is None:
            encoding = self.encodings[topic] = self.encoding("value", topic), self.encoding("key", topic)
        (self.value_encoder, value_header), (self.key_encoder, key_header) = encoding
        for encoder in (self.value_encoder, self.key_encoder):
            if encoder is not None and encoder not in self.bound:
                (<RowEncoder>encoder).bind(self.schema, self.array)
                self.bound.add(encoder)
        self.schema_headers = None
        if value_header is None and key_header is None:
            return 0
        if self.bulk.magic < 2:
            raise ConfigError("record.magic is 1, whose format has no headers, and schema.id.framing is header: set it "
                              "to prefix, or set record.magic to 2")
        if self.header_fields == NULL and not self.make_header_room(0):
            raise MemoryError()
        point_at(self.value_header, value_header)
        point_at(self.key_header, key_header)
        self.schema_headers = value_header, key_header
        return 0

    cdef tuple encoding(self, str field, str topic):
        """The RowEncoder of a topic's keys or values, and the header that names their schema. May wait."""
        source = getattr(self.sources, field)
        if source is None:
            return None, None
        clock = self.bulk.producer.clock
        cdef double left = max(self.bulk.producer.max_block - self.bulk.waited, 0.0), started = clock.monotonic()
        format, header = self.formats.resolved(field, source, topic, left)
        self.bulk.waited += <double>clock.monotonic() - started
        program = format.program(source)
        encoder = self.encoders.get((field, program))
        if encoder is None:
            encoder = self.encoders[field, program] = new_encoder(program, self.bulk.max_request_size)
        return encoder, None if header is None else (header[0].encode(), header[1])

    # ---- without the GIL ---------------------------------------------------------------------------------------------

    cdef Stop walk_rows(self, BulkAppend bulk) noexcept nogil:
        cdef Stop stop
        if self.only_values:
            return self.walk_values(bulk)
        while bulk.row < self.columns.rows:
            stop = self.read_row(bulk)
            if stop == END:
                stop = append_record(bulk)
            if stop != END:
                return stop
        return END

    cdef Stop walk_values(self, BulkAppend bulk) noexcept nogil:
        """As `walk_rows`, for rows that differ in their value only."""
        cdef Record* r = &bulk.record
        cdef Stop stop = END
        r.key.size = -1
        r.timestamp = bulk.now
        attach_none(r)
        choose_partition(bulk, -1)
        while stop == END and bulk.row < self.columns.rows:
            r.value = bytes_at(&self.columns.value, bulk.row)
            stop = append_record(bulk)
        return stop

    cdef Stop walk_encoded(self, BulkAppend bulk) noexcept nogil:
        """As `walk_rows`, for rows of which a format makes the key, the value, or both.

        It is a loop of its own: a flag in `walk_rows` takes a few instructions of each row that has no format.
        """
        cdef Columns* c = self.columns
        cdef Stop stop
        while bulk.row < c.rows:
            stop = self.read_row(bulk)
            if stop == END:
                stop = self.encode_row(bulk)
            if stop == END:
                # read_row() did not know the key.
                if self.key_encoder is not None and (
                        c.partition.layout == ABSENT or is_null(&c.partition, bulk.row)):
                    choose_partition(bulk, -1)
                stop = append_record(bulk)
            if stop != END:
                return stop
        return END

    cdef Stop read_row(self, BulkAppend bulk) noexcept nogil:
        cdef Columns* c = self.columns
        cdef Record* r = &bulk.record
        cdef Field topic
        cdef int64_t headers_size, row = bulk.row
        cdef int32_t partition = -1
        if self.name != NULL or bulk.cursors == NULL:
            topic = bytes_at(&c.topic, row)
            if (self.name == NULL or topic.size != self.name_size
                    or memcmp(topic.data, self.name, <size_t>topic.size) != 0):
                return NEW_TOPIC
        r.key = bytes_at(&c.key, row)
        r.value = bytes_at(&c.value, row)
        r.timestamp = bulk.now
        if c.timestamp.layout != ABSENT and not is_null(&c.timestamp, row):
            r.timestamp = millis_at(&c.timestamp, row)
            if r.timestamp < 0:
                return BAD_TIMESTAMP
        attach_none(r)
        if c.headers.layout != ABSENT and not is_null(&c.headers, row):
            headers_size = self.read_headers(bulk)
            if headers_size < 0:
                return NO_MEMORY if headers_size == -1 else BAD_HEADERS
            r.headers = self.header_fields
            r.headers_size = headers_size
            if r.header_count and bulk.magic < 2:
                return BAD_HEADERS
        if c.partition.layout != ABSENT and not is_null(&c.partition, row):
            partition = int32_at(&c.partition, row)
            if partition < 0 or partition >= bulk.partitions:
                bulk.partition = partition
                return BAD_PARTITION
        choose_partition(bulk, partition)
        return END

    cdef Stop encode_row(self, BulkAppend bulk) noexcept nogil:
        """Make the record's key and value with their formats. Their bytes lie in the encoders' buffers."""
        cdef int64_t size
        if self.key_encoder is not None:
            size = self.key_encoder.encode(bulk.row)
            if size < ENCODED_NULL:
                return ENCODED_LARGE if size == ENCODED_TOO_LARGE else BAD_KEY
            bulk.record.key.data, bulk.record.key.size = self.key_encoder.out.base, size
        if self.value_encoder is not None:
            size = self.value_encoder.encode(bulk.row)
            if size < ENCODED_NULL:
                return ENCODED_LARGE if size == ENCODED_TOO_LARGE else BAD_VALUE
            bulk.record.value.data, bulk.record.value.size = self.value_encoder.out.base, size
        if self.schema_headers is not None:
            self.add_schema_header(&bulk.record, self.key_header, &bulk.record.key)
            self.add_schema_header(&bulk.record, self.value_header, &bulk.record.value)
        return END

    cdef void add_schema_header(self, Record* r, const Field* header, const Field* encoded) noexcept nogil:
        """Name the schema of key or value after the row's own headers. A null has no schema."""
        cdef Field* place
        if header.data == NULL or encoded.size < 0:
            return
        # use_formats() has made room for two more than the row's own.
        place = self.header_fields + 2 * r.header_count
        place[0] = header[0]
        place[1] = header[1]
        r.headers = self.header_fields
        r.header_count += 1
        r.headers_size += field_size(&header[0]) + field_size(&header[1])

    cdef int64_t read_headers(self, BulkAppend bulk) noexcept nogil:
        """Point header_fields at the row's headers and return their encoded size; -1: no memory, -2: a null key."""
        cdef Columns* c = self.columns
        cdef int64_t item, size = 0, place = c.headers.start + bulk.row
        cdef int64_t begin = offset_at(&c.headers, place), end = offset_at(&c.headers, place + 1)
        cdef Field* fields
        if end - begin > MOST_HEADERS:
            return -1
        if end - begin > self.header_room and not self.make_header_room(2 * (end - begin)):
            return -1
        fields = self.header_fields
        for item in range(begin, end):
            fields[0] = bytes_at(&c.header_key, item)
            fields[1] = bytes_at(&c.header_value, item)
            if fields[0].size < 0 or is_null(&c.header, item):
                return -2
            size += field_size(&fields[0]) + field_size(&fields[1])
            fields += 2
        bulk.record.header_count = <int32_t>(end - begin)
        return size

    cdef bint make_header_room(self, int64_t headers) noexcept nogil:
        """Make room for so many headers of a row, and for those that name the schemas of key and value."""
        cdef Field* fields = <Field*>realloc(self.header_fields, <size_t>(2 * headers + 4) * sizeof(Field))
        if fields == NULL:
            return False
        self.header_fields = fields
        self.header_room = headers
        return True


seal(ArrowWalker)


cdef int point_at(Field* header, given) except -1:
    """Point at the bytes of a header, which the caller keeps alive."""
    header[0].data = header[1].data = NULL
    if given is not None:
        header[0].data, header[0].size = <const uint8_t*><const char*>given[0], len(given[0])
        header[1].data, header[1].size = <const uint8_t*><const char*>given[1], len(given[1])
    return 0
