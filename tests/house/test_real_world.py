"""The check that keeps patched threads, waits and clocks out of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    "source",
    [
        "import threading",
        "from threading import Lock",
        "import _thread",
        "import queue",
        "import select",
        "from concurrent.futures import ThreadPoolExecutor",
        "from datetime import datetime\n\nnow = datetime.now()",
        "import time\n\nnow = time.time()",
        "import time\n\nnow = time.monotonic()",
        "from time import sleep",
    ],
)
def test_lint_refuses_what_a_program_may_have_patched(source: str) -> None:
    assert "TID251" in _lint(source, "kafkabuf/sending/new.py")
    assert "TID251" not in _lint(source, "kafkabuf/process/threads.py")


def _lint(source: str, name: str) -> str:
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", name, "--output-format", "concise", "-"]
    return subprocess.run(command, cwd=ROOT, input=source + "\n", capture_output=True, text=True).stdout
