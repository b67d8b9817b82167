# cython: language_level=3
# distutils: extra_compile_args = -O1
"""A lock whose `with` block takes it and gives it back in C, whatever happens to the thread meanwhile.

A Ctrl-C, a signal handler or another thread may raise an exception in a thread between two bytecodes. If that came
between an `acquire()` in Python and the block behind it, nobody would ever release the lock, and each thread that needs
it would wait for ever. Python looks for such an exception nowhere between the return of a C method `__enter__` and the
block. The end of a `with` block of CPython's own locks takes memory: where there is none it raises, and the lock stays
held. The end of this block takes none.
"""


cdef class Guard:
    """A lock of Python's `_thread`, and its methods."""

    cdef object lock
    cdef readonly object acquire, release

    def __init__(self, lock):
        self.lock = lock
        self.acquire = lock.acquire
        self.release = lock.release

    def __enter__(self):
        return self.acquire()

    def __exit__(self, kind, error, traceback):
        self.release()

    def locked(self):
        return self.lock.locked()

    def _is_owned(self):
        return self.lock._is_owned()

    def __repr__(self):
        return repr(self.lock)
