# cython: language_level=3
"""The contract of the hierarchical timing wheel: who owns what, and what guards it.

The GIL is the lock, and without a GIL waiting_lock() is. The fields below are read and written with the lock held, in
stretches of C that call no Python, drop no reference and allocate no Python object. So no other thread, finalizer or
signal handler can run in between. A method that needs the clock reads the clock first, and the fields after that.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from kafkabuf.process._lock cimport kb_lock
from kafkabuf.broker.waiting._ring cimport Link


# The lock of all wheels and purgatories of the process, where there is no GIL.
cdef kb_lock* waiting_lock() noexcept


cdef enum:
    MAX_LEVELS = 64             # with two slots a wheel, 41 wheels reach FOREVER_S, and 50 reach END_OF_TIME_S


cdef struct Entry:
    # Part of a task. The link comes first, so a pointer to a link of a bucket's ring is one to its entry.
    Link link
    PyObject* task              # the task that the entry is part of
    PyObject* wheel             # the wheel that holds the task and owns a reference to it; NULL: no wheel holds it
    int64_t deadline            # tick at which the task runs, never before


cdef struct Bucket:
    # Tasks of one span of time, `wheel_size ** level` ticks long.
    # Head of the ring of tasks, in the order of arrival. Tasks that move down from a higher wheel were added before all
    # tasks that are in the bucket already, so they go to its front. Where two wheels move tasks down at the same tick,
    # the lower wheel does so first. A test compares the order with that of a heap.
    Link tasks
    int64_t starts              # first tick of the span: the bucket is due then
    int level                   # the bucket's wheel; 0 is the lowest
    bint queued                 # the bucket is in the bucket queue; it stays there when its tasks are cancelled


cdef class TimerTask:
    cdef Entry entry

    # The wheel calls this at the deadline. The task has left the wheel.
    cdef int fire(self) except -1
    # Returns False if the task was in no wheel.
    cdef bint leave_wheel(self) noexcept


cdef class Timeout(TimerTask):
    cdef object call            # None once it was called or cancelled, so that the callable is released at once

    # Returns `call` and leaves None: no other thread gets the callable.
    cdef object taken_call(self)


cdef class TimingWheel:
    # ---- fixed at construction
    cdef readonly object clock
    cdef object monotonic       # the clock's bound method
    cdef readonly int64_t tick_ms
    cdef readonly int64_t wheel_size
    cdef public object on_earlier       # called when a new task is due before `promised`

    # ---- guarded by the lock
    cdef int64_t current        # tick up to which buckets were taken; no task is due before it
    cdef int64_t promised       # tick at which the driver comes back, as the last next_expiry() returned it
    cdef Py_ssize_t size        # number of tasks
    cdef int levels             # number of wheels; add_level makes a further wheel when a task needs it
    cdef int64_t reach          # in ticks: a task that is due sooner needs no further wheel
    cdef Bucket* wheels[MAX_LEVELS]     # wheel_size buckets each
    cdef Bucket** queue         # the bucket queue: a heap ordered by `is_before`, with room for every bucket
    cdef Py_ssize_t queued      # buckets in the queue

    # ---- for other extensions
    # The tick before which a task that is due in `seconds` must not run. Reads the clock.
    cdef int64_t deadline_in(self, double seconds) except -1
    # Adds a task, and removes it from its previous wheel. Runs no Python before that is done; then it calls on_earlier.
    cdef int schedule(self, TimerTask task, int64_t deadline) except -1
    # `schedule` without its last step: True if the caller must call on_earlier.
    cdef bint insert(self, TimerTask task, int64_t deadline) except -1

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
