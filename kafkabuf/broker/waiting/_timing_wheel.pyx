# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Hierarchical timing wheels: adding and cancelling a task is O(1), however many tasks there are (Kafka's TimingWheel).

The lowest wheel has `wheel_size` buckets of one tick. A bucket of each higher wheel is as long as the whole wheel
below. Only buckets are queued, at most `wheel_size` a wheel. When a bucket of a higher wheel is due, its tasks move
down. A task runs at its tick, never before, and the tasks of one tick run in the order in which they were added. No
task moves until a bucket is due: the driver of the wheel sleeps until `next_expiry`.
"""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.math cimport isnan
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, malloc, realloc

from kafkabuf.process._lock cimport enter_lock, kb_lock, leave_lock
from kafkabuf.broker.waiting._ring cimport is_empty, link_after, link_before, open_ring, unlink

cdef extern from "<math.h>" nogil:
    long long llround(double)

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    STEPS_PER_MS = 10_000     # a step is 100 ns; times are whole steps
    DAY_MS = 86_400_000

cdef double FOREVER_S = 1e9     # thirty years: the longest delay, a longer one is cut to it
cdef double END_OF_TIME_S = 4e11    # the latest clock reading; FOREVER_S and a tick more still fit in an int64 of steps
cdef int64_t NEVER = INT64_MAX

cdef kb_lock the_lock
cdef kb_lock* guard = &the_lock


cdef kb_lock* waiting_lock() noexcept:
    return guard


cdef class TimerTask:
    """A task that a TimingWheel runs later: a Timeout, or a DelayedOperation. It is in one wheel at a time."""

    def __cinit__(self):
        self.entry.task = <PyObject*> self

    cdef int fire(self) except -1:
        return 0

    cdef bint leave_wheel(self) noexcept:
        cdef PyObject* wheel
        enter_lock(guard)
        wheel = self.entry.wheel
        if wheel != NULL:
            unlink(&self.entry.link)
            self.entry.wheel = NULL
            (<TimingWheel> wheel).size -= 1
            Py_DECREF(self)         # the wheel's reference; the caller has its own
        leave_lock(guard)
        return wheel != NULL

    def cancel(self):
        """Cancels the task. Does nothing if the task has run or was cancelled. O(1)."""
        self.leave_wheel()


@cython.final
cdef class Timeout(TimerTask):
    """A call that is due later. TimingWheel.after makes it."""

    cdef int fire(self) except -1:
        call = self.taken_call()
        if call is not None:
            call()
        return 0

    cdef object taken_call(self):
        enter_lock(guard)
        call, self.call = self.call, None
        leave_lock(guard)
        return call

    def cancel(self):
        """Cancels the call and releases it at once. Does nothing if the call was made or cancelled. O(1)."""
        self.leave_wheel()
        self.taken_call()


cdef class TimingWheel:
    """Calls and operations that are due later, on an injected clock. Any thread may add, cancel and advance.

        wheel = TimingWheel(SystemClock())
        timeout = wheel.after(0.2, give_up)     # in 200 ms, unless timeout.cancel() comes first
        while (due := wheel.next_expiry()) is not None:
            time.sleep(max(0.0, due - wheel.clock.monotonic()))
            wheel.advance()

    The wheel has no thread. A driver sleeps until `next_expiry()` and calls `advance()`: Timer in an event loop, and
    ExpirationReaper in a thread. A thread that adds a task calls `on_earlier()` if the driver must wake up sooner.
    Close a wheel that you give up, for the garbage collector does not see what the wheel holds. Raises ValueError for a
    tick below 1 ms or above a day, and for a wheel of less than 2 or more than 65,536 buckets.
    """

    def __init__(self, clock, int64_t tick_ms=1, int64_t wheel_size=20):
        if not 1 <= tick_ms <= DAY_MS or not 2 <= wheel_size <= 65_536:
            raise ValueError(f"tick_ms is {tick_ms} and wheel_size {wheel_size}: a tick takes 1 ms to a day, and a "
                             f"wheel has 2 to 65,536 buckets")
        monotonic = clock.monotonic     # may run Python code, even this method
        if self.tick_ms:
            raise ValueError("a TimingWheel is initialized once")
        self.clock = clock
        self.monotonic = monotonic
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.promised = NEVER

    def __dealloc__(self):
        self.clear()
        for level in range(self.levels):
            free(self.wheels[level])
        free(self.queue)

    def __len__(self):
        return self.size

    def after(self, double seconds, call not None):
        """Calls `call()` once `seconds` are over. With 0 or less the next `advance` calls it, never this method."""
        cdef Timeout timeout = Timeout.__new__(Timeout)
        timeout.call = call
        self.schedule(timeout, self.deadline_in(seconds))
        return timeout

    def advance(self, Py_ssize_t most=PY_SSIZE_T_MAX):
        """Runs the tasks that are due by now, at most `most`, in order of deadline. Returns how many tasks ran. Never
        waits.

        Raises the error of a task. The other due tasks then run with the next call.
        """
        cdef int64_t now = self.now_steps() // (self.tick_ms * STEPS_PER_MS)
        cdef Py_ssize_t ran = 0
        cdef Entry* due
        cdef TimerTask task
        while ran < most:
            enter_lock(guard)
            due = self.take_due(now)
            leave_lock(guard)
            if due == NULL:
                break
            task = <TimerTask> due.task
            Py_DECREF(task)     # the wheel's reference
            ran += 1
            task.fire()
        return ran

    def next_expiry(self):
        """The clock time at which `advance` next has work; None if it has no work until a task is added.

        The work may be only to move tasks down a wheel. The call promises that the driver comes back then: the wheel
        calls `on_earlier` when a new task is due before that.
        """
        cdef int64_t promised
        enter_lock(guard)
        cdef Bucket* bucket = self.first_bucket()
        self.promised = promised = NEVER if bucket == NULL else bucket.starts
        leave_lock(guard)
        return None if promised == NEVER else promised * self.tick_ms / 1000.0

    def close(self):
        """Forgets every task, without running it. The wheel then takes new tasks as a new wheel does.

        The owner calls this when it gives the wheel up. The links are plain C, which the garbage collector does not
        see: a cycle through a task would stay.
        """
        self.clear()

    # ---- for other extensions

    cdef int64_t deadline_in(self, double seconds) except -1:
        cdef int64_t tick = self.tick_ms * STEPS_PER_MS
        if isnan(seconds):
            raise ValueError("the delay is not a number of seconds: nan")
        cdef int64_t now_steps = self.now_steps()
        cdef int64_t now = now_steps // tick
        enter_lock(guard)
        cdef Bucket* bucket = self.first_bucket()
        if now > self.current and (bucket == NULL or bucket.starts > now):
            self.current = now      # else a wheel that was idle for long would put a task that is due soon far too high
        leave_lock(guard)
        return (now_steps + to_steps(min(max(seconds, 0.0), FOREVER_S)) + tick - 1) // tick

    cdef int schedule(self, TimerTask task, int64_t deadline) except -1:
        if self.insert(task, deadline) and self.on_earlier is not None:
            self.on_earlier()
        return 0

    cdef bint insert(self, TimerTask task, int64_t deadline) except -1:
        cdef Entry* entry = &task.entry
        cdef bint earlier
        enter_lock(guard)
        try:
            deadline = max(deadline, self.current)
            while deadline - self.current >= self.reach:
                self.add_level()
            Py_INCREF(task)
            task.leave_wheel()
            entry.deadline = deadline
            entry.wheel = <PyObject*> self
            self.size += 1
            self.place(entry, False)
            earlier = self.queue[0].starts < self.promised
            if earlier:
                self.promised = self.queue[0].starts
            return earlier
        finally:
            leave_lock(guard)

    # ---- C only

    cdef int clear(self) except -1:
        cdef Bucket* bucket
        cdef TimerTask task = None
        while self.queued:
            enter_lock(guard)
            bucket = self.first_bucket()
            if bucket != NULL:
                task = <TimerTask> (<Entry*> bucket.tasks.next).task
                task.leave_wheel()
            leave_lock(guard)
            task = None     # drops a last reference outside the lock
        return 0

    cdef int64_t now_steps(self) except -1:
        """The clock in whole steps, so that the rounding error of a sum of doubles never makes a task a tick late."""
        cdef double seconds = self.monotonic()
        if isnan(seconds):
            raise ValueError("the clock's monotonic() is not a number of seconds: nan")
        return to_steps(min(max(seconds, -END_OF_TIME_S), END_OF_TIME_S))

    cdef int add_level(self) except -1:
        cdef int64_t slot
        cdef Py_ssize_t buckets = (self.levels + 1) * self.wheel_size
        cdef Bucket* wheel = <Bucket*> malloc(self.wheel_size * sizeof(Bucket))
        cdef Bucket** queue = <Bucket**> realloc(self.queue, buckets * sizeof(Bucket*))
        if queue != NULL:
            self.queue = queue
        if wheel == NULL or queue == NULL:
            free(wheel)
            raise MemoryError(f"no memory for a timing wheel of {self.wheel_size} buckets")
        for slot in range(self.wheel_size):
            open_ring(&wheel[slot].tasks)
            wheel[slot].level = self.levels
            wheel[slot].queued = False
        self.wheels[self.levels] = wheel
        # The first bucket of the topmost wheel may have begun, so the wheel reaches one bucket less far.
        if self.levels == 0:
            self.reach = self.wheel_size - 1
        else:
            self.reach = self.reach * self.wheel_size if self.reach <= NEVER // self.wheel_size else NEVER
        self.levels += 1
        return 0

    cdef void place(self, Entry* entry, bint older) noexcept nogil:
        """Puts the entry into the lowest wheel that reaches its deadline. `older`: the entry comes from a higher wheel,
        so that entry is older than the entries of this wheel."""
        cdef int level = 0
        cdef int64_t unit = 1, span = entry.deadline, current = self.current
        cdef Bucket* bucket
        while span - current >= self.wheel_size:
            span //= self.wheel_size
            current //= self.wheel_size
            unit *= self.wheel_size
            level += 1
        bucket = &self.wheels[level][span % self.wheel_size]
        if older:
            link_after(&bucket.tasks, &entry.link)
        else:
            link_before(&bucket.tasks, &entry.link)
        if not bucket.queued:
            bucket.starts = span * unit
            self.push(bucket)

    cdef Entry* take_due(self, int64_t now) noexcept nogil:
        """Takes the next due entry out of its bucket; the caller takes over the reference. NULL: no task is due."""
        cdef Bucket* bucket = self.first_bucket()
        cdef Link* link
        while bucket != NULL and bucket.starts <= now:
            self.current = bucket.starts
            if bucket.level == 0:
                return self.take_first(bucket)
            self.pop()
            while not is_empty(&bucket.tasks):
                link = bucket.tasks.prev
                unlink(link)
                self.place(<Entry*> link, True)
            bucket = self.first_bucket()
        self.current = max(self.current, now)
        return NULL

    cdef Entry* take_first(self, Bucket* bucket) noexcept nogil:
        cdef Entry* entry = <Entry*> bucket.tasks.next
        unlink(&entry.link)
        entry.wheel = NULL
        self.size -= 1
        return entry

    # ---- the bucket queue

    cdef Bucket* first_bucket(self) noexcept nogil:
        """The first bucket with tasks. Buckets before it, whose tasks were all taken or cancelled, leave the queue."""
        while self.queued and is_empty(&self.queue[0].tasks):
            self.pop()
        return self.queue[0] if self.queued else NULL

    cdef void push(self, Bucket* bucket) noexcept nogil:
        cdef Py_ssize_t child = self.queued, parent
        while child > 0:
            parent = (child - 1) // 2
            if not is_before(bucket, self.queue[parent]):
                break
            self.queue[child] = self.queue[parent]
            child = parent
        self.queue[child] = bucket
        self.queued += 1
        bucket.queued = True

    cdef void pop(self) noexcept nogil:
        cdef Bucket* last = self.queue[self.queued - 1]
        cdef Py_ssize_t parent = 0, child = 1
        self.queue[0].queued = False
        self.queued -= 1
        while child < self.queued:
            if child + 1 < self.queued and is_before(self.queue[child + 1], self.queue[child]):
                child += 1
            if not is_before(self.queue[child], last):
                break
            self.queue[parent] = self.queue[child]
            parent = child
            child = 2 * parent + 1
        self.queue[parent] = last


cdef inline int64_t to_steps(double seconds) noexcept nogil:
    return llround(seconds * (1000 * STEPS_PER_MS))


cdef bint is_before(Bucket* bucket, Bucket* other) noexcept nogil:
    """Orders buckets by time. Of buckets that start at the same tick, the lowest wheel's comes last, because it gets
    the tasks of the other buckets. Of these the lower wheel's, with the younger tasks, comes first."""
    if bucket.starts != other.starts:
        return bucket.starts < other.starts
    return <unsigned int> (bucket.level - 1) < <unsigned int> (other.level - 1)
