"""The user looks for the line of the call: frames of ours leave the traceback of an error that is raised on purpose.

`_arguments.h` does the same for KafkaProducer.send().
"""

from __future__ import annotations

from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)

# Packages whose frames tell the user nothing: our own, and those that run our code in another thread or task.
_UNTOLD = frozenset({"asyncio", "concurrent", "kafkabuf", "threading"})


def without_ours(error: Error) -> Error:
    """The error, without its traceback where it has passed no code of the user's."""
    entry = error.__traceback__
    while entry is not None:
        module = entry.tb_frame.f_globals.get("__name__")
        if not isinstance(module, str) or module.partition(".")[0] not in _UNTOLD:
            return error
        entry = entry.tb_next
    return error.with_traceback(None)
