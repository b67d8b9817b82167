# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Requests that cannot be answered yet: each waits until one of its keys changes, or it expires (Kafka's purgatory).

Kafka leaves completed operations in the lists of their keys. From time to time it walks all lists to remove them, past
all operations that still wait. Here a completed operation leaves all its lists and its timer at once, in O(its keys).
So no entry is ever stale, and a million waiting operations cost the others nothing. Only keys without operations need
purging: the purgatory keeps up to `purge_interval` of them, for the next operation often has the same key.

Kafka has shards to divide locks, and here the GIL is the lock. Kafka's threads wait for the lock of an operation that
another thread is trying to complete; here the second thread leaves a note, and the first thread tries once more.
"""

cimport cython
from cpython.object cimport Py_EQ, PyObject_RichCompareBool
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from kafkabuf.process._lock cimport enter_lock, kb_lock, leave_lock
from kafkabuf.broker.waiting._ring cimport link_after, link_before, open_ring, unlink
from kafkabuf.broker.waiting._timing_wheel cimport waiting_lock

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef kb_lock* guard = waiting_lock()


cdef class DelayedOperation(TimerTask):
    """Base class of an operation that waits in a RequestPurgatory for at most `timeout` seconds (DelayedOperation).

        class DelayedResponse(DelayedOperation):
            def try_complete(self):             # called when one of its keys has changed, by one thread at a time
                return self.enough() and self.force_complete()

            def on_complete(self):              # called once, whatever completed the operation
                self.respond()

            def on_expiration(self):            # called after on_complete if the timeout completed the operation
                count.expired += 1

    The first call of force_complete completes the operation. From then on the purgatory holds no reference to it.
    """

    def __init__(self, double timeout):
        self.timeout = timeout

    @property
    def is_completed(self):
        return self.completed

    def try_complete(self):
        """Returns `self.force_complete()` if the operation can be completed now, else False."""
        raise NotImplementedError(f"{type(self).__name__} must define try_complete")

    def on_complete(self):
        """The thread that completes the operation calls this once."""
        raise NotImplementedError(f"{type(self).__name__} must define on_complete")

    def on_expiration(self):
        """Called after on_complete if the operation's timeout completed it."""

    def force_complete(self):
        """Completes the operation. Returns False if it was completed before."""
        return self.complete()

    cdef bint evaluate(self) except -1:
        # This thread never waits for another thread in try_complete. `again` makes the other thread call
        # try_complete once more, because that thread may have read the state before the change.
        cdef bint done
        if not self.begins():
            return False
        while self.goes_on():
            try:
                done = self.try_complete()
            except BaseException:
                self.evaluating = False
                raise
            if done:
                self.evaluating = False
                return True
        return False

    cdef bint begins(self) noexcept:
        enter_lock(guard)
        cdef bint begins = not (self.evaluating or self.completed)
        self.again = True
        if begins:
            self.evaluating = True
        leave_lock(guard)
        return begins

    cdef bint goes_on(self) noexcept:
        enter_lock(guard)
        cdef bint goes_on = self.again and not self.completed
        self.again = False
        self.evaluating = goes_on
        leave_lock(guard)
        return goes_on

    cdef bint complete(self) except -1:
        cdef RequestPurgatory purgatory
        cdef bint first
        enter_lock(guard)
        purgatory = self.purgatory
        first = not self.completed
        if first:
            self.completed = True
            self.leave()
        leave_lock(guard)
        if not first:
            return False
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
        enter_lock(guard)
        self.leave_wheel()
        if self.watches != NULL:
            self.leave_rings()
        leave_lock(guard)

    cdef void leave_rings(self) noexcept:
        cdef RequestPurgatory purgatory = self.purgatory
        cdef Watch* watches = self.watches
        cdef Watchers watchers
        cdef Py_ssize_t i
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
        Py_DECREF(self)         # the purgatory's reference; the caller has its own


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
        # Two Watchers in the dict differ, whatever their keys say by now: so purge removes one without calling Python.
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

    cdef DelayedOperation take_first(self):
        cdef DelayedOperation operation = None
        enter_lock(guard)
        cdef Watch* watch = self.first()
        if watch != NULL:
            operation = <DelayedOperation> watch.operation
            operation.leave()
        leave_lock(guard)
        return operation

    cdef int check(self) except -1:
        """Evaluates each operation that waits now, then raises the errors of operations. A cursor moves along the
        ring with each evaluated operation, so that operations may leave and come meanwhile."""
        cdef Watch* cursor
        cdef Watch* end
        cdef list errors = []
        cdef int completed = 0
        if self.count == 0:
            return 0
        cursor = <Watch*> malloc(2 * sizeof(Watch))
        if cursor == NULL:
            raise MemoryError("no memory to walk along the operations of a key")
        end = cursor + 1
        cursor.operation = end.operation = NULL
        enter_lock(guard)
        link_after(&self.operations, &cursor.link)
        link_before(&self.operations, &end.link)
        leave_lock(guard)
        try:
            completed = self.walk(&cursor.link, &end.link, errors)
        finally:
            enter_lock(guard)
            unlink(&cursor.link)
            unlink(&end.link)
            leave_lock(guard)
            free(cursor)
        if errors:
            raise errors[0] if len(errors) == 1 else BaseExceptionGroup("several operations failed", errors)
        return completed

    cdef int walk(self, Link* here, Link* end, list errors) except -1:
        cdef DelayedOperation operation = self.step(here, end)
        cdef int completed = 0
        while operation is not None:
            try:
                completed += operation.evaluate()
            except BaseException as error:      # the other operations must not wait for ever because of this one
                errors.append(error)
            operation = self.step(here, end)
        return completed

    cdef DelayedOperation step(self, Link* here, Link* end):
        cdef DelayedOperation operation = None
        cdef Link* link
        enter_lock(guard)
        while operation is None and here.next != end:
            link = here.next
            unlink(here)
            link_after(link, here)
            if (<Watch*> link).operation != NULL:
                operation = <DelayedOperation> (<Watch*> link).operation
        leave_lock(guard)
        return operation


