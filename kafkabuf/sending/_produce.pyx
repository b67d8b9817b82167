# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The client's half of Produce, written for speed: requests around the slabs, responses without schema classes.

Request, versions 2 to 8::

    size i32 | api key i16 = 0 | version i16 | correlation id i32 | client id string
    | transactional id nullable string (v3+) | acks i16 | timeout ms i32
    | topics: count i32, then each: name string | partitions: count i32, then each: index i32 | size i32 | RECORDS
    string: size i16 | bytes

Versions 9 to 12 (flexible) have a tag section, uvarint 0, behind the header, each partition, each topic and the body.
Counts, sizes and the sizes of strings are then uvarints of n + 1. Only the client id stays as above.

RECORDS are the batch in its slab: a span of the Frame. All other bytes stand in one buffer that the Frame owns.

Response::

    [the caller has cut off the size] correlation id i32 | tags (v9+)
    | topics: name | partitions: index i32 | error i16 | base offset i64 | log append time i64
        | log start offset i64 (v5+) | record errors: batch index i32, message | message (v8+)
        | tags, of which 0 is the leader: id i32, epoch i32
    | throttle time ms i32 | tags, of which 0 are endpoints of such leaders: id i32, host, port i32, rack, tags

The tags numbered 0 come with version 10 (KIP-951): a broker that no longer leads a partition names the new leader.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from kafkabuf.wire._wire cimport get_i16, get_i32, get_i64, put_bytes, put_i16, put_i32, put_i8, put_uvarint
from kafkabuf.batches._batch cimport Batch
from kafkabuf.protocol._frame cimport Frame

from kafkabuf.errors import CorruptMessageError

PRODUCE = 0
# Lowest and highest Produce version that carry batches of this magic.
VERSIONS_BY_MAGIC = {1: (2, 2), 2: (3, 12)}
cdef int FIRST_WITH_LEADERS = 10
cdef int FIRST_TO_THROTTLE = 6      # in earlier versions the broker waits before it responds (KIP-219)

cdef enum:
    # Bytes that a response may have. Brokers quote topic and timestamps when they explain why they refuse a record.
    RESPONSE_HEAD = 65536             # includes the addresses of new leaders
    RESPONSE_OF_A_PARTITION = 4096
    RESPONSE_OF_A_RECORD = 256


cdef inline uint8_t* put_count(uint8_t* p, int64_t n, bint flexible) noexcept nogil:
    return put_uvarint(p, <uint64_t>(n + 1)) if flexible else put_i32(p, <int32_t>n)


cdef inline uint8_t* put_string(uint8_t* p, const char* text, Py_ssize_t size, bint flexible) noexcept nogil:
    if flexible:
        p = put_uvarint(p, <uint64_t>(size + 1))
    else:
        p = put_i16(p, <int16_t>size)
    return put_bytes(p, text, <size_t>size)


cdef inline uint8_t* put_tags(uint8_t* p, bint flexible) noexcept nogil:
    return put_uvarint(p, 0) if flexible else p


cpdef Frame build_request(int version, int correlation_id, bytes client_id, int acks, int timeout_ms, list batches,
                          bytes transactional_id=None):
    """A Frame with one Produce request of `batches`: all for one node, at most one batch of each partition.

    The frame counts as a reader of every batch. The caller calls `end_read` on each batch once the frame is written or
    dropped.
    """
    cdef bint flexible = version >= 9
    cdef dict topics = {}
    cdef Batch batch
    cdef const char* text
    cdef Py_ssize_t size
    # A partition, or a topic besides its name, takes at most 24 bytes; the header takes at most 64 besides its strings.
    cdef Py_ssize_t room = 64 + len(client_id) + (0 if transactional_id is None else len(transactional_id))
    for batch in batches:
        if batch is None:
            raise TypeError("build_request() takes Batches, found None")
        group = topics.get(batch.topic)
        if group is None:
            group = topics[batch.topic] = []
            PyUnicode_AsUTF8AndSize(batch.topic, &size)
            room += 24 + size
        (<list>group).append(batch)
        room += 24
    cdef bytes head = PyBytes_FromStringAndSize(NULL, room)
    cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(head)
    cdef uint8_t* p = put_header(begin, version, correlation_id, client_id, transactional_id, acks, timeout_ms)
    cdef Frame frame = Frame.__new__(Frame)
    cdef int64_t records = 0
    cdef Py_ssize_t largest = RESPONSE_HEAD
    frame.own(head)
    frame.own(batches)
    cdef uint8_t* span = begin
    p = put_count(p, len(topics), flexible)
    for name, group in topics.items():
        text = PyUnicode_AsUTF8AndSize(name, &size)
        p = put_string(p, text, size, flexible)
        p = put_count(p, len(<list>group), flexible)
        for batch in <list>group:
            p = put_i32(p, batch.partition)
            p = put_count(p, batch.stored.builder.position, flexible)
            frame.add(span, p - span)
            frame.add(batch.stored.builder.base, batch.stored.builder.position)
            records += batch.stored.builder.position
            # The broker may explain the error of the batch and of each record, and names the topic each time.
            largest += RESPONSE_OF_A_PARTITION + (RESPONSE_OF_A_RECORD + size) * (1 + batch.stored.builder.count)
            span = p
            p = put_tags(p, flexible)
        p = put_tags(p, flexible)
    p = put_tags(p, flexible)
    if p > span:
        frame.add(span, p - span)
    frame.spans.response.judge = took_all
    frame.spans.response.version = version
    frame.spans.response.partitions = <int>len(batches)
    frame.spans.response.largest = largest
    put_i32(begin, <int32_t>(p - begin - 4 + records))
    for batch in batches:
        batch.start_read()
    return frame


