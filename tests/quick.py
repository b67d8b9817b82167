"""`python -m tests.quick [--installed] [ARGS]`: the tests that start no process, in a minute; no Java, no download.

ARGS go to pytest. Without them the tests run on all cores, and those of tests/lengthy.txt are left out. `--installed`
tests an installed kafkabuf: the folder that has tests/ and rigs/ must not have the package. Tests of the tree's own
files, and of PySpark, are then left out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

MARKERS = "not kafka and not spark and not processes and not slow"
# Folders whose tests start a JVM, or are about the tree.
OTHER_FOLDERS = ("conformance", "house", "pages", "real", "spark")
OTHER_FILES = {
    "tests/cli/test_cli.py": "imports PySpark, 450 MB",
    "tests/cli/test_spark.py": "imports PySpark",
    "tests/config/test_secrets.py": "imports PySpark",
    "tests/cpython/test_free_threading.py": "reads the sources of the extensions",
    "tests/hostile/test_sanitize.py": "imports Cython",
}


def workers() -> int:
    """One more than cores, because some tests wait."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return 1 + len(cores)


def command(arguments: list[str]) -> list[str]:
    """The command that runs pytest."""
    installed = arguments[:1] == ["--installed"]
    arguments = arguments[installed:]
    options = ["-q", "-m", MARKERS if arguments else f"{MARKERS} and not lengthy"]
    if not arguments:
        options += ["-n", str(workers()), "--dist", "loadfile", "--no-loadscope-reorder"]
        options += [f"--ignore=tests/{folder}" for folder in OTHER_FOLDERS]
    if installed:
        options += [f"--ignore={path}" for path in OTHER_FILES]
    return [sys.executable, "-m", "pytest", *options, *arguments]


def main(arguments: list[str]) -> None:
    if "--installed" in arguments[:1] and Path("kafkabuf").exists():
        sys.exit("tests.quick: this folder has a kafkabuf of its own, which would hide the installed kafkabuf")
    os.environ["KAFKABUF_EFFORT"] = "quick"
    os.execv(sys.executable, command(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
