"""Other versions of PySpark than the environment's: the oldest and the newest with Python data sources, and 3.5.

Each version is installed once, from its lock file, into the cache of the tests (rigs/jars.py). On the import path it
stands before the environment's PySpark. All other packages are those of the environment.
`python -m tests.spark.versions --fetch` fills the cache, with `3.5` behind it for that version alone.
`python -m tests.spark.versions ARGS` runs pytest with ARGS under the oldest and the newest. 3.5 has no data sources, so
it has tests of its own (test_map_in_arrow.py).
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
OLDEST, NEWEST = ROOT / "requirements/spark-oldest.lock", ROOT / "requirements/spark-newest.lock"
WITHOUT_DATA_SOURCES = ROOT / "requirements/spark-3.5.lock"


def version(lock: Path) -> str:
    """The version of pyspark in a lock file."""
    match = re.search(r"^pyspark==(\S+)", lock.read_text(), re.MULTILINE)
    assert match, f"{lock.name} names no pyspark"
    return match[1]


def packages(lock: Path) -> Path:
    """The folder with the packages of a lock file, for the import path."""
    return cached(f"pyspark-{version(lock)}", lambda part: _install(lock, part))


def _install(lock: Path, part: Path) -> None:
    started = time.monotonic()
    progress(f"installing pyspark {version(lock)} (once; some minutes, 500 MB) ...", end="\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # pip builds PySpark from source with the pinned setuptools of the environment.
    subprocess.run(
        [*pip, "--require-hashes", "--no-build-isolation", "--target", str(part), "-r", str(lock)], check=True
    )
    progress(f"installed pyspark {version(lock)}, {time.monotonic() - started:.0f} s", end="\n")


def import_path(folder: Path | None) -> str:
    """A PYTHONPATH that begins with `folder`, unless that is None."""
    return os.pathsep.join(filter(None, (str(folder or ""), str(ROOT), os.environ.get("PYTHONPATH"))))


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--fetch"]:
        for lock in (WITHOUT_DATA_SOURCES,) if arguments[1:] == ["3.5"] else (WITHOUT_DATA_SOURCES, OLDEST, NEWEST):
            packages(lock)
        return 0
    folders = [packages(lock) for lock in (OLDEST, NEWEST)]
    status = 0
    for folder in folders:
        print(f"==== {folder.name}", flush=True)
        environment = {**os.environ, "PYTHONPATH": import_path(folder)}
        # PySpark 4.0 leaves its sockets to the garbage collector. kafkabuf cannot change that.
        quiet = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
        done = subprocess.run([sys.executable, "-m", "pytest", *quiet, *arguments], cwd=ROOT, env=environment)
        status = status or done.returncode
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
