"""setup.py says at once where kafkabuf cannot be installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_windows_is_refused_with_a_sentence() -> None:
    imports = "import runpy, setuptools, sys, Cython.Build"  # with the modules of this system
    code = f"{imports}; sys.platform = 'win32'; runpy.run_path('setup.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "kafkabuf does not run on Windows: use Linux or macOS, or the Windows Subsystem for Linux (WSL 2)."
    )
