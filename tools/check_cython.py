"""Cython's own advice is an error: `python -m tools.check_cython` exits 1 on any warning or performance hint.

A hint means that a nogil leaf checks for exceptions or takes the GIL where its signature did not intend it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent


def advice(source: Path) -> str:
    """What Cython says about one .pyx; empty when it has nothing to say."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "out.c"
        command = [sys.executable, "-m", "cython", "-3", "-X", "show_performance_hints=True", "-o", str(target)]
        done = subprocess.run([*command, str(source)], cwd=ROOT, capture_output=True, text=True)
    return done.stderr.strip()


def main() -> int:
    sources = sorted(path.relative_to(ROOT) for path in (ROOT / "kafkabuf").rglob("*.pyx"))
    with ThreadPoolExecutor(2) as pool:
        said = [text for text in pool.map(advice, sources) if text]
    print("\n".join(said) or f"Cython has no advice on {len(sources)} files.")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
