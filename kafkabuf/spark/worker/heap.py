"""Spares Python's garbage collector the modules of a Python worker.

PySpark collects all garbage after each task and each call on the driver (`gc.collect()` in pyspark/daemon.py), before
the worker can take the next. The collector visits every object of every module: with pandas, which PySpark imports to
report a task, that takes longer than a task with a few rows. Frozen objects are not visited (`gc.freeze`).
"""

from __future__ import annotations

import gc
import sys

_calls = 0


def freeze() -> None:
    """Call this as each task or call begins: it freezes at the second, when all is imported and all garbage is gone.

    It does nothing outside of PySpark's workers: there the collector belongs to the user.
    """
    global _calls
    if not _in_worker():
        return
    _calls += 1
    if _calls == 2:
        gc.freeze()


def thaw() -> None:
    """Call this when a producer has been closed: its memory must not stay. A later task freezes again."""
    global _calls
    if _in_worker():
        gc.unfreeze()
        _calls = 0


def _in_worker() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name == "pyspark.daemon"
