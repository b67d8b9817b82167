"""The extensions under AddressSanitizer and UndefinedBehaviorSanitizer: `python -m tools.sanitize`, or `make sanitize`.

The tool builds them in a copy of the tree, build/sanitize, and leaves the extensions in place alone. It checks that the
sanitizers work. Then it runs, in the copy, the fuzzers of the Python API and of the broker's requests, the tests that
tests/hostile/sanitized.py selects, and the sweep of missing memory (tests/hostile/no_memory.py). The fuzzers leave
their failures in build/sanitize/build/fuzz.
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
from tools.copied_tree import ROOT, build, sync

COPY = ROOT / "build" / "sanitize"

# Two faults that must end a process. Our own code reads too far in Arrow data with a lie that no check can detect: the
# interface has no length for a buffer. A C file shows that undefined behaviour ends the process, too.
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


# Sanitized calls make more allocations of their own, and take ten times as long: every third n finds the same places.
NO_MEMORY = ("--step", "3", "--failures", "1", "2", "4", "8")


class SanitizeError(Exception):
    """The sanitizers are missing, or do not work here."""


def compiler() -> str:
    path = shutil.which("gcc")
    if path is None:
        raise SanitizeError("gcc is missing, and the processes need its libasan, libubsan and libstdc++: install gcc")
    return path


def environment() -> dict[str, str]:
    """The environment of a process under sanitizers."""
    libraries = []
    for name in ("libasan.so", "libubsan.so", "libstdc++.so"):  # ASAN needs the last for C++ exceptions
        path = subprocess.run([compiler(), f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        if not Path(path).is_absolute():
            raise SanitizeError(f"{compiler()} has no {name}: install its sanitizers (Debian: libasan, libubsan)")
        libraries.append(path)
    halt = "halt_on_error=1:abort_on_error=1:print_stacktrace=1"
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        # The sanitizers do not see the memory that Python's and Arrow's own allocators hand out.
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        # CPython does not free all memory at exit. Tests that ask for too much memory expect a MemoryError.
        "ASAN_OPTIONS": f"{halt}:detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": halt,
        "PYTHONPATH": str(COPY),
    }


def run(*arguments: str) -> int:
    """Run `python ARGUMENTS` in the copy, under sanitizers; returns its exit status."""
    print("sanitize: python", *arguments, flush=True)
    return subprocess.run([sys.executable, *arguments], cwd=COPY, env=environment()).returncode


def check() -> None:
    """Every extension has sanitizers, and each sanitizer ends a process with a fault. Raises SanitizeError."""
    for extension in sorted((COPY / "kafkabuf").rglob("*.so")):
        code = extension.read_bytes()
        if b"__asan_report" not in code or b"__ubsan_handle" not in code:
            raise SanitizeError(
                f"{extension.relative_to(COPY)} was built without sanitizers: remove {COPY}, and start again"
            )
    library = _compiled("add", "int add(int a, int b) { return a + b; }")
    for message, bad, good in (
        ("heap-buffer-overflow", _LIES.format(size=2), _LIES.format(size=3)),
        ("signed integer overflow", _OVERFLOWS.format(library=library, addend=1),
         _OVERFLOWS.format(library=library, addend=0)),
    ):  # fmt: skip
        if (report := _report_of(good)) != "":
            raise SanitizeError(f"the sanitizers end a process without a fault:\n{report}")
        if message not in _report_of(bad):
            raise SanitizeError(f"the sanitizers do not notice a {message}:\n{_report_of(bad)}")
    print("sanitize: a read past a buffer, and an integer overflow, end the process, as they must", flush=True)


def _compiled(name: str, text: str) -> str:
    """Compile a library of C code with the options of our extensions."""
    source, library = COPY / "build" / f"{name}.c", COPY / "build" / f"{name}.so"
    source.write_text(text)
    subprocess.run([compiler(), "-shared", "-fPIC", *SANITIZED, "-o", str(library), str(source)], check=True)
    return str(library)


def _report_of(script: str) -> str:
    """The standard error of a process that ends early; "" if it runs to its end."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=COPY, env=environment(), capture_output=True, text=True
    )
    return "" if done.returncode == 0 and "went on" in done.stdout else done.stderr or "nothing"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.sanitize", description="Run fuzzers and tests sanitized.")
    parser.add_argument("--seconds", type=int, default=60, help="for each fuzzer (default %(default)s)")
    parser.add_argument(
        "--core", action="store_true", help="the part that CI runs: the API fuzzer, and the Cython core's tests"
    )
    arguments, pytest_arguments = parser.parse_known_args()
    began = time.monotonic()
    if arguments.core:  # the whole `make sanitize` has more seeds and examples
        os.environ.setdefault("KAFKABUF_EFFORT", "quick")
    sync(COPY)
    build(COPY, KAFKABUF_SANITIZE="1")
    try:
        check()
    except SanitizeError as error:
        print(error, file=sys.stderr)
        return 1
    # pytest must not capture descriptor 2: a process that ends early writes its report there.
    tests = ["pytest", "-q", "--capture=sys", "-p", "no:cacheprovider", "-p", "tests.hostile.sanitized"]
    tests += ["-n", str(len(os.sched_getaffinity(0))), "--dist", "loadfile"]
    tests += ["--core"] if arguments.core else []
    steps = [["tests.hostile.fuzz_api", "--seconds", str(arguments.seconds)], [*tests, *pytest_arguments]]
    if not arguments.core:  # without atheris, which has sanitizers of its own: they do not work beside these
        steps.insert(1, ["tests.hostile.fuzz_requests", "--seconds", str(arguments.seconds)])
        steps.append(["tests.hostile.no_memory", *NO_MEMORY])
    failed = [" ".join(step) for step in steps if run("-m", *step) != 0]
    for step in failed:
        print(f"sanitize: failed: python -m {step}", file=sys.stderr)
    print(f"sanitize: {len(steps) - len(failed)} of {len(steps)} steps passed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
