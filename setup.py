"""The compiled half of the build: every kafkabuf/**/*.pyx becomes one extension. All else is in pyproject.toml."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
PACKAGE = Path("kafkabuf")

# No -march: the wheel must run on every x86-64 and aarch64 machine; CPU features are found at run time (_crc*.h).
# -DNDEBUG and -fwrapv are among Python's own flags, which CFLAGS in the environment replaces. -g1 has functions and
# lines for profilers and backtraces; the -g of Python's flags has variables too, and would take a third of the build.
# -O2 costs the kernels of `make bench-gate` a tenth. An extension that works once a batch or less has -O1 in a comment
# `# distutils:` at its beginning, which compiles in two thirds of the time.
C_FLAGS = ["-O3", "-g1", "-DNDEBUG", "-fwrapv", "-Wall", "-Wextra"]

DIRECTIVES = {
    # Nothing of ours is pickled by its fields: __setstate__ would put in place what methods do not check.
    "auto_pickle": False,
    # Plain method descriptors: CPython calls them without a bound method in between, and refuses a `self` of another
    # type, as in RecordFuture.done(5), which Cython's own functions take for granted.
    "binding": False,
    "embedsignature": True,
    "embedsignature.format": "clinic",
}

# For `make sanitize`, which builds in a copy of the tree. Python's own flags have -fwrapv, under which no overflow of a
# signed number counts as one. With -O0 the compiler would save as much time as the tests lose.
_SANITIZERS = "-fsanitize=address,undefined"
SANITIZED = ["-O1", _SANITIZERS, "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-fno-wrapv"]

# A wheel carries neither debug information, which is four fifths of its size, nor the path of the folder where it was
# built: two builds of one commit are equal.
SHIPPED = ["-g0", f"-ffile-prefix-map={ROOT.absolute()}=."]
STRIPPED = ["-Wl,--strip-all"] if sys.platform == "linux" else []


def extensions() -> list[Extension]:
    """One extension for each .pyx, wherever it lies. Cython follows .pxd files by itself, C headers it does not."""
    sanitize = os.environ.get("KAFKABUF_SANITIZE") == "1"
    wheel = "bdist_wheel" in sys.argv
    headers = sorted(str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).rglob("*.h"))
    return [
        Extension(
            ".".join(source.with_suffix("").parts),
            [str(source)],
            include_dirs=[str(PACKAGE)],
            depends=[*headers, "setup.py"],
            extra_compile_args=[*C_FLAGS, *(SANITIZED if sanitize else ()), *(SHIPPED if wheel else ())],
            extra_link_args=[*([_SANITIZERS] if sanitize else ()), *(STRIPPED if wheel else ())],
        )
        for source in sorted(path.relative_to(ROOT) for path in (ROOT / PACKAGE).rglob("*.pyx"))
    ]


def available_cpus() -> int:
    """The CPUs that this process may use, where the platform says so; else those of the machine."""
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Cython's worker processes may import this file again (forkserver, the default from Python 3.14 on).
if __name__ == "__main__":
    if sys.platform == "win32":
        sys.exit("kafkabuf does not run on Windows: use Linux or macOS, or the Windows Subsystem for Linux (WSL 2).")
    jobs = available_cpus()
    # `make build` compiles in place by itself, only what has changed; pip's editable install would compile everything
    # anew in a temporary folder. An sdist has the .pyx files and not the C files that Cython makes of them.
    without_extensions = os.environ.get("KAFKABUF_BUILT_IN_PLACE") == "1" or "sdist" in sys.argv
    setup(
        ext_modules=[]
        if without_extensions
        else cythonize(
            extensions(),
            nthreads=jobs,
            language_level=3,
            compiler_directives=DIRECTIVES,
        ),
        options={"build_ext": {"parallel": jobs}},
    )
