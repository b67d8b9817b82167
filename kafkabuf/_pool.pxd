# cython: language_level=3
"""The contract of the buffer pool: the functions that other extensions may call without the GIL.

The pool hands out *runs*. The *extent* of a run is its size: n > 0 means n adjacent slabs, and -k means a block, which
is a 2^k-th part of a slab. The extent and the first slab name a run; for a block it is the first unit (_blocks.pxd).

The critical section runs no Python code and never needs the GIL, so any thread may enter it, with or without the GIL,
and a garbage collection can never re-enter it. Waiting threads stand in an intrusive queue under the same lock; only
waking a thread takes the GIL.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from kafkabuf.memory._blocks cimport BlockTable, block_size
from kafkabuf.process._lock cimport kb_lock
# The pool's users import SlabState and its members from here.
from kafkabuf.memory._slabs cimport CLOSED, FREE, IN_FLIGHT, OPEN, SCRATCH, SlabState, SlabTable


cdef extern from "process/_spin.h" nogil:
    ctypedef struct kb_spin:
        pass


cdef struct Waiter:
    # The waiting thread frees it. It is in the queue exactly while `slab` is -1. Guarded by the pool's lock.
    Py_ssize_t extent
    Py_ssize_t slab         # -1: queued; >= 0: the run handed over; -2: the pool was closed; -3: left without memory
    Waiter* next
    PyObject* wake          # new_waiter() on which the thread blocks. The queue owns this reference: the thread that
    #                         unlinks the waiter must release the lock or drop the reference


cdef class BufferPool:
    cdef object __weakref__
    # ---- fixed at construction
    cdef readonly Py_ssize_t total          # bytes: slab_count * slab_size + loose
    cdef readonly Py_ssize_t slab_size      # bytes
    cdef readonly Py_ssize_t slab_count
    cdef readonly Py_ssize_t loose          # bytes at the end, less than a slab; never handed out
    cdef readonly bint poison               # the pool overwrites released memory with 0xDD
    # The owner of the `total` bytes. The collector cannot clear it.
    cdef object memory
    # The bytes as a read-only NumPy array. It does not keep them for the pool: array.__setstate__() lets go of them.
    cdef readonly object arena
    cdef unsigned char* base                # the first byte of the arena; extensions write through it
    cdef object clock
    # May be set later: the producer creates the pool before the Sender.
    cdef public object on_wait, on_exhausted, on_failure
    cdef public object on_why               # callable(Batch or None) -> str: why memory does not come back; or None

    # The producer's lock (_lock.h): it guards the queues and batches. It lives here because all of them know the pool.
    # The pool itself never takes it.
    cdef kb_lock guard

    # ---- guarded by `lock`
    cdef kb_spin lock                       # zero means free; Python zeroes every new object
    cdef SlabTable table
    cdef BlockTable blocks
    cdef Waiter* first_waiter               # the oldest; while a thread waits, no other thread gets memory
    cdef readonly bint closed
    cdef readonly bint disowned             # in a forked child: the pool belongs to the parent, and is `closed` here
    cdef readonly Py_ssize_t waiting        # threads in the queue
    cdef readonly Py_ssize_t waits_total    # allocations that had to wait, also if they got no memory
    cdef readonly double wait_time_total    # seconds that these allocations waited
    cdef readonly Py_ssize_t refused_total  # calls of release and set_state that returned -1: each is a caller's bug

    # ---- for other extensions; `slab` and `extent` name a run that the caller owns
    cdef inline unsigned char* address(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil:
        cdef int levels = self.blocks.levels
        if extent > 0:
            return self.base + slab * self.slab_size
        return (self.base + (slab >> levels) * self.slab_size
                + (slab & ((<Py_ssize_t> 1 << levels) - 1)) * self.blocks.unit_size)

    # Bytes of a run.
    cdef inline Py_ssize_t size_of(self, Py_ssize_t extent) noexcept nogil:
        return extent * self.slab_size if extent > 0 else block_size(&self.blocks, -extent)

    # A hint, read without the lock: nobody has to save memory now.
    cdef inline bint plenty(self) noexcept nogil:
        return self.table.free_count > self.slab_count - (self.slab_count >> 2)

    # The extent of the smallest run that holds nbytes; 0 for 0 bytes.
    cdef Py_ssize_t extent_for(self, Py_ssize_t nbytes) noexcept nogil
    # How many whole slabs hold nbytes.
    cdef Py_ssize_t slabs_for(self, Py_ssize_t nbytes) noexcept nogil
    # Whether a run of this extent may begin there.
    cdef bint exists(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil
    # A run, now in state OPEN; -1 if no such run is free, while threads wait for memory (no caller overtakes them), and
    # after close.
    cdef Py_ssize_t try_allocate(self, Py_ssize_t extent) noexcept nogil
    # Take this very run, now in state OPEN. False, and no change, if a part of it is not free.
    cdef bint occupy(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil
    # As try_allocate, but waits its turn until deadline_s, a time of clock.monotonic() (None: for ever). Needs the GIL.
    # Raises AllocationTooLargeError, BufferExhaustedError, ClosedError.
    cdef Py_ssize_t wait_allocate(self, Py_ssize_t extent, object deadline_s) except -1
    # Returns 0; or -1, without effect, if a slab of the run, or the block, is not in use, or if `state` is FREE or CUT.
    cdef int set_state(self, Py_ssize_t slab, Py_ssize_t extent, SlabState state) noexcept nogil
    # Returns 0; or -1, without effect, if a slab of the run, or the block, is not in use. Adjacent slabs may be a part
    # of an allocated run. It takes the GIL only to wake a waiter: the caller must hold no lock that a thread with the
    # GIL may want.
    cdef int release(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil
    # The run's generation: the owner of a run remembers it, to find out later whether it still owns the run.
    cdef uint32_t generation(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil
    # True while a thread waits for memory: the Sender then sends batches without waiting for linger.ms.
    cdef bint exhausted(self) noexcept nogil

    # ---- inside the critical section
    cdef Py_ssize_t take_run(self, Py_ssize_t extent) noexcept nogil
    cdef void put_run(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil
    cdef inline uint32_t generation_locked(self, Py_ssize_t slab, Py_ssize_t extent) noexcept nogil:
        return self.table.slots[slab].generation if extent > 0 else self.blocks.units[slab].generation

    cdef void unlink(self, Waiter* waiter) noexcept nogil
    cdef PyObject* serve(self) noexcept nogil

    # ---- outside it
    cdef void unlock_and_serve(self) noexcept nogil
    cdef bint join(self, Waiter* me) noexcept
    cdef void leave(self, Waiter* me) noexcept
    cdef int wait_turn(self, Waiter* me, object wake, object timeout) except -1
    cdef int require_possible(self, Py_ssize_t extent) except -1
    cdef object exhausted_error(self, Py_ssize_t extent, object timeout)
    # A BufferExhaustedError for the caller to raise; calls on_failure.
    cdef object no_memory(self, str text)


cdef class Slab:
    # ---- fixed at construction
    cdef readonly BufferPool pool
    cdef readonly Py_ssize_t first          # slab, or unit of a block
    cdef readonly Py_ssize_t extent
    cdef readonly Py_ssize_t nbytes         # of the whole run
    cdef readonly uint32_t generation
    # ---- guarded by the pool's lock
    cdef Py_ssize_t exports                 # memoryviews of the run: it cannot be released while they exist
    cdef bint held                          # the handle has the run: neither released nor detached

    cdef int give_back(self) noexcept nogil
    cdef int validity(self) noexcept nogil
    cdef int validity_locked(self) noexcept nogil
    cdef int require(self, int validity) except -1