cdef uint8_t* put_header(
    uint8_t* p, int version, int correlation_id, bytes client_id, bytes transactional_id, int acks, int timeout_ms
) noexcept:
    cdef bint flexible = version >= 9
    p = put_i32(p, 0)  # the size: build_request fills it in at the end
    p = put_i16(p, 0)
    p = put_i16(p, <int16_t>version)
    p = put_i32(p, correlation_id)
    p = put_string(p, client_id, len(client_id), False)
    p = put_tags(p, flexible)
    if transactional_id is not None:
        p = put_string(p, transactional_id, len(transactional_id), flexible)
    elif version >= 3:
        p = put_i8(p, 0) if flexible else put_i16(p, -1)
    p = put_i16(p, <int16_t>acks)
    return put_i32(p, timeout_ms)


cdef class PartitionResponse:
    pass


cdef class ProduceResponse:
    pass


@cython.final
cdef class Reader:
    """Cursor over a response. It checks each length before it uses the length."""

    cdef bytes frame                # owns the bytes
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef int version
    cdef bint flexible

    cdef inline int need(self, int64_t size) except -1:
        if size < 0 or size > self.end - self.at:
            raise CorruptMessageError(f"a Produce response of {len(self.frame)} bytes ends before its last field")
        return 0

    cdef inline int16_t i16(self) except? -1:
        self.need(2)
        self.at += 2
        return get_i16(self.at - 2)

    cdef inline int32_t i32(self) except? -1:
        self.need(4)
        self.at += 4
        return get_i32(self.at - 4)

    cdef inline int64_t i64(self) except? -1:
        self.need(8)
        self.at += 8
        return get_i64(self.at - 8)

    cdef int64_t uvarint(self) except? -1:
        cdef int64_t value = 0
        cdef int shift = 0
        while True:
            self.need(1)
            value |= <int64_t>(self.at[0] & 0x7F) << shift
            self.at += 1
            if not (self.at - 1)[0] & 0x80:
                return value
            shift += 7
            if shift > 28:
                raise CorruptMessageError("a Produce response holds a varint of more than five bytes")

    cdef int64_t count(self) except? -1:
        """The number of elements of an array. Each element takes at least a byte, and the array may not be null."""
        cdef int64_t n = self.uvarint() - 1 if self.flexible else self.i32()
        self.need(n)
        return n

    cdef object string(self):
        cdef int64_t n = self.uvarint() - 1 if self.flexible else self.i16()
        if n < 0:
            return None
        self.need(n)
        self.at += n
        return (<const char*>self.at - n)[:n].decode("utf-8", "replace")

    cdef int tags(self, PartitionResponse partition=None, ProduceResponse response=None) except -1:
        """Read tagged fields: tag 0 of `partition` or `response`. Skip all other tags."""
        cdef int64_t tag, size
        cdef const uint8_t* end
        if not self.flexible:
            return 0
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            size = self.uvarint()
            self.need(size)
            end = self.at + size
            if tag != 0 or self.version < FIRST_WITH_LEADERS:
                self.at = end
            elif partition is not None:
                partition.leader = self.i32()
                partition.leader_epoch = self.i32()
                self.tags()
            elif response is not None:
                self.endpoints(response.nodes)
            else:
                self.at = end
            if self.at != end:
                raise CorruptMessageError(f"a tagged field of a Produce response does not fill its {size} bytes")
        return 0

    cdef int endpoints(self, dict nodes) except -1:
        for _ in range(self.count()):
            node_id = self.i32()
            host = self.string()
            port = self.i32()
            if not host or not 0 < port <= 0xFFFF:
                raise CorruptMessageError(f"a Produce response names node {node_id} at {host!r}:{port}")
            nodes[node_id] = (host, port, self.string())
            self.tags()
        return 0


# ---- whether a response reports an error, without the GIL ------------------------------------------------------------

cdef struct Scan:
    const uint8_t* at
    Py_ssize_t left                 # bytes left; negative: the response ended too early


