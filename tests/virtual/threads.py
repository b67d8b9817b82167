"""Threads, as far as one thread can have them: a call of the other side in the middle of this one's Python code.

Between any two instructions of a Sender's turn another thread may send; between any two of a user's call the Sender may
take a turn. CPython's tracing stops at every instruction, and the seed says at which of them the other side gets in. It
does not get in while this side holds a lock, nor, since it runs to its end at once, can it wait.
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

# Where both sides meet. Not where something is remembered from one seed to the next, as codecs are.
_FILES = {one.__file__ for one in (accumulator, idempotence, manager, metadata, producer, queue, report, sender)}
# Called where something is logged, which depends on who listens.
_WORDS = ("__repr__", "__str__")
# How often in a seed somebody gets in.
_MOST = 100


class Threads:
    """`chance` is that of each instruction; 0: nobody is interrupted."""

    def __init__(self, random: Random, chance: float) -> None:
        self._random = random
        self._chance = chance
        self._other: Callable[[], object] | None = None
        self._locked: Callable[[], bool] = bool
        self.inside = False  # the other side is being let in
        self._left = _MOST

    def end(self) -> None:
        """Nobody is interrupted any more."""
        self._left = 0

    @contextmanager
    def interrupted(self, other: Callable[[], object], locked: Callable[[], bool]) -> Iterator[None]:
        """`other` may be called anywhere within, unless `locked`."""
        if not self._chance or not self._left or self.inside:
            yield
            return
        # A wait in a user's call gives the Sender its turns: for so long it is the other way round.
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
    return code.co_filename in _FILES and code.co_name not in _WORDS


if sys.version_info >= (3, 12):
    # A trace function is told of fewer instructions of code that it has not seen before: after others a seed would be
    # another one.
    _TOOL, _INSTRUCTION = 4, sys.monitoring.events.INSTRUCTION
    sys.monitoring.use_tool_id(_TOOL, "tests.virtual")

    def _codes() -> list[CodeType]:
        found = [one.__code__ for one in gc.get_objects() if isinstance(one, FunctionType)]
        for code in found:
            found += [one for one in code.co_consts if isinstance(one, CodeType)]
        return [code for code in {id(one): one for one in found}.values() if _is_watched(code)]

    _CODES = _codes()

    def _watch(call: Callable[[], None] | None) -> None:
        """Have `call` called before each instruction of the files above."""
        sys.monitoring.register_callback(_TOOL, _INSTRUCTION, None if call is None else lambda *_: call())
        for code in _CODES:
            sys.monitoring.set_local_events(_TOOL, code, 0 if call is None else _INSTRUCTION)

else:

    def _watch(call: Callable[[], None] | None) -> None:
        """Have `call` called before each instruction of the files above."""

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
