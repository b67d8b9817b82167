"""Calls before each bytecode instruction of chosen modules, in place of another thread."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

_TOOL = 4  # the number of no tool that sys.monitoring names


class Instructions:
    """The instructions of all functions of `modules`, except the functions with a name in `without`."""

    def __init__(self, modules: Iterable[ModuleType], without: Collection[str] = ()) -> None:
        self._files = {module.__file__ for module in modules}
        self._without = without
        self._codes = self._watched_codes() if sys.version_info >= (3, 12) else []

    def _is_watched(self, code: CodeType) -> bool:
        return code.co_filename in self._files and code.co_name not in self._without

    def _watched_codes(self) -> list[CodeType]:
        codes = [function.__code__ for function in gc.get_objects() if isinstance(function, FunctionType)]
        for code in codes:
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        return [code for code in {id(code): code for code in codes}.values() if self._is_watched(code)]

    @contextmanager
    def interrupted(self, call: Callable[[], object]) -> Iterator[None]:
        """Make `call` before each instruction of this thread in the block."""
        self.watch(call)
        try:
            yield
        finally:
            self.watch(None)

    if sys.version_info >= (3, 12):
        # A trace function misses instructions of code that it has not seen before.

        def watch(self, call: Callable[[], object] | None) -> None:
            """Make `call` before each instruction of this thread from now on. None ends that."""
            thread = get_ident()

            def step(*_: object) -> None:
                if call is not None and get_ident() == thread:
                    call()

            tool, event = _TOOL, sys.monitoring.events.INSTRUCTION
            if sys.monitoring.get_tool(tool) is None:
                sys.monitoring.use_tool_id(tool, "tests.instructions")
            sys.monitoring.register_callback(tool, event, step)
            for code in self._codes:
                sys.monitoring.set_local_events(tool, code, 0 if call is None else event)

    else:

        def watch(self, call: Callable[[], object] | None) -> None:
            """Make `call` before each instruction of this thread from now on. None ends that."""

            def step(frame: FrameType, event: str, arg: Any) -> Any:
                if event == "opcode" and call is not None:
                    call()
                return step

            def trace(frame: FrameType, event: str, arg: Any) -> Any:
                if not self._is_watched(frame.f_code):
                    return None
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
                return step

            sys.settrace(None if call is None else trace)