cdef inline uint64_t scan(Scan* s, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    s.left -= size
    if s.left < 0:
        return 0
    for i in range(size):
        value = (value << 8) | s.at[i]
    s.at += size
    return value


cdef inline uint64_t scan_varint(Scan* s) noexcept nogil:
    cdef uint64_t value = 0
    cdef uint64_t byte = 0x80
    cdef int shift = 0
    while byte >= 0x80 and shift <= 28:
        byte = scan(s, 1)
        value |= (byte & 0x7F) << shift
        shift += 7
    return value


cdef inline int64_t scan_count(Scan* s, bint flexible, int size) noexcept nogil:
    return <int64_t>scan_varint(s) - 1 if flexible else <int64_t>scan(s, size)


cdef inline void scan_over(Scan* s, uint64_t size) noexcept nogil:
    if s.left >= 0 and size > <uint64_t>s.left:
        s.left = -1
    if s.left >= 0:
        s.at += size
        s.left -= <Py_ssize_t>size


cdef inline void scan_tags(Scan* s, bint flexible) noexcept nogil:
    cdef uint64_t count = scan_varint(s) if flexible else 0
    while count > 0 and s.left >= 0:
        scan_varint(s)
        scan_over(s, scan_varint(s))
        count -= 1


cdef bint took_all(const unsigned char* response, Py_ssize_t size, int version, int asked) noexcept nogil:
    """Whether the broker took every batch and asks for no pause. False for an error text or malformed response."""
    cdef bint flexible = version >= 9
    cdef int64_t topics, partitions
    cdef int64_t missing = asked
    cdef Scan s
    s.at = response
    s.left = size
    scan_over(&s, 4)
    scan_tags(&s, flexible)
    topics = scan_count(&s, flexible, 4)
    while topics > 0 and s.left >= 0:
        scan_over(&s, <uint64_t>scan_count(&s, flexible, 2))
        partitions = scan_count(&s, flexible, 4)
        missing -= partitions
        while partitions > 0 and s.left >= 0:
            scan_over(&s, 4)
            if scan(&s, 2) != 0:
                return False
            scan_over(&s, 24 if version >= 5 else 16)
            # There must be no errors of single records and no error text.
            if flexible and scan(&s, 2) != 0x0100 or version == 8 and scan(&s, 6) != 0xFFFF:
                return False
            scan_tags(&s, flexible)
            partitions -= 1
        scan_tags(&s, flexible)
        topics -= 1
    if scan(&s, 4) != 0 and version >= FIRST_TO_THROTTLE:
        return False
    scan_tags(&s, flexible)
    return s.left == 0 and missing == 0


cpdef ProduceResponse parse_response(int version, bytes frame):
    """The ProduceResponse in a frame, from which the caller has cut off the size. Raises CorruptMessageError."""
    cdef Reader r = Reader.__new__(Reader)
    cdef ProduceResponse response = ProduceResponse.__new__(ProduceResponse)
    if frame is None:
        raise TypeError("parse_response() takes bytes, found None")
    response.partitions = {}
    response.nodes = {}
    r.frame = frame
    r.at = <const uint8_t*>PyBytes_AS_STRING(frame)
    r.end = r.at + len(frame)
    r.version = version
    r.flexible = version >= 9
    r.i32()
    r.tags()
    for _ in range(r.count()):
        topic = r.string()
        for _ in range(r.count()):
            partition = r.i32()
            if (topic, partition) in response.partitions:
                raise CorruptMessageError(f"a Produce response names {topic}-{partition} twice")
            response.partitions[topic, partition] = parse_partition(r)
        r.tags()
    response.throttle_ms = r.i32()
    r.tags(None, response)
    if response.throttle_ms < 0:
        raise CorruptMessageError(f"a Produce response asks for a pause of {response.throttle_ms} ms")
    if r.at != r.end:
        raise CorruptMessageError(f"a Produce response has {r.end - r.at} bytes behind its last field")
    return response


cdef object texts_of(list record_errors):
    return None if not record_errors else "; ".join([text for _, text in record_errors if text]) or None


cdef PartitionResponse parse_partition(Reader r):
    cdef PartitionResponse response = PartitionResponse.__new__(PartitionResponse)
    response.leader = response.leader_epoch = response.log_start_offset = -1
    response.error_code = r.i16()
    response.base_offset = r.i64()
    response.log_append_time = r.i64()
    if r.version >= 5:
        response.log_start_offset = r.i64()
    if r.version >= 8:
        response.record_errors = []
        for _ in range(r.count()):
            place = r.i32()
            response.record_errors.append((place, r.string()))
            r.tags()
        response.message = r.string() or texts_of(response.record_errors)
    r.tags(response)
    if response.base_offset < -1 or response.log_append_time < -1:
        raise CorruptMessageError(
            f"a Produce response gives offset {response.base_offset} and append time {response.log_append_time}")
    return response
