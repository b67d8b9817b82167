# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Counts for metrics/snapshot.py: sums and maxima over time windows, in C, once for each batch or request."""

from libc.stdlib cimport calloc, free

from kafkabuf.process._lock cimport enter_lock, leave_lock


cdef class Stat:
    def __cinit__(self, int kept, double window):
        if kept < 1:
            raise ValueError(f"metrics.num.samples must be at least 1, found {kept}")
        self.kept = kept
        self.window = max(window, 0.001)
        self.samples = <Sample*> calloc(kept, sizeof(Sample))
        if self.samples == NULL:
            raise MemoryError(f"no memory for {kept} samples: lower metrics.num.samples")
        self.samples[0].started = -1.0

    def __dealloc__(self):
        free(self.samples)

    cdef void record(self, double value, double now) noexcept:
        enter_lock(&self.guard)
        self.count_in(value, now)
        leave_lock(&self.guard)

    cdef void count_in(self, double value, double now) noexcept:
        cdef Sample* sample = &self.samples[self.current]
        if sample.started < 0:
            sample.started = now
        elif now - sample.started >= self.window:
            self.current = (self.current + 1) % self.kept
            sample = &self.samples[self.current]
            sample.started = now
            sample.sum = sample.count = 0
        if sample.count == 0 or value > sample.max:
            sample.max = value
        sample.sum += value
        sample.count += 1
        self.total += value
        self.count += 1

    cdef void forget_old(self, double now) noexcept:
        cdef int i
        cdef Sample* sample
        for i in range(self.kept):
            sample = &self.samples[i]
            if sample.count and now - sample.started >= self.kept * self.window:
                sample.sum = sample.count = 0
                sample.started = now

    def add(self, double value, double now):
        self.record(value, now)

    def recent(self, double now):
        """(count, sum, max, seconds) of the values in the last windows; `seconds` is the duration of these windows.

        As in Kafka's Rate, `seconds` covers at least all windows but the present one, even if a young producer has
        not filled them: otherwise its first values would make an enormous rate.
        """
        cdef int64_t count = 0
        cdef double sum = 0, largest = 0, oldest = now, lasted
        cdef int i, whole
        cdef Sample* sample
        enter_lock(&self.guard)
        self.forget_old(now)
        for i in range(self.kept):
            sample = &self.samples[i]
            if sample.count == 0:
                continue
            largest = sample.max if count == 0 else max(largest, sample.max)
            count += sample.count
            sum += sample.sum
            oldest = min(oldest, sample.started)
        leave_lock(&self.guard)
        lasted = now - oldest
        whole = <int>(lasted / self.window)
        lasted += max(self.kept - 1 - whole, 0) * self.window
        return count, sum, largest, max(lasted, self.window)


cdef class TopicStats:
    def __cinit__(self, ProducerStats stats not None):
        self.records = stats.new_stat()
        self.bytes = stats.new_stat()
        self.compression = stats.new_stat()
        self.retries = stats.new_stat()
        self.errors = stats.new_stat()


cdef class NodeStats:
    def __cinit__(self, ProducerStats stats not None):
        self.requests = stats.new_stat()
        self.responses = stats.new_stat()
        self.latency = stats.new_stat()


cdef class ProducerStats:
    def __cinit__(self, int kept=2, double window=30.0):
        self.kept = kept
        self.window = window
        self.batch_size, self.compression, self.queue_time = self.new_stat(), self.new_stat(), self.new_stat()
        self.record_size, self.records = self.new_stat(), self.new_stat()
        self.retries, self.errors, self.splits = self.new_stat(), self.new_stat(), self.new_stat()
        self.latency, self.throttle = self.new_stat(), self.new_stat()
        self.requests, self.responses = self.new_stat(), self.new_stat()
        self.opened, self.closed = self.new_stat(), self.new_stat()
        self.io_waits, self.io_times = self.new_stat(), self.new_stat()
        self.waits, self.exhausted, self.dropped = self.new_stat(), self.new_stat(), self.new_stat()
        self.topics = {}
        self.nodes = {}

    cdef Stat new_stat(self):
        return Stat(self.kept, self.window)

    cdef TopicStats topic(self, str name):
        stats = self.topics.get(name)
        if stats is None:
            stats = self.topics[name] = TopicStats(self)
        return <TopicStats>stats

    cdef NodeStats node(self, int node_id):
        stats = self.nodes.get(node_id)
        if stats is None:
            stats = self.nodes[node_id] = NodeStats(self)
        return <NodeStats>stats

    cdef int answered(self, int node_id, double latency, double now) except -1:
        self.latency.record(latency * 1000.0, now)
        self.node(node_id).latency.record(latency * 1000.0, now)
        return 0

    def retried(self, str topic not None, int64_t records, double now):
        self.retries.record(<double>records, now)
        self.topic(topic).retries.record(<double>records, now)

    def failed(self, str topic not None, int64_t records, double now):
        self.errors.record(<double>records, now)
        self.topic(topic).errors.record(<double>records, now)

    cdef void polled(self, double waited, double worked, double now) noexcept:
        self.io_waits.record(waited, now)
        self.io_times.record(worked, now)

    cpdef int request(self, int node_id, Py_ssize_t nbytes, double now) except -1:
        self.requests.record(<double>nbytes, now)
        self.node(node_id).requests.record(<double>nbytes, now)
        return 0

    cpdef int response(self, int node_id, Py_ssize_t nbytes, double now) except -1:
        self.responses.record(<double>nbytes, now)
        self.node(node_id).responses.record(<double>nbytes, now)
        return 0
