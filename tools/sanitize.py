"""The extensions under AddressSanitizer and UndefinedBehaviorSanitizer: `python -m tools.sanitize`, or `make sanitize`.

They are built in a copy of the tree, build/sanitize, so that those in place stay as they are. There, after a check that
the sanitizers bite, run the fuzzers of the Python API and of the broker's requests, and the tests that
tests/hostile/sanitized.py lets in. What the fuzzers leave is in build/sanitize/build/fuzz.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from setup import SANITIZED

ROOT = Path(__file__).parent.parent
COPY = ROOT / "build" / "sanitize"
FOLDERS = ("kafkabuf", "pyspark_kafkabuf", "rigs", "tests", "tools", "bench", "docs")
_MADE = (".so", ".pyc", ".html")

# What must end a process, and what must be said then. Our own code is led astray by Arrow data that lies where no check
# can notice: the interface has no length for a buffer. What a compiler makes of a C file shows that undefined behaviour
# ends the process, too.
_LIES = """
    import ctypes
    import pyarrow as pa
    from rigs.arrow_abi import Lying, child, table
    from rigs.producer import TOPIC, Rig
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    rig, values = Rig(), table(["abc"], pa.string())
    memory = malloc({size})
    ctypes.memmove(memory, b"ab", 2)
    with Lying(values, lambda array: child(array, 0).buffers.__setitem__(2, memory)) as data:
        rig.producer.send_arrow(data, TOPIC)
    print("went on")
"""
_OVERFLOWS = """
    import ctypes
    print(ctypes.CDLL({library!r}).add(2**31 - 1, {addend}), "went on")
"""


class SanitizeError(Exception):
    """What makes the sanitizers of no use here."""


def sync() -> None:
    """Make the copy what the tree is, but for what compilers made of it. Times are kept: only what changed is built."""
    here = {path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if _is_source(path)}
    here |= {path.relative_to(ROOT) for path in ROOT.iterdir() if path.is_file()}
    for name in here:
        old, new = ROOT / name, COPY / name
        if not new.exists() or new.stat().st_mtime_ns != old.stat().st_mtime_ns:
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(old, new)
    for folder in FOLDERS:
        for path in (COPY / folder).rglob("*"):
            if _is_source(path) and path.suffix != ".c" and path.relative_to(COPY) not in here:
                path.unlink()


def _is_source(path: Path) -> bool:
    return path.is_file() and path.suffix not in _MADE and "__pycache__" not in path.parts


def build() -> None:
    environment = {**os.environ, "KAFKABUF_SANITIZE": "1", "PYTHONPATH": str(COPY)}
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=COPY, env=environment, check=True
    )


def compiler() -> str:
    found = shutil.which("gcc")
    if found is None:
        raise SanitizeError("gcc is needed, whose libasan, libubsan and libstdc++ are loaded first: install it")
    return found


def environment() -> dict[str, str]:
    """Of a process under sanitizers."""
    libraries = []
    for name in ("libasan.so", "libubsan.so", "libstdc++.so"):  # the last for C++ exceptions, which ASAN looks into
        path = subprocess.run([compiler(), f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        if not Path(path).is_absolute():
            raise SanitizeError(f"{compiler()} has no {name}: install its sanitizers (Debian: libasan, libubsan)")
        libraries.append(path)
    halt = "halt_on_error=1:abort_on_error=1:print_stacktrace=1"
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        # Python's own allocators, and Arrow's, hand out memory that the sanitizers know nothing of.
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        # CPython leaves memory at exit. Tests ask for more than there is, and want their MemoryError.
        "ASAN_OPTIONS": f"{halt}:detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": halt,
        "PYTHONPATH": str(COPY),
    }


def run(*arguments: str) -> int:
    """`python ARGUMENTS` in the copy, under sanitizers."""
    print("sanitize: python", *arguments, flush=True)
    return subprocess.run([sys.executable, *arguments], cwd=COPY, env=environment()).returncode


def check() -> None:
    """The sanitizers are there, in every extension, and end a process: SanitizeError where they do not."""
    for extension in sorted((COPY / "kafkabuf").rglob("*.so")):
        held = extension.read_bytes()
        if b"__asan_report" not in held or b"__ubsan_handle" not in held:
            raise SanitizeError(
                f"{extension.relative_to(COPY)} was built without sanitizers: remove {COPY}, start again"
            )
    library = _compiled("add", "int add(int a, int b) { return a + b; }")
    for said, bad, good in (
        ("heap-buffer-overflow", _LIES.format(size=2), _LIES.format(size=3)),
        ("signed integer overflow", _OVERFLOWS.format(library=library, addend=1),
         _OVERFLOWS.format(library=library, addend=0)),
    ):  # fmt: skip
        if (told := _told_by(good)) != "":
            raise SanitizeError(f"what is right ends the process as well:\n{told}")
        if said not in _told_by(bad):
            raise SanitizeError(f"{said} goes unnoticed by the sanitizers:\n{_told_by(bad)}")
    print("sanitize: one byte too many, and an overflow, end the process, as they must", flush=True)


def _compiled(name: str, text: str) -> str:
    """A library of C code, made as our extensions are."""
    source, library = COPY / "build" / f"{name}.c", COPY / "build" / f"{name}.so"
    source.write_text(text)
    subprocess.run([compiler(), "-shared", "-fPIC", *SANITIZED, "-o", str(library), str(source)], check=True)
    return str(library)


def _told_by(script: str) -> str:
    """What a process says as it ends early; "" where it goes on to its end."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=COPY, env=environment(), capture_output=True, text=True
    )
    return "" if done.returncode == 0 and "went on" in done.stdout else done.stderr or "nothing"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.sanitize", description="Run ours under sanitizers.")
    parser.add_argument("--seconds", type=int, default=60, help="for each fuzzer (default %(default)s)")
    parser.add_argument("--core", action="store_true", help="the share of CI: API fuzzer and the Cython core's tests")
    arguments, others = parser.parse_known_args()  # what we do not know goes to pytest
    began = time.monotonic()
    sync()
    build()
    try:
        check()
    except SanitizeError as error:
        print(error, file=sys.stderr)
        return 1
    # Descriptor 2 is not pytest's, for a process that ends early says why there.
    tests = ["pytest", "-q", "--capture=sys", "-p", "no:cacheprovider", "-p", "tests.hostile.sanitized"]
    tests += ["--core"] if arguments.core else []
    steps = [["tests.hostile.fuzz_api", "--seconds", str(arguments.seconds)], [*tests, *others]]
    if not arguments.core:  # atheris brings sanitizers of its own, which do not go with these
        steps.insert(1, ["tests.hostile.fuzz_requests", "--own", "--seconds", str(arguments.seconds)])
    failed = [" ".join(step) for step in steps if run("-m", *step) != 0]
    for step in failed:
        print(f"sanitize: failed: python -m {step}", file=sys.stderr)
    print(f"sanitize: {len(steps) - len(failed)} of {len(steps)} steps passed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
