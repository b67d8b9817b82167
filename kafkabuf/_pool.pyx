# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A producer's memory: an arena of `buffer.memory` bytes, handed out in slabs of `batch.size` (Kafka's BufferPool).

The arena is one NumPy array of bytes, made once. Everything below reads and writes it by address.

For a record larger than `batch.size` Kafka allocates a new buffer; this pool hands out a run of adjacent slabs. For a
small batch it hands out a block, which is a half, a quarter and so on of a slab. It allocates nothing after the
constructor. The slab that was freed last is reused first, so pages that are not needed are
never touched. The accounting identity holds at every instant: free + open + closed + in flight + scratch + loose =
total.

The rules of the critical section and the meaning of every field are in _pool.pxd.
"""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBuffer_FillInfo
from cpython.number cimport PyNumber_Index
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import os
from weakref import WeakSet

import numpy as np

from kafkabuf.process._lock cimport break_lock
from kafkabuf.memory._view cimport items_of, length_of, view_of
from kafkabuf.memory._blocks cimport (
    block_in_use, block_inconsistency, block_size, count_blocks, put_block, set_up_blocks, take_block, take_block_here,
    tear_down_blocks,
)
from kafkabuf.cpython._sealed cimport seal
from kafkabuf.memory._slabs cimport (
    CUT, MAX_SLABS, STATES, SlabState, count_states, in_use, inconsistency, put, set_up, take, take_here,
    tear_down,
)
from kafkabuf.clock import SystemClock
from kafkabuf.errors import AllocationTooLargeError, BufferExhaustedError, ClosedError, ConfigError
from kafkabuf.process.threads import new_waiter

cdef extern from "memory/_pages.h" nogil:
    void kb_prefer_huge_pages(unsigned char* memory, size_t size)

cdef extern from * nogil:
    bint unlikely(bint)     # Cython's own. Blocks are kept out of line, so that a slab costs no more for them

cdef extern from "process/_spin.h" nogil:
    void kb_spin_lock(kb_spin*)
    void kb_spin_unlock(kb_spin*)

cdef enum:
    QUEUED = -1         # Waiter.slab: the waiter is in the queue
    SHUT = -2           # Waiter.slab: the pool was closed
    LEFT = -3           # Waiter.slab: the waiter left the queue without memory
    POISON = 0xDD

cdef enum Validity:
    VALID
    RELEASED
    STALE
    PINNED

_STATE_NAMES = ("free", "cut", "open", "closed", "in_flight", "scratch")    # in the order of SlabState


@cython.final
@cython.no_gc_clear     # the arena must outlive every array of it
cdef class ReadOnlyArena:
    """The bytes of an arena as a buffer that nobody can write to.

    A NumPy array could be made writable again if it were made of the arena itself. NumPy refuses that for an array of
    this object, which also keeps the memory as long as such an array exists.
    """

    cdef object arena           # nobody else has it, so that nobody resizes it
    cdef unsigned char* base
    cdef Py_ssize_t size

    def __cinit__(self, arena):
        view = view_of(arena, 1, True)
        self.arena = arena
        self.base = <unsigned char*>items_of(view)
        self.size = length_of(view)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.base, self.size, True, flags)


seal(ReadOnlyArena)


def _new_arena(Py_ssize_t total):       # tests have other arenas
    """An array of `total` bytes of which np.empty() touches none."""
    try:
        return np.empty(total, np.uint8)
    except (MemoryError, ValueError):   # ValueError: more than an array can have
        raise MemoryError(f"no memory for buffer.memory of {total} bytes") from None


_pools = WeakSet()


def _after_fork_in_child():
    for pool in list(_pools):
        pool._forget_waiters()


os.register_at_fork(after_in_child=_after_fork_in_child)


cdef int call(hook, tuple arguments=()) except -1:
    # A hook may go between a look at the pool's field and the call: `forget_hooks` runs in another thread.
    if hook is not None:
        hook(*arguments)
    return 0


@cython.final
@cython.no_gc_clear     # the arena must outlive every slab; the collector breaks a cycle at another object
cdef class BufferPool:
    """`total` bytes cut into slabs of `slab_size`; any thread may allocate and release.

    An allocation that must wait calls `on_exhausted()` when it stands in the queue, so that a Sender woken by the call
    sees `waiting`. It calls `on_wait(seconds)` after the wait (Kafka's bufferpool-wait-time), and `on_failure()` if it
    got no memory in time. If such a hook raises, the allocation raises the hook's error and keeps no memory. `poison`
    overwrites released memory, which exposes code that still reads it. `arena` is all of the memory as a read-only
    NumPy array, for tools and tests: other threads write to it meanwhile. `memory`, a writable buffer of `total` bytes,
    is used in place of new memory: a mapped file. The constructor raises ConfigError for sizes
    that make no slab, and MemoryError if the machine refuses the arena.
    """

    def __cinit__(self, Py_ssize_t total, Py_ssize_t slab_size, *, clock=None, bint poison=False, on_wait=None,
                  on_exhausted=None, memory=None):
        if slab_size < 1 or total < slab_size:
            raise ConfigError(f"buffer.memory is {total} bytes and batch.size {slab_size} bytes: batch.size must be at "
                              f"least 1 and buffer.memory at least batch.size")
        self.total = total
        self.slab_size = slab_size
        self.slab_count = total // slab_size
        self.loose = total % slab_size
        if self.slab_count > MAX_SLABS:
            raise ConfigError(f"buffer.memory of {total} bytes makes {self.slab_count} slabs of batch.size {slab_size} "
                              f"bytes, more than the {MAX_SLABS} allowed: raise batch.size")
        self.poison = poison
        self.clock = SystemClock() if clock is None else clock
        self.on_wait = on_wait
        self.on_exhausted = on_exhausted
        cdef ReadOnlyArena arena = ReadOnlyArena.__new__(ReadOnlyArena, _new_arena(total) if memory is None else memory)
        if arena.size != total:
            raise ValueError(f"the memory has {arena.size} bytes, and the pool needs {total}")
        self.memory = arena
        self.base = arena.base
        self.arena = np.frombuffer(arena, np.uint8)
        kb_prefer_huge_pages(self.base, total)
        if set_up(&self.table, self.slab_count) < 0 or set_up_blocks(&self.blocks, self.slab_count, slab_size) < 0:
            raise MemoryError(f"no memory for the bookkeeping of {self.slab_count} slabs")
        _pools.add(self)

    def __dealloc__(self):
        # No thread can be inside the pool any more: a waiting thread and every Slab hold a reference to it.
        tear_down(&self.table)
        tear_down_blocks(&self.blocks)

    # ---- for other extensions

    cdef Py_ssize_t slabs_for(self, Py_ssize_t nbytes) noexcept nogil:
        return nbytes // self.slab_size + (nbytes % self.slab_size != 0)

    cdef Py_ssize_t extent_for(self, Py_ssize_t nbytes) noexcept nogil:
        cdef int level = 0
        if nbytes > self.slab_size:
            return self.slabs_for(nbytes)
        while level < self.blocks.levels and 0 < nbytes <= block_size(&self.blocks, level + 1):
            level += 1
        return -level if level else self.slabs_for(nbytes)

    cdef bint exists(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil:
        if extent > 0:
            return 0 <= slab and extent <= self.slab_count - slab
        return 0 < -extent <= self.blocks.levels and 0 <= slab < self.slab_count << self.blocks.levels

    cdef Py_ssize_t try_allocate(self, Py_ssize_t extent) noexcept nogil:
        cdef Py_ssize_t slab = -1
        kb_spin_lock(&self.lock)
        if self.first_waiter == NULL and not self.closed:
            if unlikely(extent < 0):
                slab = take_block(&self.blocks, &self.table, -extent)
            else:
                slab = take(&self.table, extent)
        kb_spin_unlock(&self.lock)
        return slab

    cdef Py_ssize_t wait_allocate(self, Py_ssize_t extent, object deadline_s) except -1:
        cdef Waiter* me
        cdef Py_ssize_t slab
        self.require_possible(extent)
        wake = new_waiter()
        timeout = None if deadline_s is None else deadline_s - self.clock.monotonic()
        # Not on the stack: while a greenlet waits, other greenlets use its part of the stack.
        me = <Waiter*> malloc(sizeof(Waiter))
        if me == NULL:
            raise MemoryError()
        me.extent = extent
        me.wake = <PyObject*> wake
        try:
            if self.join(me):
                self.wait_turn(me, wake, timeout)
            slab = me.slab
        finally:
            free(me)
        if slab == LEFT:
            raise self.exhausted_error(extent, timeout)
        if slab == SHUT:
            raise ClosedError("the buffer pool was closed and hands out no more memory")
        return slab

    cdef bint occupy(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil:
        cdef bint free_until_now = False
        kb_spin_lock(&self.lock)
        if extent > 0:
            free_until_now = take_here(&self.table, slab, extent)
        elif self.exists(slab, extent):
            free_until_now = take_block_here(&self.blocks, &self.table, slab, -extent)
        kb_spin_unlock(&self.lock)
        return free_until_now

    cdef int set_state(self, Py_ssize_t slab, Py_ssize_t extent, SlabState state) noexcept nogil:
        cdef int result = -1
        cdef Py_ssize_t i
        kb_spin_lock(&self.lock)
        if state > CUT and in_use(&self.table, slab, extent):
            for i in range(slab, slab + extent):
                self.table.slots[i].state = state
            result = 0
        elif unlikely(state > CUT and block_in_use(&self.blocks, &self.table, slab, -extent)):
            self.blocks.units[slab].state = state
            result = 0
        else:
            self.refused_total += 1
        kb_spin_unlock(&self.lock)
        return result

    cdef int release(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil:
        cdef int result = -1
        kb_spin_lock(&self.lock)
        if in_use(&self.table, slab, extent):
            if self.poison:
                memset(self.address(slab, extent), POISON, self.size_of(extent))
            put(&self.table, slab, extent)
            result = 0
        elif unlikely(block_in_use(&self.blocks, &self.table, slab, -extent)):
            self.put_run(slab, extent)
            result = 0
        else:
            self.refused_total += 1
        self.unlock_and_serve()
        return result

    cdef uint32_t generation(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil:
        kb_spin_lock(&self.lock)
        cdef uint32_t generation = self.generation_locked(slab, extent)
        kb_spin_unlock(&self.lock)
        return generation

    cdef bint exhausted(self) noexcept nogil:
        kb_spin_lock(&self.lock)
        cdef bint exhausted = self.first_waiter != NULL
        kb_spin_unlock(&self.lock)
        return exhausted

    # ---- inside the critical section

    cdef Py_ssize_t take_run(self, Py_ssize_t extent) noexcept nogil:
        if extent > 0:
            return take(&self.table, extent)
        return take_block(&self.blocks, &self.table, -extent)

    cdef void put_run(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil:
        if self.poison:
            memset(self.address(slab, extent), POISON, self.size_of(extent))
        if extent > 0:
            put(&self.table, slab, extent)
        else:
            put_block(&self.blocks, &self.table, slab, -extent)

    cdef void unlink(self, Waiter* waiter) noexcept nogil:
        cdef Waiter** link = &self.first_waiter
        while link[0] != NULL and link[0] != waiter:
            link = &link[0].next
        if link[0] == waiter:       # otherwise disown() has emptied the queue
            link[0] = waiter.next
            self.waiting -= 1

    cdef PyObject* serve(self) noexcept nogil:
        """Give the oldest waiter its run, or SHUT after close. Returns its lock; NULL if it must go on waiting."""
        cdef Waiter* head = self.first_waiter
        if head == NULL:
            return NULL
        head.slab = SHUT if self.closed else self.take_run(head.extent)
        if head.slab == QUEUED:
            return NULL
        self.unlink(head)
        return head.wake        # not `head`, which may be gone after the unlock: its thread can time out by itself

    # ---- outside the critical section

    cdef void unlock_and_serve(self) noexcept nogil:
        """Leave the critical section, and serve waiters in order until memory runs out.

        It enters the critical section once for each waiter, because a served waiter may be gone as soon as the lock is
        free. No thread overtakes in between: while the queue is not empty, try_allocate refuses.
        """
        cdef PyObject* wake = NULL if self.first_waiter == NULL else self.serve()
        kb_spin_unlock(&self.lock)
        while wake != NULL:
            wake_up(wake)
            kb_spin_lock(&self.lock)
            wake = self.serve()
            kb_spin_unlock(&self.lock)

    cdef bint join(self, Waiter* me) noexcept:
        """Take the run, or be refused, or join the end of the queue. Returns whether `me` joined the queue."""
        cdef Waiter** link = &self.first_waiter
        kb_spin_lock(&self.lock)
        me.slab = QUEUED
        if self.closed:
            me.slab = SHUT
        elif self.first_waiter == NULL:
            me.slab = self.take_run(me.extent)
        cdef bint queued = me.slab == QUEUED
        if queued:
            while link[0] != NULL:
                link = &link[0].next
            link[0] = me
            me.next = NULL
            Py_INCREF(<object> me.wake)
            self.waiting += 1
            self.waits_total += 1
        kb_spin_unlock(&self.lock)
        return queued

    cdef void leave(self, Waiter* me) noexcept:
        """Leave the queue, with or without memory. Serve the waiters behind, which may have waited for `me` only."""
        kb_spin_lock(&self.lock)
        if me.slab == QUEUED:
            self.unlink(me)
            me.slab = LEFT
            Py_DECREF(<object> me.wake)     # not the last reference: the waiting thread has its own
        self.unlock_and_serve()

    cdef int wait_turn(self, Waiter* me, object wake, object timeout) except -1:
        cdef double seconds
        try:
            call(self.on_exhausted)
            started = self.clock.monotonic()
            self.clock.wait(wake, timeout)
            self.leave(me)
            seconds = self.clock.monotonic() - started
            kb_spin_lock(&self.lock)
            self.wait_time_total += seconds
            kb_spin_unlock(&self.lock)
            call(self.on_wait, (seconds,))
        except BaseException:       # KeyboardInterrupt during the wait, or an error of a hook
            self.leave(me)
            if me.slab >= 0:
                self.release(me.slab, me.extent)
            raise
        return 0

    cdef int require_possible(self, Py_ssize_t extent) except -1:
        if extent == 0 or -extent > self.blocks.levels:
            raise ValueError(f"extent must be a number of slabs, or minus 1 to minus {self.blocks.levels} for a part "
                             f"of a slab, found {extent}")
        if extent > self.slab_count:
            raise AllocationTooLargeError(
                f"{extent * self.slab_size} bytes ({extent} slabs of {self.slab_size}) are more than the whole pool "
                f"of {self.total} bytes ({self.slab_count} slabs): raise buffer.memory, or send smaller records")
        return 0

    cdef object exhausted_error(self, Py_ssize_t extent, object timeout):
        kind = f"{extent} adjacent slabs" if extent > 0 else f"a part of a slab of {self.slab_size} bytes"
        return self.no_memory(
            f"buffer.memory is full: no {self.size_of(extent)} bytes ({kind}) became free within "
            f"{max(0, round(timeout * 1000))} ms; {self.free_bytes} of {self.total} bytes are free and "
            f"{self.waiting} threads wait: raise buffer.memory, or max.block.ms to wait longer, or send more slowly"
            f"{self.why()}")

    def why(self, batch=None):
        """Why no memory, or not the memory of `batch`, comes back: the end of an error text."""
        hook = self.on_why
        return "" if hook is None else hook(batch)

    cdef object no_memory(self, str text):
        call(self.on_failure)
        return BufferExhaustedError(text)

    # ---- for Python

    def allocate(self, nbytes, timeout):
        """A run of at least `nbytes`, as a Slab; waits up to `timeout` seconds (None: for ever).

        First come, first served, whatever the size: no thread overtakes a waiting thread. Raises
        AllocationTooLargeError at once if the whole pool is too small, BufferExhaustedError after the time-out,
        ClosedError after close, ValueError for less than one byte.
        """
        nbytes = PyNumber_Index(nbytes)     # converted once, so that the checks and the count use the same number
        if nbytes < 1:
            raise ValueError(f"nbytes must be at least 1, found {nbytes}")
        if nbytes > self.total:
            raise AllocationTooLargeError(f"{nbytes} bytes are more than the whole pool of {self.total} bytes: raise "
                                          f"buffer.memory, or send smaller records")
        cdef Slab handle = Slab(self)       # created first: after memory is taken, nothing may fail before it is held
        handle.extent = self.extent_for(nbytes)
        handle.nbytes = self.size_of(handle.extent)
        handle.first = self.try_allocate(handle.extent)
        if handle.first < 0:
            deadline_s = None if timeout is None else self.clock.monotonic() + timeout
            handle.first = self.wait_allocate(handle.extent, deadline_s)
        handle.generation = self.generation(handle.first, handle.extent)
        handle.held = True
        return handle

    def close(self):
        """Hand out no more memory: waiting threads raise ClosedError, and so does allocate. Releasing still works."""
        kb_spin_lock(&self.lock)
        self.closed = True
        self.unlock_and_serve()

    def _forget_waiters(self):
        """In a forked child: the lock's holder and the waiting threads do not exist, and must get no memory."""
        kb_spin_unlock(&self.lock)
        break_lock(&self.guard)
        self.first_waiter = NULL
        self.waiting = 0

    def disown(self):
        """Hand out no more memory, in a forked child whose parent goes on with what lies in it."""
        self._forget_waiters()
        self.closed = self.disowned = True

    def forget_hooks(self):
        """Call no hook any more: the Sender has ended.

        The hooks lead to the Sender, and its settings to the user's callbacks and serializers. A RecordFuture, into
        which the garbage collector does not look, holds the pool. It would keep an object of the user for ever that has
        futures, and whose method a setting knows.
        """
        self.on_wait = self.on_exhausted = self.on_failure = self.on_why = None

    @property
    def free_bytes(self):
        """Bytes in free slabs and free blocks."""
        cdef Py_ssize_t level, nbytes = self.table.free_count * self.slab_size
        for level in range(1, self.blocks.levels + 1):
            nbytes += self.blocks.free_count[level] * block_size(&self.blocks, level)
        return nbytes

    def accounting(self):
        """Bytes by state, recounted: free, open, closed, in_flight, scratch, loose. Their sum is `total`.

        The few bytes at the end of a slab that is cut into blocks of rounded sizes are loose.
        """
        cdef Py_ssize_t[STATES] counts
        cdef Py_ssize_t i, tails
        kb_spin_lock(&self.lock)
        count_states(&self.table, counts)
        for i in range(STATES):
            counts[i] *= self.slab_size
        tails = count_blocks(&self.blocks, &self.table, self.slab_size, counts)
        kb_spin_unlock(&self.lock)
        nbytes = {name: counts[i] for i, name in enumerate(_STATE_NAMES) if i != CUT}
        nbytes["loose"] = self.loose + tails
        return nbytes

    def check(self):
        """Raise AssertionError unless states, free lists, bitmap, counts and the accounting identity all agree."""
        kb_spin_lock(&self.lock)
        cdef const char* wrong = inconsistency(&self.table)
        if wrong == NULL:
            wrong = block_inconsistency(&self.blocks, &self.table)
        kb_spin_unlock(&self.lock)
        if wrong != NULL:
            raise AssertionError(wrong.decode())
        nbytes = self.accounting()
        if sum(nbytes.values()) != self.total:
            raise AssertionError(f"the sum of {nbytes} is not {self.total} bytes")


cdef void wake_up(PyObject* wake) noexcept with gil:
    """Wake a waiter, and consume the queue's reference to its lock."""
    (<object> wake).release()
    Py_DECREF(<object> wake)


@cython.final
@cython.no_gc_clear     # `__del__` and a release in another thread need the pool until the end
cdef class Slab:
    """A run of slabs held from Python, released exactly once: by `release`, at the end of `with`, or when collected.

    BufferPool.allocate creates handles that hold a run; Slab(pool) itself creates a handle that holds nothing. A Slab
    exports its memory as a writable buffer. While such a memoryview exists, release raises BufferError.
    """

    def __cinit__(self, BufferPool pool not None):
        self.pool = pool

    def __del__(self):
        if self.held:
            self.give_back()

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc, traceback):
        if self.held:
            self.release()

    def release(self):
        """Return the run. Raises BufferError while memoryviews exist, ValueError if the handle has lost the run."""
        self.require(self.give_back())

    def detach(self):
        """Pass the run to the caller and return the index of its first slab: this handle then holds nothing."""
        self.require(self.validity())
        self.held = False
        return self.first

    @property
    def address(self):
        """The memory address of the run's first byte."""
        self.require(self.validity())
        return <size_t> self.pool.address(self.first, self.extent)

    @property
    def buffer(self):
        """A writable memoryview of the whole run; the run cannot be released while it exists."""
        return memoryview(self)

    @property
    def state(self):
        """open, closed, in_flight or scratch. Setting it moves the run's bytes to another entry of `accounting`."""
        self.require(self.validity())
        if self.extent < 0:
            return _STATE_NAMES[self.pool.blocks.units[self.first].state]
        return _STATE_NAMES[self.pool.table.slots[self.first].state]

    @state.setter
    def state(self, name):
        self.require(self.validity())
        if name not in _STATE_NAMES or self.pool.set_state(self.first, self.extent, _STATE_NAMES.index(name)) < 0:
            raise ValueError(f"state {name!r} cannot be set: use one of {', '.join(_STATE_NAMES[2:])}, or release()")

    def __getbuffer__(self, Py_buffer* view, int flags):
        kb_spin_lock(&self.pool.lock)
        cdef int validity = self.validity_locked()
        if validity == VALID:
            self.exports += 1
        kb_spin_unlock(&self.pool.lock)
        self.require(validity)
        view.obj = self
        view.buf = self.pool.address(self.first, self.extent)
        view.len = self.nbytes
        view.itemsize = 1
        view.readonly = False
        view.ndim = 1
        view.format = NULL
        if flags & PyBUF_FORMAT:
            view.format = b"B"
        view.shape = &self.nbytes
        view.strides = &view.itemsize
        view.suboffsets = NULL
        view.internal = NULL

    def __releasebuffer__(self, Py_buffer* view):
        kb_spin_lock(&self.pool.lock)
        self.exports -= 1
        kb_spin_unlock(&self.pool.lock)

    cdef int validity(self) noexcept nogil:
        kb_spin_lock(&self.pool.lock)
        cdef int validity = self.validity_locked()
        kb_spin_unlock(&self.pool.lock)
        return validity

    cdef int validity_locked(self) noexcept nogil:
        if not self.held:
            return RELEASED
        if self.pool.generation_locked(self.first, self.extent) != self.generation:
            return STALE
        return VALID

    cdef int give_back(self) noexcept nogil:
        """Release the run. If several threads release at once, only one gets VALID. A stale handle frees nothing."""
        kb_spin_lock(&self.pool.lock)
        cdef int validity = self.validity_locked()
        if validity == VALID and self.exports > 0:
            validity = PINNED
        else:
            self.held = False
        if validity == VALID:
            self.pool.put_run(self.first, self.extent)
        self.pool.unlock_and_serve()
        return validity

    cdef int require(self, int validity) except -1:
        if validity == RELEASED:
            raise ValueError(f"this handle does not hold slab {self.first} any more: the slab was released or detached")
        if validity == STALE:
            raise ValueError(f"slab {self.first} was released, but not by this handle: the slab's generation is "
                             f"{self.pool.generation(self.first, self.extent)}, and the handle's is {self.generation}")
        if validity == PINNED:
            raise BufferError(f"slab {self.first} has {self.exports} memoryviews: release them first")
        return 0
