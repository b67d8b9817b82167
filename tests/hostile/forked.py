"""Runs a test that may end its process in a child process, so that the other tests still run.

`in_a_child` forks, which is fast. A process chooses its allocator when it starts, so
`run_where_freed_memory_is_overwritten` starts a new interpreter for each child.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec

Arguments = ParamSpec("Arguments")


def in_a_child(test: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """A decorator: the test fails when its child fails, or dies."""

    @functools.wraps(test)
    def run(*args: Arguments.args, **keywords: Arguments.kwargs) -> None:
        child = os.fork()
        if child == 0:
            try:
                test(*args, **keywords)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}; its error is above"

    return run


def run_where_freed_memory_is_overwritten(scenario: Callable[[], None]) -> None:
    """Call a function of a module in a new interpreter, in which touching freed memory crashes."""
    call = f"from {scenario.__module__} import {scenario.__name__} as scenario; scenario()"
    settings = {**os.environ, "PYTHONMALLOC": "debug", "MALLOC_PERTURB_": "165"}
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, timeout=60, env=settings)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
