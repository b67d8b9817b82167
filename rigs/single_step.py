"""Runs a piece of a forked child instruction by instruction: `single_step(prepare, piece)`, Linux only.

The child calls `prepare`, which returns what the piece works with. From then on the parent lets it run one instruction
at a time (ptrace(2), PTRACE_SINGLESTEP), and looks at the world after each: so a test sees every state in which a kill
could leave a file.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
_TRACEME, _CONTINUE, _KILL, _SINGLESTEP = 0, 7, 8, 9
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def single_step(prepare: Callable[[], T], piece: Callable[[T], object]) -> Iterator[int]:
    """Yields the number of instructions so far, after each of them. The child waits meanwhile.

    Raises OSError where the system forbids ptrace, and AssertionError where the child fails.
    """
    child = os.fork()
    if child == 0:
        _run(prepare, piece)
    ended = False
    try:
        _await(child)  # the child's first stop: it is prepared
        count = 0
        while _step(child):
            count += 1
            yield count
        ended = True
    finally:
        _ptrace(_CONTINUE if ended else _KILL, child)
        _, status = os.waitpid(child, 0)
    assert status == 0, f"the child failed: {status}"


def _run(prepare: Callable[[], T], piece: Callable[[T], object]) -> None:
    try:
        thing = prepare()
        _ptrace(_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        piece(thing)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        os._exit(1)


def _step(child: int) -> bool:
    _ptrace(_SINGLESTEP, child)
    stopped_by = _await(child)
    assert stopped_by in (signal.SIGTRAP, signal.SIGSTOP), f"the child got signal {stopped_by}"
    return stopped_by == signal.SIGTRAP


def _await(child: int) -> int:
    _, status = os.waitpid(child, 0)
    assert os.WIFSTOPPED(status), f"the child ended: {status}"
    return os.WSTOPSIG(status)


def _ptrace(request: int, child: int) -> None:
    if _libc.ptrace(request, child, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace: {os.strerror(error)}")
