# cython: language_level=3
"""The contract of the purgatory: who owns what, and what guards it.

The lock is that of _timing_wheel.pxd. The fields below are read and written in stretches of C that call no
Python and drop no last reference. These do call Python: hashing and comparing keys, the clock, and the methods of
operations. The purgatory holds nothing during such a call, and looks at its fields again after it. So no thread ever
takes two locks, and an operation or a key may call the purgatory from anywhere. A key's equality may even change from
call to call: it decides only which operations the key finds.

An operation waits from its admission until it leaves, by completion or by cancel_for_key. While it waits the purgatory
owns a reference to it, and the operation is in the rings of all its keys. It leaves all rings and the wheel at once.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from kafkabuf.broker.waiting._ring cimport Link
from kafkabuf.broker.waiting._timing_wheel cimport TimerTask, TimingWheel


cdef enum:
    KEYS_AT_HAND = 3            # an operation with at most this many keys needs no heap memory


cdef struct Watch:
    # One operation under one key. The link comes first, so a pointer to the link of an operation is one to its Watch.
    Link link
    PyObject* operation         # borrowed, for the operation waits; NULL: a cursor of a thread that walks the ring
    PyObject* watchers          # borrowed: the dict keeps the Watchers while it has watches, and it holds the ring


cdef struct Idle:
    # Part of a Watchers without operations. The link comes first.
    Link link
    PyObject* watchers


cdef class DelayedOperation(TimerTask):
    cdef public double timeout          # seconds
    # ---- guarded by the lock
    cdef bint completed                 # set once, by the first that finds it unset: completion or expiration
    cdef bint evaluating                # a thread is in try_complete: no other thread calls it meanwhile
    cdef bint again                     # another thread evaluated meanwhile: the first calls try_complete again
    cdef Watch* watches                 # one for each key; NULL: the operation does not wait
    cdef Watch at_hand[KEYS_AT_HAND]    # `watches` of an operation with few keys
    cdef Py_ssize_t watched             # number of watches that are in a ring
    cdef RequestPurgatory purgatory     # set while the operation waits
    cdef int64_t admission              # number of admissions: shows after a call of Python whether the wait goes on

    # Both return True if this call completed the operation.
    cdef bint evaluate(self) except -1
    cdef bint complete(self) except -1
    # Steps of `evaluate`: whether this thread, and no other, calls try_complete; and whether it must do so (again).
    # Once goes_on returns False the thread evaluates no more.
    cdef bint begins(self) noexcept
    cdef bint goes_on(self) noexcept
    # Whether the operation has waited without a break since that admission.
    cdef bint waits_since(self, int64_t admission) noexcept
    # Ends the wait and the timer. Does nothing for an operation that does not wait and has no timer.
    cdef void leave(self) noexcept
    # The caller holds the lock, and the operation waits.
    cdef void leave_rings(self) noexcept


cdef class Watchers:
    # A Watchers is a key of the dict itself. It is hashed once, and equals everything that equals `key`; but two
    # Watchers in the dict are never equal.
    cdef object key
    cdef Py_hash_t hashed
    # ---- guarded by the lock
    cdef bint kept                      # the Watchers is in the dict
    cdef bint purged                    # the purgatory is about to remove it: no operation may join
    cdef Link operations                # head of the ring of watches and cursors, in the order of arrival
    cdef Py_ssize_t count               # watches in the ring
    cdef Idle idle                      # in the purgatory's ring while count is 0

    # Takes the oldest operation out of all its rings; None: there is none.
    cdef DelayedOperation take_first(self)
    # Returns how many operations it completed.
    cdef int check(self) except -1
    cdef int walk(self, Link* here, Link* end, list errors) except -1
    # Moves the cursor `here` past the next operation, and returns the operation; None: the cursor has reached `end`.
    cdef DelayedOperation step(self, Link* here, Link* end)
    cdef Watch* first(self) noexcept


cdef class RequestPurgatory:
    # ---- fixed at construction
    cdef readonly TimingWheel timer
    cdef readonly Py_ssize_t purge_interval
    # ---- guarded by the lock
    cdef dict by_key                    # each Watchers is key and value; a lookup by its `key` finds it
    cdef readonly Py_ssize_t watched    # watches of all keys
    cdef readonly Py_ssize_t delayed    # operations that wait
    cdef Link idle                      # head of the ring of Idle, longest idle first
    cdef Py_ssize_t idle_count          # Watchers in that ring

    # The operation waits from here on; `watch` adds its keys. Returns the number of its admission.
    cdef int64_t admit(self, DelayedOperation operation, Py_ssize_t keys) except -1
    # Both do nothing for an operation that does not wait any more, or was admitted again meanwhile.
    cdef int watch(self, DelayedOperation operation, int64_t admission, object key) except -1
    # The steps of `watch`: `link` enters the lock, and `add_watch` expects it to be held. `link` returns False if the
    # caller must find the Watchers again, because another thread is about to add it to the dict or to remove it.
    cdef bint link(self, DelayedOperation operation, int64_t admission, Watchers watchers) noexcept
    cdef void add_watch(self, DelayedOperation operation, Watchers watchers) noexcept
    cdef int set_timer(self, DelayedOperation operation, int64_t admission) except -1
    cdef Watchers watchers_of(self, object key)
    cdef list cancel(self, Watchers watchers)
    # A Watchers that `purge` must remove from the dict, marked as purged; None: there are no more.
    cdef Watchers next_purged(self)
    cdef int purge(self) except -1
