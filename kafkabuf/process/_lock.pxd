# cython: language_level=3
"""A lock that is nothing under the GIL; on a free-threaded interpreter it guards what the GIL guards elsewhere."""


cdef extern from "process/_lock.h":
    const bint HAS_GIL "KB_HAS_GIL"

    ctypedef struct kb_lock:            # zero means free; Python zeroes every new object
        pass

    # A thread may enter again. Until it leaves, or suspends the lock, it must not wait for another thread.
    void enter_lock "kb_enter"(kb_lock*) noexcept
    void leave_lock "kb_leave"(kb_lock*) noexcept
    # The lock is free until `resume`, whatever the depth. Returns the depth, for `resume`.
    int suspend "kb_suspend"(kb_lock*) noexcept
    void resume "kb_resume"(kb_lock*, int depth) noexcept
    # In a forked child, where the holder may not exist: the lock is free.
    void break_lock "kb_break"(kb_lock*) noexcept
