/* A producer's lock: it guards what the GIL guards, where there is no GIL. Under the GIL each function is nothing.

   A thread may take the lock again while it holds the lock. A thread that waits is detached from the interpreter, so
   that the garbage collector can stop the world. The holder must not wait for another thread, unless it suspends the
   lock: then the lock is free, whatever the depth, until the holder resumes.

   A thread enters the lock around each stretch that the GIL would keep whole: the choice of a batch and the append, a
   claim, the Sender's look at a queue and the drain, an outcome, callbacks and sleepers, a split, a count of the
   metrics. BufferPool.guard is a producer's lock; all purgatories and wheels of a process share another.

   `python -m tests.hostile.threads` shares a producer between threads. Under CPython 3.13t with PYTHON_GIL=0 it finds
   nothing lost or doubled; without the locks it hangs and crashes within seconds. CPython 3.14t was not run. */

#ifndef KAFKABUF_LOCK_H
#define KAFKABUF_LOCK_H

#include <Python.h>
#include <string.h>

#ifdef Py_GIL_DISABLED

#define KB_HAS_GIL 0

typedef struct {
    PyMutex mutex;
    unsigned long holder; /* the holder's ident, 0: the lock is free. Only a holder finds its own ident here */
    int depth;            /* written by the holder */
} kb_lock;

static inline int kb_holds(kb_lock *lock)
{
    return __atomic_load_n(&lock->holder, __ATOMIC_RELAXED) == PyThread_get_thread_ident();
}

static inline void kb_enter(kb_lock *lock)
{
    if (!kb_holds(lock)) {
        PyMutex_Lock(&lock->mutex);
        __atomic_store_n(&lock->holder, PyThread_get_thread_ident(), __ATOMIC_RELAXED);
    }
    lock->depth++;
}

/* Does nothing for a thread that does not hold the lock: a child that was forked while its call waited may have opened a
   producer of its own, with another lock. */
static inline void kb_leave(kb_lock *lock)
{
    if (kb_holds(lock) && --lock->depth == 0) {
        __atomic_store_n(&lock->holder, 0, __ATOMIC_RELAXED);
        PyMutex_Unlock(&lock->mutex);
    }
}

/* Returns the depth, for kb_resume: 0 if this thread does not hold the lock. */
static inline int kb_suspend(kb_lock *lock)
{
    int depth = kb_holds(lock) ? lock->depth : 0;
    if (depth == 0)
        return 0;
    lock->depth = 1;
    kb_leave(lock);
    return depth;
}

static inline void kb_resume(kb_lock *lock, int depth)
{
    if (depth > 0) {
        kb_enter(lock);
        lock->depth = depth;
    }
}

/* In a forked child, where the holder may not exist. */
static inline void kb_break(kb_lock *lock)
{
    memset(lock, 0, sizeof *lock);
}

#else

#define KB_HAS_GIL 1

typedef struct {
    char nothing[0];
} kb_lock;

#define kb_enter(lock) ((void)(lock))
#define kb_leave(lock) ((void)(lock))
#define kb_suspend(lock) ((void)(lock), 0)
#define kb_resume(lock, depth) ((void)(lock), (void)(depth))
#define kb_break(lock) ((void)(lock))

#endif

#endif
