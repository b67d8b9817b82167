"""Which thread gives records their outcome: this thread must not wait for an outcome, or it would wait for itself.

It is the Sender's thread of a producer, or a test's thread while it completes records of a MockProducer. Only a thread
that is about to wait calls `ends_here`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kafkabuf.process.threads import get_ident

# (ident of a thread, id of the `incomplete` batches that the thread ends; the thread keeps these alive)
_ending: set[tuple[int, int]] = set()


@contextmanager
def ending(incomplete: object) -> Iterator[None]:
    """In this block the calling thread gives these batches their outcomes."""
    entry = (get_ident(), id(incomplete))
    outermost = entry not in _ending
    _ending.add(entry)
    try:
        yield
    finally:
        if outermost:
            _ending.discard(entry)


def ends_here(incomplete: object) -> bool:
    """Whether the calling thread gives these batches their outcomes."""
    return (get_ident(), id(incomplete)) in _ending


# The child may use the same idents and ids for other threads and objects.
os.register_at_fork(after_in_child=_ending.clear)
