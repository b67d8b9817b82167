"""No extension may tell a free-threaded interpreter that it works without the GIL.

The locks are there (kafkabuf/process/_lock.h), but two dependencies do not work without the GIL: DESIGN.md,
"Free-threaded Python".
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kafkabuf.batches._accumulator import PartitionQueue

ROOT = Path(__file__).parents[2]


def test_no_extension_claims_to_work_without_the_gil() -> None:
    assert PartitionQueue("t", 0).partition == 0  # imported: a free-threaded interpreter has turned the GIL on
    assert getattr(sys, "_is_gil_enabled", lambda: True)() or os.environ.get("PYTHON_GIL") == "0"
    sources = [*ROOT.glob("kafkabuf/**/*.pyx"), *ROOT.glob("kafkabuf/**/*.pxd"), ROOT / "setup.py"]
    assert len(sources) > 20
    assert not [source.name for source in sources if "freethreading_compatible" in source.read_text()]
