# cython: language_level=3
"""The contract of the buffer pool: what other extensions may call without the GIL.

Memory is named by *runs*: `n` adjacent slabs, called by the index of the first. Nothing inside the pool's critical
section runs Python code or needs the GIL, so any thread may take it, holding the GIL or not, and a garbage collection
can never re-enter it. Waiting threads sit in an intrusive queue under the same lock; only waking one takes the GIL.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

# SlabState and its members FREE, OPEN, CLOSED, IN_FLIGHT, SCRATCH are for every user of the pool.
from kafkabuf._slabs cimport CLOSED, FREE, IN_FLIGHT, OPEN, SCRATCH, SlabState, SlabTable


cdef extern from "_spin.h" nogil:
    ctypedef struct kb_spin:
        pass


cdef struct Waiter:
    # Lives on the waiting thread's C stack; in the queue exactly while `slab` is -1. Guarded by the pool's lock.
    Py_ssize_t n_slabs
    Py_ssize_t slab         # -1: queued; >= 0: the run handed over; -2: the pool was closed; -3: left unserved
    Waiter* next
    PyObject* wake          # threading.Lock the thread is blocked on. The queue owns this reference: whoever unlinks
    #                         the waiter must release the lock or drop the reference


cdef class BufferPool:
    # ---- fixed at construction
    cdef readonly Py_ssize_t total          # bytes: slab_count * slab_size + loose
    cdef readonly Py_ssize_t slab_size      # bytes
    cdef readonly Py_ssize_t slab_count
    cdef readonly Py_ssize_t loose          # bytes at the end that make no whole slab; never handed out
    cdef readonly bint poison               # released memory is overwritten with 0xDD
    cdef unsigned char[::1] arena           # keeps the NumPy array alive
    cdef unsigned char* base                # its first byte
    cdef object clock
    cdef public object on_wait, on_exhausted, on_failure    # set later at will: the Sender comes after the pool
    cdef public object on_why               # callable(Batch or None): why it does not come back, in words; or None

    # ---- guarded by `lock`
    cdef kb_spin lock                       # free while zero, as every object of Python begins
    cdef SlabTable table
    cdef Waiter* first_waiter               # oldest; while there is one, nobody else is given memory
    cdef readonly bint closed
    cdef readonly bint disowned             # this is a forked child, and the pool its parent's: `closed` too
    cdef readonly Py_ssize_t waiting        # threads in the queue
    cdef readonly Py_ssize_t waits_total    # allocations that had to wait, served or not
    cdef readonly double wait_time_total    # seconds they waited
    cdef readonly Py_ssize_t refused_total  # calls of release and set_state that returned -1: a bug of the caller each

    # ---- for other extensions; slab and n of a run the caller owns
    cdef inline unsigned char* address(self, Py_ssize_t slab) noexcept nogil:
        return self.base + slab * self.slab_size

    # Slabs that hold nbytes: the ceiling, 0 for 0.
    cdef Py_ssize_t slabs_for(self, Py_ssize_t nbytes) noexcept nogil
    # First slab of a run in state OPEN; -1 when no such run is free, when threads wait (no barging), or after close.
    cdef Py_ssize_t try_allocate(self, Py_ssize_t n_slabs) noexcept nogil
    # As try_allocate, but waits its turn until deadline_s, a time of clock.monotonic() (None: for ever). Needs the GIL.
    # Raises AllocationTooLargeError, BufferExhaustedError, ClosedError.
    cdef Py_ssize_t wait_allocate(self, Py_ssize_t n_slabs, object deadline_s) except -1
    # 0; or -1 and nothing done if a slab of the run is FREE or does not exist, or if FREE was asked for.
    cdef int set_state(self, Py_ssize_t slab, Py_ssize_t n, SlabState state) noexcept nogil
    # 0; or -1 and nothing done if a slab of the run is FREE already or does not exist. Part of a run may be released.
    # Takes the GIL only if a waiter is to be woken: call it with no lock held that a thread with the GIL may want.
    cdef int release(self, Py_ssize_t slab, Py_ssize_t n) noexcept nogil
    # The number a run's owner remembers to know later whether the slab is still its own.
    cdef uint32_t generation(self, Py_ssize_t slab) noexcept nogil
    # True while a thread waits for memory: batches should go out without lingering.
    cdef bint exhausted(self) noexcept nogil

    # ---- inside the critical section
    cdef void put_run(self, Py_ssize_t slab, Py_ssize_t n) noexcept nogil
    cdef void unlink(self, Waiter* waiter) noexcept nogil
    cdef PyObject* serve(self) noexcept nogil

    # ---- outside it
    cdef void unlock_and_serve(self) noexcept nogil
    cdef bint join(self, Waiter* me) noexcept
    cdef void leave(self, Waiter* me) noexcept
    cdef int wait_turn(self, Waiter* me, object wake, object timeout) except -1
    cdef int require_possible(self, Py_ssize_t n_slabs) except -1
    cdef object exhausted_error(self, Py_ssize_t n_slabs, object timeout)
    # A BufferExhaustedError, to be raised; it counts as a failure.
    cdef object no_memory(self, str text)


cdef class Slab:
    # ---- fixed at construction
    cdef readonly BufferPool pool
    cdef readonly Py_ssize_t first          # slab index
    cdef readonly Py_ssize_t count          # slabs
    cdef readonly Py_ssize_t nbytes         # of the whole run
    cdef readonly uint32_t generation
    # ---- guarded by the pool's lock
    cdef Py_ssize_t exports                 # memoryviews that still read the run: it is not released before them
    cdef bint held                          # release has not been called

    cdef int give_back(self) noexcept nogil
    cdef int validity(self) noexcept nogil
    cdef int validity_locked(self) noexcept nogil
    cdef int require(self, int validity) except -1
