# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Requests that cannot be answered yet: they wait for one of their keys to change, or to expire (Kafka's purgatory).

Kafka leaves completed operations in the lists of their keys, and from time to time walks all lists to sweep them out,
past all that still wait. Here an operation leaves all its lists, and its timer, when it is completed, in O(its keys):
nothing is ever stale, and a million operations that wait cost the others nothing. What is left to purge are keys that
nothing waits for any more: up to `purge_interval` are kept, for the next operation often has the same.
"""

cimport cython
from cpython.object cimport Py_EQ, PyObject_RichCompareBool
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from kafkabuf.broker.waiting._ring cimport link_after, link_before, open_ring, unlink


cdef class DelayedOperation(TimerTask):
    """What waits in a RequestPurgatory for at most `timeout` seconds; to be subclassed (Kafka's DelayedOperation).

        class DelayedAnswer(DelayedOperation):
            def try_complete(self):             # asked when one of its keys has changed, by one thread at a time
                return self.enough() and self.force_complete()

            def on_complete(self):              # once, whatever happens
                self.answer(expired=False)

            def on_expiration(self):            # after on_complete, where it was the timeout that completed it
                count.expired += 1

    Whoever calls force_complete first completes it. From then on the purgatory holds no reference to it.
    """

    def __init__(self, double timeout):
        self.timeout = timeout

    @property
    def is_completed(self):
        return self.completed

    def try_complete(self):
        """If it can be completed now, calls force_complete and returns what that did; else returns False."""
        raise NotImplementedError(f"{type(self).__name__} must define try_complete")

    def on_complete(self):
        """Called once, by the thread that completed it."""
        raise NotImplementedError(f"{type(self).__name__} must define on_complete")

    def on_expiration(self):
        """Called after on_complete when its time was over before anything else completed it."""

    def force_complete(self):
        """Completes it, if nobody has; whether it was this call that did."""
        return self.complete()

    cdef bint evaluate(self) except -1:
        # Never waits for the thread that is in try_complete now: that one has perhaps looked already, but looks again.
        self.again = True
        if self.evaluating or self.completed:
            return False
        self.evaluating = True
        try:
            while self.again and not self.completed:
                self.again = False
                if self.try_complete():
                    return True
            return False
        finally:
            self.evaluating = False

    cdef bint complete(self) except -1:
        if self.completed:
            return False
        cdef RequestPurgatory purgatory = self.purgatory
        self.completed = True
        self.leave()
        self.on_complete()
        if purgatory is not None:
            purgatory.purge()
        return True

    cdef bint waits_since(self, int64_t admission) noexcept:
        return self.watches != NULL and self.admission == admission

    cdef int fire(self) except -1:
        if self.complete():
            self.on_expiration()
        return 0

    cdef void leave(self) noexcept:
        cdef RequestPurgatory purgatory = self.purgatory
        cdef Watch* watches = self.watches
        cdef Watchers watchers
        cdef Py_ssize_t i
        self.leave_wheel()
        if watches == NULL:
            return
        self.watches = NULL
        for i in range(self.watched):
            unlink(&watches[i].link)
            watchers = <Watchers> watches[i].watchers
            watchers.count -= 1
            if watchers.count == 0:
                link_before(&purgatory.idle, &watchers.idle.link)
                purgatory.idle_count += 1
        purgatory.watched -= self.watched
        purgatory.delayed -= 1
        self.purgatory = None
        if watches != self.at_hand:
            free(watches)
        Py_DECREF(self)         # the purgatory's; the caller has one


@cython.final
cdef class Watchers:
    """The operations that wait for one key."""

    def __cinit__(self, key):
        self.key = key
        self.hashed = hash(key)
        open_ring(&self.operations)
        self.idle.watchers = <PyObject*> self

    def __hash__(self):
        return self.hashed

    def __eq__(self, other):
        # Two that are in the dict differ, whatever their keys say by now: one of them is taken out without Python.
        if type(other) is not Watchers:
            return PyObject_RichCompareBool(self.key, other, Py_EQ)
        if self is other or self.kept and (<Watchers> other).kept:
            return self is other
        return PyObject_RichCompareBool(self.key, (<Watchers> other).key, Py_EQ)

    cdef Watch* first(self) noexcept:
        cdef Link* link = self.operations.next
        while link != &self.operations and (<Watch*> link).operation == NULL:
            link = link.next
        return NULL if link == &self.operations else <Watch*> link

    cdef int check(self) except -1:
        """Asks each operation that waits now, then raises what some of them raised. A mark goes ahead of the one that
        is asked, so that anything may leave and come meanwhile."""
        cdef Watch* marks
        cdef list errors = []
        cdef int completed = 0
        if self.count == 0:
            return 0
        marks = <Watch*> malloc(2 * sizeof(Watch))
        if marks == NULL:
            raise MemoryError("no memory to walk along the operations of a key")
        marks[0].operation = marks[1].operation = NULL
        link_after(&self.operations, &marks[0].link)
        link_before(&self.operations, &marks[1].link)
        try:
            completed = self.walk(&marks[0].link, &marks[1].link, errors)
        finally:
            unlink(&marks[0].link)
            unlink(&marks[1].link)
            free(marks)
        if errors:
            raise errors[0] if len(errors) == 1 else BaseExceptionGroup("several operations failed", errors)
        return completed

    cdef int walk(self, Link* here, Link* end, list errors) except -1:
        cdef DelayedOperation operation
        cdef Link* link
        cdef int completed = 0
        while here.next != end:
            link = here.next
            unlink(here)
            link_after(link, here)
            if (<Watch*> link).operation != NULL:
                operation = <DelayedOperation> (<Watch*> link).operation
                try:
                    completed += operation.evaluate()
                except BaseException as error:      # the others must not wait for ever because of it
                    errors.append(error)
        return completed


@cython.final
cdef class RequestPurgatory:
    """Operations that wait, by the keys they wait for; any thread may call any method, from anywhere.

        wheel = TimingWheel(SystemClock())
        with ExpirationReaper(wheel):           # or a Timer in an event loop
            purgatory = RequestPurgatory(wheel)
            purgatory.try_complete_else_watch(answer, [("topic", 0), ("topic", 1)])
            ...
            purgatory.check_and_complete(("topic", 1))      # by whoever changes it, after the change

    Keys are hashable; `timer` runs what expires. `watched` counts an operation once for each of its keys, `delayed`
    once. Of keys that nothing waits for, up to `purge_interval` are remembered.
    """

    def __init__(self, TimingWheel timer not None, Py_ssize_t purge_interval=1000):
        if purge_interval < 0:
            raise ValueError(f"purge_interval is {purge_interval}, but must be 0 or more")
        if self.timer is not None:
            raise ValueError("a RequestPurgatory is initialized once")
        self.timer = timer
        self.purge_interval = purge_interval

    def __cinit__(self, *_, **__):
        self.by_key = {}
        open_ring(&self.idle)

    def try_complete_else_watch(self, DelayedOperation operation not None, keys):
        """Completes it now if that is possible; else it waits for `keys` and its timeout. True: this call completed it.

        Asks the operation twice, before it is watched and after, so that no change is missed between them. Raises
        ValueError without keys, for they are what it would wait for, and for an operation that waits already.
        """
        cdef tuple wanted = tuple(keys)
        cdef int64_t admission
        if not wanted:
            raise ValueError("an operation needs keys to wait for, found none")
        if operation.evaluate():
            return True
        admission = self.admit(operation, len(wanted))
        try:
            for key in wanted:
                self.watch(operation, admission, key)
            if operation.evaluate():
                return True
            self.set_timer(operation, admission)
        except BaseException:
            if operation.waits_since(admission):
                operation.leave()
            raise
        return False

    def check_and_complete(self, key):
        """Asks all that wait for `key` whether they can be completed now; how many this call completed.

        An operation that another thread is asking is asked once more by that thread, not waited for.
        """
        cdef Watchers watchers = self.by_key.get(key)
        return 0 if watchers is None else watchers.check()

    def cancel_for_key(self, key):
        """Takes all that wait for `key` out, timers and other keys included. They are the caller's to complete."""
        cdef Watchers watchers = self.by_key.get(key)
        return [] if watchers is None else self.cancel(watchers)

    def cancel_all(self):
        """Takes everything out, as cancel_for_key does. To be called when the purgatory is given up."""
        return [operation for watchers in list(self.by_key) for operation in self.cancel(watchers)]

    cdef list cancel(self, Watchers watchers):
        cdef DelayedOperation operation
        cdef list cancelled = []
        cdef Watch* watch = watchers.first()
        while watch != NULL:
            operation = <DelayedOperation> watch.operation
            operation.leave()
            cancelled.append(operation)
            watch = watchers.first()
        self.purge()
        return cancelled

    cdef int64_t admit(self, DelayedOperation operation, Py_ssize_t keys) except -1:
        if self.timer is None:
            raise TypeError("RequestPurgatory.__init__ was not called")
        if operation.completed:
            return operation.admission
        if operation.watches != NULL:
            raise ValueError(f"{operation!r} waits in a purgatory already")
        operation.watches = operation.at_hand
        if keys > KEYS_AT_HAND:
            operation.watches = <Watch*> malloc(keys * sizeof(Watch))
        if operation.watches == NULL:
            raise MemoryError(f"no memory to watch {keys} keys")
        operation.watched = 0
        operation.purgatory = self
        operation.admission += 1
        self.delayed += 1
        Py_INCREF(operation)
        return operation.admission

    cdef int watch(self, DelayedOperation operation, int64_t admission, object key) except -1:
        cdef Watchers watchers = self.watchers_of(key)
        cdef Watch* watch
        if not operation.waits_since(admission):    # completed or cancelled meanwhile, and perhaps admitted again
            return 0
        watch = &operation.watches[operation.watched]
        watch.operation = <PyObject*> operation
        watch.watchers = <PyObject*> watchers
        link_before(&watchers.operations, &watch.link)
        operation.watched += 1
        self.watched += 1
        if watchers.count == 0:
            unlink(&watchers.idle.link)
            self.idle_count -= 1
        watchers.count += 1
        return 0

    cdef Watchers watchers_of(self, object key):
        """Runs no Python between finding it and returning it. What is without operations is in the ring of the idle."""
        cdef Watchers made, found = self.by_key.get(key)
        if found is not None:
            return found
        made = Watchers.__new__(Watchers, key)
        found = self.by_key.setdefault(made, made)
        if found is made:
            made.kept = True
            link_before(&self.idle, &made.idle.link)
            self.idle_count += 1
        return found

    cdef int set_timer(self, DelayedOperation operation, int64_t admission) except -1:
        cdef int64_t deadline = self.timer.deadline_in(operation.timeout)
        if operation.waits_since(admission):    # nobody else completes or cancels it any more before the timer is set
            self.timer.schedule(operation, deadline)
        return 0

    cdef int purge(self) except -1:
        cdef Watchers watchers
        while self.idle_count > self.purge_interval:
            watchers = <Watchers> (<Idle*> self.idle.next).watchers
            unlink(&watchers.idle.link)
            self.idle_count -= 1
            del self.by_key[watchers]
            watchers.kept = False
        return 0
