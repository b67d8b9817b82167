"""PySpark in other versions than the environment's: the oldest that the sink takes, and the newest.

Each is installed once into the tests' cache (rigs/jars.py), as its lock file says, and goes before the environment's
own on the import path; all else is the environment's. `python -m tests.spark.versions --fetch` fills the cache;
`python -m tests.spark.versions ARGS` runs pytest with ARGS under each.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from rigs.jars import cached, progress

ROOT = Path(__file__).parents[2]
OLDEST, NEWEST = ROOT / "requirements-spark-oldest.lock", ROOT / "requirements-spark-newest.lock"


def version(lock: Path) -> str:
    """The pyspark that a lock file has."""
    found = re.search(r"^pyspark==(\S+)", lock.read_text(), re.MULTILINE)
    assert found, f"{lock.name} names no pyspark"
    return found[1]


def packages(lock: Path) -> Path:
    """The folder with a lock's packages, to be put on the import path."""
    return cached(f"pyspark-{version(lock)}", lambda part: _install(lock, part))


def _install(lock: Path, part: Path) -> None:
    started = time.monotonic()
    progress(f"installing pyspark {version(lock)} (once; some minutes, 500 MB) ...", end="\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Its source is packed with the environment's own, pinned setuptools.
    subprocess.run(
        [*pip, "--require-hashes", "--no-build-isolation", "--target", str(part), "-r", str(lock)], check=True
    )
    progress(f"installed pyspark {version(lock)}, {time.monotonic() - started:.0f} s", end="\n")


def import_path(folder: Path | None) -> str:
    """PYTHONPATH with the folder first, if there is one."""
    return os.pathsep.join(filter(None, (str(folder or ""), str(ROOT), os.environ.get("PYTHONPATH"))))


def main(arguments: list[str]) -> int:
    folders = [packages(lock) for lock in (OLDEST, NEWEST)]
    if arguments == ["--fetch"]:
        return 0
    status = 0
    for folder in folders:
        print(f"==== {folder.name}", flush=True)
        environment = {**os.environ, "PYTHONPATH": import_path(folder)}
        # PySpark 4.0 leaves sockets to the garbage collector, which is none of ours.
        quiet = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
        done = subprocess.run([sys.executable, "-m", "pytest", *quiet, *arguments], cwd=ROOT, env=environment)
        status = status or done.returncode
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
