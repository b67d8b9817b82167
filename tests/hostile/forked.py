"""Runs a test that may end its process in a child process, so that the other tests still run."""

from __future__ import annotations

import functools
import os
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
