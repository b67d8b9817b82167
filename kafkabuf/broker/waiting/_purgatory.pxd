# cython: language_level=3
"""The contract of the purgatory: who owns what, and what guards it.

The GIL is the lock, as in _timing_wheel.pxd: what follows is read and written in stretches of C that call no Python and
drop no last reference. Hashing and comparing keys, asking the clock and the operations' own methods do call Python:
before and after them nothing is held, and what was seen before is looked at again after. Hence no two locks are ever
taken, and an operation may call the purgatory from anywhere. So may a key, and it may equal others by turns: what it
says decides only which operations it finds.

An operation waits from when it is watched until it leaves, by completion or by cancel_for_key. While it waits the
purgatory owns a reference to it, and it is in the rings of all its keys; it leaves all of them, and the wheel, at once.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from kafkabuf.broker.waiting._ring cimport Link
from kafkabuf.broker.waiting._timing_wheel cimport TimerTask, TimingWheel


cdef enum:
    KEYS_AT_HAND = 3            # so many keys need no memory of the heap


cdef struct Watch:
    # One operation under one key. First its link, so that a link of a ring of operations is a Watch.
    Link link
    PyObject* operation         # borrowed: it waits; NULL: a mark of somebody who walks along the ring
    PyObject* watchers          # borrowed: the dict keeps it while it has watches, and it keeps the ring


cdef struct Idle:
    # Part of a Watchers without operations. First its link.
    Link link
    PyObject* watchers


cdef class DelayedOperation(TimerTask):
    cdef public double timeout          # seconds
    # ---- guarded by the GIL
    cdef bint completed                 # set once, by whoever finds it unset: one of completion and expiration wins
    cdef bint evaluating                # a thread is in try_complete, and no other goes there
    cdef bint again                     # somebody asked meanwhile: that thread looks once more
    cdef Watch* watches                 # as many as there are keys; NULL: does not wait
    cdef Watch at_hand[KEYS_AT_HAND]
    cdef Py_ssize_t watched             # of them are in a ring
    cdef RequestPurgatory purgatory     # while it waits
    cdef int64_t admission              # how often it was admitted: who called Python sees whether it still waits

    # True when this call completed it.
    cdef bint evaluate(self) except -1
    cdef bint complete(self) except -1
    # Whether it has waited all the time since that admission.
    cdef bint waits_since(self, int64_t admission) noexcept
    # Waits no more, and has no timer. Nothing happens where that is so.
    cdef void leave(self) noexcept


cdef class Watchers:
    # Is a key of the dict itself: hashed once, and equal to what equals `key`; but two that are in the dict never are.
    cdef object key
    cdef Py_hash_t hashed
    # ---- guarded by the GIL
    cdef bint kept                      # it is in the dict
    cdef Link operations                # head of the ring of watches and marks, first come first
    cdef Py_ssize_t count               # watches in it
    cdef Idle idle                      # in the purgatory's ring while count is 0

    # How many it completed.
    cdef int check(self) except -1
    cdef int walk(self, Link* here, Link* end, list errors) except -1
    cdef Watch* first(self) noexcept


cdef class RequestPurgatory:
    # ---- fixed at construction
    cdef readonly TimingWheel timer
    cdef readonly Py_ssize_t purge_interval
    # ---- guarded by the GIL
    cdef dict by_key                    # Watchers: itself, found by its key
    cdef readonly Py_ssize_t watched    # watches of all keys
    cdef readonly Py_ssize_t delayed    # operations that wait
    cdef Link idle                      # head of the ring of Idle, longest idle first
    cdef Py_ssize_t idle_count

    # From here on the operation waits; under which keys `watch` says. The number of its admission.
    cdef int64_t admit(self, DelayedOperation operation, Py_ssize_t keys) except -1
    # Both do nothing where it does not wait any more, or was admitted again meanwhile.
    cdef int watch(self, DelayedOperation operation, int64_t admission, object key) except -1
    cdef int set_timer(self, DelayedOperation operation, int64_t admission) except -1
    cdef Watchers watchers_of(self, object key)
    cdef list cancel(self, Watchers watchers)
    cdef int purge(self) except -1
