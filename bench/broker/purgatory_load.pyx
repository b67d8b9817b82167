# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The load of Kafka's TestPurgatoryPerformance, compiled, so that it costs next to nothing beside the purgatory.

One thread makes requests at random times. A second thread completes each request at its time, unless its time-out comes
first: then it expires. All code here except the sleeps runs with the GIL, and no thread keeps the GIL for longer than a
burst.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc

import threading
import time

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from kafkabuf.broker.waiting._purgatory cimport DelayedOperation

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    cdef struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*)
    int nanosleep(const timespec*, timespec*)
    enum: CLOCK_MONOTONIC

cdef enum:
    BURST = 256     # requests without a sleep between them, where they come too fast


cdef int64_t now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * <int64_t> 1000 + now.tv_nsec // 1_000_000


cdef void sleep_ms(int64_t milliseconds) noexcept nogil:
    cdef timespec pause
    pause.tv_sec = milliseconds // 1000
    pause.tv_nsec = milliseconds % 1000 * 1_000_000
    nanosleep(&pause, NULL)


def now():
    """The time in milliseconds, for requests in Python."""
    return now_ms()


cdef class Tally:
    """Counts completed requests."""

    cdef readonly Py_ssize_t completed

    def count(self):
        self.completed += 1


cdef class Request(DelayedOperation):
    cdef int64_t completes_at
    cdef Tally tally

    def __init__(self, double timeout, int64_t completes_at, Tally tally not None):
        self.timeout = timeout
        self.completes_at = completes_at
        self.tally = tally

    def try_complete(self):
        return now_ms() >= self.completes_at and self.force_complete()

    def on_complete(self):
        self.tally.completed += 1


cdef struct Scheduled:
    int64_t at
    PyObject* request       # a strong reference


cdef class CompletionQueue:
    """A heap of requests by time, under the GIL, and the thread that completes those that are due."""

    cdef Scheduled* heap
    cdef Py_ssize_t size, room
    cdef bint closed
    cdef object thread

    def __init__(self):
        self.thread = threading.Thread(target=self.run, name="completion")
        self.thread.start()

    def __dealloc__(self):
        free(self.heap)

    cdef int add(self, DelayedOperation request, int64_t at) except -1:
        cdef Py_ssize_t child = self.size, parent
        if child == self.room:
            self.room = 2 * self.room + 1024
            self.heap = <Scheduled*> realloc(self.heap, self.room * sizeof(Scheduled))
            if self.heap == NULL:
                raise MemoryError
        self.size += 1
        while child > 0 and at < self.heap[(child - 1) // 2].at:
            parent = (child - 1) // 2
            self.heap[child] = self.heap[parent]
            child = parent
        Py_INCREF(request)
        self.heap[child].at = at
        self.heap[child].request = <PyObject*> request
        return 0

    cdef DelayedOperation pop(self):
        cdef DelayedOperation first = <DelayedOperation> self.heap[0].request
        cdef Scheduled last
        cdef Py_ssize_t parent = 0, child = 1
        self.size -= 1
        last = self.heap[self.size]
        while child < self.size:
            if child + 1 < self.size and self.heap[child + 1].at < self.heap[child].at:
                child += 1
            if self.heap[child].at >= last.at:
                break
            self.heap[parent] = self.heap[child]
            parent = child
            child = 2 * parent + 1
        self.heap[parent] = last
        Py_DECREF(first)
        return first

    def run(self):
        while not self.closed:
            while self.size and self.heap[0].at <= now_ms():
                self.pop().force_complete()
            with nogil:
                sleep_ms(1)

    def close(self):
        self.closed = True
        self.thread.join()


def run(purgatory, keys, int64_t[::1] arrivals, int64_t[::1] latencies, int64_t timeout_ms, make=Request):
    """Run the load; `arrivals` are milliseconds from the start. Returns the real rate and the process's CPU seconds."""
    cdef Tally tally = Tally()
    cdef CompletionQueue queue = CompletionQueue()
    cdef double timeout = timeout_ms / 1000.0
    cdef int64_t start = now_ms(), now = start, came
    cdef Py_ssize_t i, requests = len(arrivals)
    cdef DelayedOperation request
    used = time.process_time()
    for i in range(requests):
        came = start + arrivals[i]
        if came > now or i % BURST == 0:
            now = now_ms()
            with nogil:
                sleep_ms(max(came - now, 0))
            now = now_ms()
        request = make(timeout, now + latencies[i], tally)
        if latencies[i] < timeout_ms:
            queue.add(request, now + latencies[i])
        purgatory.try_complete_else_watch(request, keys)
    generated = now_ms() - start
    while tally.completed < requests:
        with nogil:
            sleep_ms(1)
    used = time.process_time() - used
    queue.close()
    return requests / generated * 1000.0, used
