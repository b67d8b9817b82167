"""Counts the instructions of bench/kernels.py under valgrind's callgrind. A busy machine does not change the counts.

One process runs all kernels. Callgrind counts only them, and not the start of the interpreter: the library of
bench/callgrind.c, which this module compiles and preloads, marks the begin and the end of each kernel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import compiled
from bench.kernels import ALL, ROUNDS

ROOT = Path(__file__).parent.parent
TIME_OUT = 3600.0  # seconds for all kernels, which take twenty on a quiet machine: only a hang takes so long

# The whole environment of the process. Nothing that differs between runs or machines may change the instructions:
# hashes have no random seed, and libraries start no worker threads.
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

_TRIGGER = "desc: Trigger: Client Request: "
_DEFINED = re.compile(r"\((\d+)\)(?: (.+))?")


class CallgrindError(Exception):
    """Callgrind could not count. The message says what is missing."""


@dataclass(frozen=True)
class Count:
    """Instructions for one unit of a kernel's work: in kafkabuf's extensions alone, and in the whole process."""

    own: float
    total: float


def count_kernels() -> dict[str, Count]:
    """The count of every kernel."""
    valgrind, setarch = _path_of("valgrind"), _path_of("setarch")
    compiled.load("core")  # the kernels' process has no PATH, and so no compiler
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        preload = _compile_marks(folder)
        command = [setarch, "-R", valgrind, "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"]
        command += ["--dump-line=no", f"--callgrind-out-file={folder / 'out'}", sys.executable, "-m", "bench.kernels"]
        environment = ENVIRONMENT | {"LD_PRELOAD": str(preload)}
        done = _run(command, environment)
        if done.returncode:
            raise CallgrindError(f"the kernels failed under callgrind:\n{done.stderr}")
        rounds: dict[str, list[tuple[float, float]]] = {}
        for path in folder.glob("out.*"):  # a file for each kernel; the file without a number follows the last kernel
            kernel, own, total = parse(path.read_text(), str(ROOT / "kafkabuf") + os.sep)
            rounds.setdefault(kernel, []).append((own / ALL[kernel].units, total / ALL[kernel].units))
    if {kernel: len(counts) for kernel, counts in rounds.items()} != dict.fromkeys(ALL, ROUNDS):
        raise CallgrindError(f"callgrind counted {sorted(rounds)}, but {sorted(ALL)} ran, {ROUNDS} times each")
    return {kernel: Count(*map(min, zip(*rounds[kernel], strict=True))) for kernel in ALL}


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIME_OUT)
    except subprocess.TimeoutExpired:
        raise CallgrindError(
            f"the kernels did not end under callgrind within {TIME_OUT:.0f} s, and were ended: run `python -m "
            "bench.kernels` to see whether they end without it"
        ) from None


def _path_of(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        raise CallgrindError(
            f"{tool} is not installed. Debian, Ubuntu: apt install valgrind util-linux. Fedora: dnf install valgrind "
            "valgrind-devel util-linux"
        )
    return path


def _compile_marks(folder: Path) -> Path:
    target = folder / "marks.so"
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    source = str(Path(__file__).with_suffix(".c"))
    command = [*compiler.split(), "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", str(target), source]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CallgrindError(f"{compiler} could not compile {source}:\n{done.stderr}")
    return target


def parse(profile: str, own: str) -> tuple[str, int, int]:
    """(kernel, instructions in objects below `own`, all instructions) of one of callgrind's dumps.

    Valgrind's manual describes the format: cost lines follow the `ob=` and `fn=` that they belong to. A name appears in
    full once, and afterwards as a number. The line behind `calls=` is the cost of the callee, whose own lines have it.
    """
    kernel = ""
    names: dict[str, str] = {}
    inside = False
    costs = {True: 0, False: 0}
    lines = iter(profile.splitlines())
    for line in lines:
        if line.startswith(_TRIGGER):
            kernel = line.removeprefix(_TRIGGER)
        elif line.startswith(("ob=", "cob=")):
            match = _DEFINED.match(line.partition("=")[2])
            assert match is not None
            names.setdefault(match[1], match[2])
            if line.startswith("ob="):
                inside = names[match[1]].startswith(own)
        elif line.startswith("calls="):
            next(lines)
        elif line[:1] in "0123456789+-*" and line:
            costs[inside] += int(line.split()[1])
    return kernel, costs[True], costs[True] + costs[False]
