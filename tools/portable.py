"""The build for a system that is no Linux, run here: `python -m tools.portable [ARGUMENTS]`, or `make test-portable`.

The tool builds the extensions in a copy of the tree, build/portable, with -DKB_PORTABLE: without epoll, eventfd and
futexes, as on macOS (kafkabuf/process/_platform.h). Then it runs the tests of everything that waits for sockets, or
pytest with the arguments.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tools.copied_tree import ROOT, build, sync

COPY = ROOT / "build" / "portable"
TESTS = ("tests/network", "tests/sending", "tests/wire/test_wire.py", "tests/aio/test_aio.py")
_IS_PORTABLE = "from kafkabuf.network._io import BACKENDS; assert BACKENDS == ('poll',), BACKENDS"


def main() -> int:
    arguments = sys.argv[1:] or [*TESTS, "-n", str(len(os.sched_getaffinity(0))), "--dist", "loadfile"]
    sync(COPY)
    build(COPY, CFLAGS=f"{os.environ.get('CFLAGS', '')} -DKB_PORTABLE")
    environment = {**os.environ, "PYTHONPATH": str(COPY)}
    subprocess.run([sys.executable, "-c", _IS_PORTABLE], cwd=COPY, env=environment, check=True)
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not kafka and not spark"]
    return subprocess.run([*tests, *arguments], cwd=COPY, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
