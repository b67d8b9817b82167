# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Hierarchical timing wheels: a task is added and cancelled in O(1), however many there are (Kafka's TimingWheel).

The lowest wheel has `wheel_size` buckets of one tick, each wheel above it buckets as long as the whole wheel below.
Only buckets are queued, at most `wheel_size` a wheel; when a bucket of a higher wheel comes up, its tasks move down. A
task runs at its tick, never before, and those of one tick in the order they were added. Nothing moves while nothing is
due: who drives the wheel sleeps until `next_expiry`.
"""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.math cimport isnan
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, malloc, realloc

from kafkabuf.broker.waiting._ring cimport is_empty, link_after, link_before, open_ring, unlink

cdef extern from "<math.h>" nogil:
    long long llround(double)

cdef enum:
    STEPS_PER_MS = 10_000     # times are whole steps of 100 ns
    DAY_MS = 86_400_000

cdef double FOREVER_S = 1e9     # thirty years; what is further away is as good as never
cdef double END_OF_TIME_S = 4e11    # where every clock stops; FOREVER_S and a tick later it is still an int64 of steps
cdef int64_t NEVER = INT64_MAX


cdef class TimerTask:
    """Something that a TimingWheel does later: a Timeout, or a DelayedOperation. In one wheel at a time."""

    def __cinit__(self):
        self.entry.task = <PyObject*> self

    cdef int fire(self) except -1:
        return 0

    cdef bint leave_wheel(self) noexcept:
        cdef PyObject* wheel = self.entry.wheel
        if wheel == NULL:
            return False
        unlink(&self.entry.link)
        self.entry.wheel = NULL
        (<TimingWheel> wheel).size -= 1
        Py_DECREF(self)         # the wheel's; the caller has one
        return True

    def cancel(self):
        """Does not run any more. No error where it has run or was cancelled. O(1)."""
        self.leave_wheel()


@cython.final
cdef class Timeout(TimerTask):
    """A call that is due later; made by TimingWheel.after."""

    cdef int fire(self) except -1:
        call, self.call = self.call, None
        if call is not None:
            call()
        return 0

    def cancel(self):
        """The call is not made any more, and let go at once. No error where it was made or cancelled. O(1)."""
        self.leave_wheel()
        self.call = None


cdef class TimingWheel:
    """Calls and operations that are due later, on an injected clock; any thread may add, cancel and advance.

        wheel = TimingWheel(SystemClock())
        timeout = wheel.after(0.2, give_up)     # in 200 ms, unless timeout.cancel() comes first
        while (due := wheel.next_expiry()) is not None:
            time.sleep(max(0.0, due - wheel.clock.monotonic()))
            wheel.advance()

    The wheel itself has no thread: somebody sleeps until `next_expiry()` and calls `advance()`, as broker/timer.py does
    in an event loop and ExpirationReaper in a thread. `on_earlier()` is called, by whichever thread adds a task, when
    that one must wake up sooner. Close a wheel that is given up, for the collector does not see what it holds.
    Raises ValueError for a tick below 1 ms or above a day, or a wheel of less than 2 or more than 65,536 buckets.
    """

    def __init__(self, clock, int64_t tick_ms=1, int64_t wheel_size=20):
        if not 1 <= tick_ms <= DAY_MS or not 2 <= wheel_size <= 65_536:
            raise ValueError(f"tick_ms is {tick_ms} and wheel_size {wheel_size}: a tick takes 1 ms to a day, and a "
                             f"wheel has 2 to 65,536 buckets")
        monotonic = clock.monotonic     # may run Python, and that this very method
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
        """Calls `call()` once `seconds` are over (at once, but not from here, where they are not above 0)."""
        cdef Timeout timeout = Timeout.__new__(Timeout)
        timeout.call = call
        self.schedule(timeout, self.deadline_in(seconds))
        return timeout

    def advance(self):
        """Runs all that is due by now, in order of deadline; how many. Never waits.

        An error of a task is the caller's; what else is due then runs with the next call.
        """
        cdef int64_t now = self.now_steps() // (self.tick_ms * STEPS_PER_MS)
        cdef Py_ssize_t ran = 0
        cdef Entry* due
        cdef TimerTask task
        while True:
            due = self.take_due(now)
            if due == NULL:
                return ran
            task = <TimerTask> due.task
            Py_DECREF(task)     # the wheel's
            ran += 1
            task.fire()

    def next_expiry(self):
        """When, on the clock, `advance` has something to do next; None: not before something is added.

        That may be no more than moving tasks down a wheel. Counts as a promise to come back then: `on_earlier` is
        called when that would be too late.
        """
        cdef Bucket* bucket = self.first_bucket()
        self.promised = NEVER if bucket == NULL else bucket.starts
        return None if bucket == NULL else bucket.starts * self.tick_ms / 1000.0

    def close(self):
        """Forgets every task, without running it. What is added later is kept, as by a new wheel."""
        self.clear()

    # ---- for other extensions

    cdef int64_t deadline_in(self, double seconds) except -1:
        cdef int64_t tick = self.tick_ms * STEPS_PER_MS
        if isnan(seconds):
            raise ValueError("the delay is not a number of seconds: nan")
        cdef int64_t now_steps = self.now_steps()
        cdef int64_t now = now_steps // tick
        cdef Bucket* bucket = self.first_bucket()
        if now > self.current and (bucket == NULL or bucket.starts > now):
            self.current = now      # a wheel long idle would otherwise take tasks of soon for tasks of much later
        return (now_steps + to_steps(min(max(seconds, 0.0), FOREVER_S)) + tick - 1) // tick

    cdef int schedule(self, TimerTask task, int64_t deadline) except -1:
        cdef Entry* entry = &task.entry
        deadline = max(deadline, self.current)
        while deadline - self.current >= self.reach:
            self.add_level()
        Py_INCREF(task)
        task.leave_wheel()
        entry.deadline = deadline
        entry.wheel = <PyObject*> self
        self.size += 1
        self.place(entry, False)
        if self.queue[0].starts < self.promised:
            self.promised = self.queue[0].starts
            if self.on_earlier is not None:
                self.on_earlier()
        return 0

    # ---- C only

    cdef int clear(self) except -1:
        cdef Bucket* bucket
        cdef TimerTask task
        while self.queued:
            bucket = self.queue[0]
            if is_empty(&bucket.tasks):
                self.pop()
            else:
                task = <TimerTask> (<Entry*> bucket.tasks.next).task
                task.leave_wheel()
        return 0

    cdef int64_t now_steps(self) except -1:
        """In steps: what a sum of doubles lacks or has too much must not make a task a tick late."""
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
        # Of the topmost wheel's buckets the first has begun, perhaps, so that it reaches one bucket less far.
        if self.levels == 0:
            self.reach = self.wheel_size - 1
        else:
            self.reach = self.reach * self.wheel_size if self.reach <= NEVER // self.wheel_size else NEVER
        self.levels += 1
        return 0

    cdef void place(self, Entry* entry, bint older) noexcept nogil:
        """Into the lowest wheel that reaches so far; `older`: than what is in that wheel, for it comes from above."""
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
        """Out of its bucket, whose reference becomes the caller's. NULL: nothing is due."""
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
        """The first that has tasks; those before it, whose tasks were all taken or cancelled, leave the queue."""
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


cdef bint is_before(Bucket* one, Bucket* other) noexcept nogil:
    """By time; at one time the lowest wheel comes last, and of the others, whose tasks it gets, the youngest first."""
    if one.starts != other.starts:
        return one.starts < other.starts
    return <unsigned int> (one.level - 1) < <unsigned int> (other.level - 1)
