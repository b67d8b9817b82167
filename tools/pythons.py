"""The CPythons of this machine that kafkabuf supports: one of each version, from the PATH and from pyenv.

`python -m tools.pythons [--only VERSION] TARGET ...` runs `make TARGET ...` under each of them (`make test-pythons`).
Each has a virtual environment of its own, build/pythons/VERSION. A table of the results comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOOTSTRAP = ROOT / "tools" / "bootstrap.sh"
OLDEST = (3, 11)
_NAME = re.compile(r"python3(\.\d+t?)?")
_PROBE = """
import json, os, platform, sys, sysconfig
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps([platform.python_implementation(), platform.python_version(), free_threaded,
                  os.path.realpath(sys.executable)]))
"""


@dataclass(frozen=True)
class Python:
    """An interpreter: its path, its version, and why it cannot build kafkabuf ("" if it can)."""

    path: str
    version: str
    fault: str

    @property
    def series(self) -> str:
        """3.13 for version 3.13.0."""
        return self.version.rpartition(".")[0]


def found(only: str = "") -> list[Python]:
    """The supported interpreters, by version. The first usable interpreter of a series stands for the series."""
    series: dict[str, Python] = {}
    for path in dict.fromkeys(_candidates()):
        python = _probe(path)
        if python and only in ("", python.series) and (python.series not in series or series[python.series].fault):
            series[python.series] = python
    return [series[name] for name in sorted(series, key=lambda name: int(name.partition(".")[2]))]


def _candidates() -> Iterator[str]:
    """The interpreter that runs this comes first."""
    yield sys.executable
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        yield from (os.path.join(folder, name) for name in names if _NAME.fullmatch(name))
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(pyenv.glob("versions/*/bin/python3")))


def _probe(path: str) -> Python | None:
    """None for another implementation, an older version, and a shim of pyenv without an interpreter behind it."""
    done = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        return None
    implementation, version, free_threaded, executable = json.loads(done.stdout)
    if implementation != "CPython" or tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return None
    if free_threaded:
        return None  # kafkabuf needs the GIL: DESIGN.md, "Free-threaded Python"
    fault = subprocess.run([BOOTSTRAP, "python-fault", executable], capture_output=True, text=True, check=True).stdout
    return Python(executable, version, fault.strip())


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of equal length as columns; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.pythons", description="Run make under each CPython.")
    parser.add_argument("--only", default="", metavar="VERSION", help="one version alone, such as 3.13")
    parser.add_argument("targets", nargs="+", help="what make makes, with its variables")
    arguments = parser.parse_args()
    rows = [("python", "interpreter", "result", "seconds")]
    for python in found(arguments.only):
        began = time.monotonic()
        result = python.fault
        if not result:
            print(f"==== Python {python.version}: make {' '.join(arguments.targets)}", flush=True)
            variables = [f"VENV=build/pythons/{python.series}", f"PYTHON={python.path}"]
            status = subprocess.run(["make", *variables, *arguments.targets], cwd=ROOT).returncode
            result = f"failed: exit status {status}" if status else "passed"
        rows.append((python.version, python.path, result, f"{time.monotonic() - began:.0f}"))
    print(table(rows))
    return 0 if len(rows) > 1 and all(row[2] == "passed" for row in rows[1:]) else 1


if __name__ == "__main__":
    sys.exit(main())
