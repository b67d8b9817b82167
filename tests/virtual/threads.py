"""Simulates a second thread in one thread: the other side makes a call in the middle of this side's Python code.

Between two instructions of a Sender's turn a user may send. Between two instructions of a user's call the Sender may
take a turn. CPython's tracing stops at every instruction, and the seed decides at which of them the other side runs.
The other side does not run while this side holds a lock. It cannot wait, since it runs to its end at once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import CodeType, FrameType, FunctionType
from typing import Any

from kafkabuf import producer
from kafkabuf.append import report
from kafkabuf.batches import accumulator
from kafkabuf.metadata import metadata
from kafkabuf.sending import sender
from kafkabuf.transactions import idempotence, manager, queue

# The modules that both sides run. Modules that remember something from seed to seed, such as codecs, are missing.
_FILES = {module.__file__ for module in (accumulator, idempotence, manager, metadata, producer, queue, report, sender)}
# Logging calls these methods, or does not, depending on its level: a seed must not depend on it.
_LOGGED_METHODS = ("__repr__", "__str__")
# The most interruptions in a seed.
_MOST = 100


class Threads:
    """`chance` is the probability of an interruption at each instruction; 0 allows none."""

    def __init__(self, random: Random, chance: float) -> None:
        self._random = random
        self._chance = chance
        self._other: Callable[[], object] | None = None
        self._locked: Callable[[], bool] = bool
        self.inside = False  # the other side runs
        self._left = _MOST

    def end(self) -> None:
        """Allow no further interruption."""
        self._left = 0

    @contextmanager
    def interrupted(self, other: Callable[[], object], locked: Callable[[], bool]) -> Iterator[None]:
        """`other` may be called at any instruction of the block at which `locked()` is false."""
        if not self._chance or not self._left or self.inside:
            yield
            return
        # A wait in a user's call runs the Sender's turns. During a turn the two sides swap their roles.
        before = self._other, self._locked
        self._other, self._locked = other, locked
        _watch(self._before_instruction)
        try:
            yield
        finally:
            self._other, self._locked = before
            _watch(None if self._other is None else self._before_instruction)

    def _wanted(self) -> bool:
        return self._left > 0 and not self.inside and self._random.random() < self._chance

    def _before_instruction(self) -> None:
        if self._wanted() and not self._locked():
            assert self._other is not None
            self.inside = True
            self._left -= 1
            try:
                self._other()
            finally:
                self.inside = False


def _is_watched(code: CodeType) -> bool:
    return code.co_filename in _FILES and code.co_name not in _LOGGED_METHODS


if sys.version_info >= (3, 12):
    # A trace function misses instructions of code that it has not seen before, so that a seed would depend on the seeds
    # that ran before it.
    _TOOL, _INSTRUCTION = 4, sys.monitoring.events.INSTRUCTION
    sys.monitoring.use_tool_id(_TOOL, "tests.virtual")

    def _codes() -> list[CodeType]:
        codes = [function.__code__ for function in gc.get_objects() if isinstance(function, FunctionType)]
        for code in codes:
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        return [code for code in {id(code): code for code in codes}.values() if _is_watched(code)]

    _CODES = _codes()

    def _watch(call: Callable[[], None] | None) -> None:
        """Call `call` before each instruction of `_FILES`, or stop doing so."""
        sys.monitoring.register_callback(_TOOL, _INSTRUCTION, None if call is None else lambda *_: call())
        for code in _CODES:
            sys.monitoring.set_local_events(_TOOL, code, 0 if call is None else _INSTRUCTION)

else:

    def _watch(call: Callable[[], None] | None) -> None:
        """Call `call` before each instruction of `_FILES`, or stop doing so."""

        def step(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "opcode" and call is not None:
                call()
            return step

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            if not _is_watched(frame.f_code):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return step

        sys.settrace(None if call is None else trace)