@cython.final
cdef class RequestPurgatory:
    """Parked operations, by the keys that they wait for. Any thread may call any method, from anywhere.

        wheel = TimingWheel(SystemClock())
        with ExpirationReaper(wheel):           # or a Timer in an event loop
            purgatory = RequestPurgatory(wheel)
            purgatory.try_complete_else_watch(response, [("topic", 0), ("topic", 1)])
            ...
            purgatory.check_and_complete(("topic", 1))      # the code that changes the key calls this, after the change

    Keys are hashable. `timer` completes operations that expire. `watched` counts an operation once for each of its
    keys, `delayed` counts it once. The purgatory keeps up to `purge_interval` keys without operations.
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
        """Completes the operation now if that is possible, else parks it. Returns True if this call completed it.

        A parked operation waits for `keys` and for its timeout. The call evaluates the operation twice, before and
        after its keys are watched, so that it misses no change in between. Raises ValueError if `keys` is empty, and
        for an operation that waits already.
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
        """Evaluates every operation that waits for `key`. Returns how many operations this call completed.

        If another thread is evaluating an operation, that thread evaluates it once more; this call does not wait for
        it.
        """
        cdef Watchers watchers = self.by_key.get(key)
        return 0 if watchers is None else watchers.check()

    def cancel_for_key(self, key):
        """Removes every operation that waits for `key`, from its timer and its other keys too. Returns them for the
        caller to complete."""
        cdef Watchers watchers = self.by_key.get(key)
        return [] if watchers is None else self.cancel(watchers)

    def cancel_all(self):
        """Removes every operation, as cancel_for_key does. The owner calls this when it gives the purgatory up.

        The links are plain C, which the garbage collector does not see: a cycle through an operation would stay.
        """
        return [operation for watchers in list(self.by_key) for operation in self.cancel(watchers)]

    cdef list cancel(self, Watchers watchers):
        cdef DelayedOperation operation
        cdef list cancelled = []
        operation = watchers.take_first()
        while operation is not None:
            cancelled.append(operation)
            operation = watchers.take_first()
        self.purge()
        return cancelled

    cdef int64_t admit(self, DelayedOperation operation, Py_ssize_t keys) except -1:
        if self.timer is None:
            raise TypeError("RequestPurgatory.__init__ was not called")
        cdef Watch* watches = NULL
        cdef bint waits = False
        if keys > KEYS_AT_HAND:
            watches = <Watch*> malloc(keys * sizeof(Watch))
            if watches == NULL:
                raise MemoryError(f"no memory to watch {keys} keys")
        enter_lock(guard)
        if not operation.completed:
            waits = operation.watches != NULL
            if not waits:
                operation.watches = &operation.at_hand[0] if watches == NULL else watches
                watches = NULL
                operation.watched = 0
                operation.purgatory = self
                operation.admission += 1
                self.delayed += 1
                Py_INCREF(operation)
        cdef int64_t admission = operation.admission
        leave_lock(guard)
        free(watches)
        if waits:
            raise ValueError(f"{operation!r} waits in a purgatory already")
        return admission

    cdef int watch(self, DelayedOperation operation, int64_t admission, object key) except -1:
        while not self.link(operation, admission, self.watchers_of(key)):
            with nogil:
                sched_yield()
        return 0

    cdef bint link(self, DelayedOperation operation, int64_t admission, Watchers watchers) noexcept:
        enter_lock(guard)
        cdef bint kept = watchers.kept and not watchers.purged
        # Else completed or cancelled meanwhile, and perhaps admitted again.
        if kept and operation.waits_since(admission):
            self.add_watch(operation, watchers)
        leave_lock(guard)
        return kept

    cdef void add_watch(self, DelayedOperation operation, Watchers watchers) noexcept:
        cdef Watch* watch = &operation.watches[operation.watched]
        watch.operation = <PyObject*> operation
        watch.watchers = <PyObject*> watchers
        link_before(&watchers.operations, &watch.link)
        operation.watched += 1
        self.watched += 1
        if watchers.count == 0:
            unlink(&watchers.idle.link)
            self.idle_count -= 1
        watchers.count += 1

    cdef Watchers watchers_of(self, object key):
        """The Watchers of `key`, made if missing. Runs no Python between finding it and returning it. A Watchers
        without operations is in the ring of the idle."""
        cdef Watchers made, watchers = self.by_key.get(key)
        if watchers is not None:
            return watchers
        made = Watchers.__new__(Watchers, key)
        watchers = self.by_key.setdefault(made, made)
        if watchers is made:
            enter_lock(guard)
            made.kept = True
            link_before(&self.idle, &made.idle.link)
            self.idle_count += 1
            leave_lock(guard)
        return watchers

    cdef int set_timer(self, DelayedOperation operation, int64_t admission) except -1:
        cdef int64_t deadline = self.timer.deadline_in(operation.timeout)
        cdef bint earlier = False
        enter_lock(guard)
        try:
            if operation.waits_since(admission):    # nothing can end the wait now before the timer is set
                earlier = self.timer.insert(operation, deadline)
        finally:
            leave_lock(guard)
        if earlier and self.timer.on_earlier is not None:
            self.timer.on_earlier()
        return 0

    cdef int purge(self) except -1:
        cdef Watchers watchers = self.next_purged()
        while watchers is not None:
            del self.by_key[watchers]
            watchers.kept = False
            watchers = self.next_purged()
        return 0

    cdef Watchers next_purged(self):
        cdef Watchers watchers = None
        enter_lock(guard)
        if self.idle_count > self.purge_interval:
            watchers = <Watchers> (<Idle*> self.idle.next).watchers
            watchers.purged = True
            unlink(&watchers.idle.link)
            self.idle_count -= 1
        leave_lock(guard)
        return watchers
