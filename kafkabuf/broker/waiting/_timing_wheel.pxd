# cython: language_level=3
"""The contract of the hierarchical timing wheel: who owns what, and what guards it.

The GIL is the lock. Everything below is read and written with it held, in stretches of C that call no Python, drop no
reference and allocate no Python object: no other thread, finalizer or signal handler can come in between. Where a
method must ask the clock it does so before, and looks again after.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from kafkabuf.broker.waiting._ring cimport Link


cdef enum:
    MAX_LEVELS = 64             # a wheel of two slots reaches FOREVER with 41, and the end of time with 50


cdef struct Entry:
    # Part of a task. First its link, so that a link of a bucket's ring is an entry.
    Link link
    PyObject* task              # whose part it is
    PyObject* wheel             # the wheel it is in, which then owns a reference to the task; NULL: in none
    int64_t deadline            # tick at which the task runs, never before


cdef struct Bucket:
    # Tasks of one span of time, `wheel_size ** level` ticks long.
    Link tasks                  # head of their ring, first come first
    int64_t starts              # its first tick: due then
    int level
    bint queued                 # it is in the bucket queue; it stays there when its tasks are cancelled


cdef class TimerTask:
    cdef Entry entry

    # What happens at the deadline. The task has left the wheel.
    cdef int fire(self) except -1
    # False where it was in no wheel.
    cdef bint leave_wheel(self) noexcept


cdef class Timeout(TimerTask):
    cdef object call            # None once it was called or cancelled: nothing is held any longer than needed


cdef class TimingWheel:
    # ---- fixed at construction
    cdef readonly object clock
    cdef object monotonic       # the clock's method
    cdef readonly int64_t tick_ms
    cdef readonly int64_t wheel_size
    cdef public object on_earlier

    # ---- guarded by the GIL
    cdef int64_t current        # tick up to which buckets were taken; no task is due before it
    cdef int64_t promised       # tick at which the driver means to come back, as next_expiry() told it
    cdef Py_ssize_t size        # tasks
    cdef int levels             # wheels there are; they are made as they are needed
    cdef int64_t reach          # ticks: what is due sooner than that needs no further wheel
    cdef Bucket* wheels[MAX_LEVELS]     # wheel_size buckets each
    cdef Bucket** queue         # the bucket queue: a heap by `is_before`, with room for every bucket there is
    cdef Py_ssize_t queued

    # ---- for other extensions
    # Tick before which a task that is due in `seconds` must not run. Asks the clock.
    cdef int64_t deadline_in(self, double seconds) except -1
    # Puts a task in, and takes it out of the wheel it was in. Runs no Python before that is done; then on_earlier.
    cdef int schedule(self, TimerTask task, int64_t deadline) except -1

    # ---- C only
    cdef int clear(self) except -1
    cdef int64_t now_steps(self) except -1
    cdef int add_level(self) except -1
    cdef void place(self, Entry* entry, bint older) noexcept nogil
    cdef Entry* take_due(self, int64_t now) noexcept nogil
    cdef Entry* take_first(self, Bucket* bucket) noexcept nogil
    cdef Bucket* first_bucket(self) noexcept nogil
    cdef void push(self, Bucket* bucket) noexcept nogil
    cdef void pop(self) noexcept nogil
