"""Try a wheel as a stranger installs it: `python tools/try_wheel.py WHEEL [--smoke-only] [PYTEST_ARGS ...]`.

Everything happens in a temporary folder outside of the tree. An empty virtual environment of the running Python gets
the wheel and its declared dependencies, in which tests/smoke.py runs. Then the environment gets what the tests need,
and the quick tests (tests/quick.py) run from a copy that lies beside no kafkabuf.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "test.lock"
# What the tests import and read.
COPIED = ("tests", "bench", "rigs", "tools", "docs", "pyproject.toml", "README.md", "setup.py")
EXTRAS = ("test", "spark")
# bench/compiled.py compiles an extension against the wheel's .pxd files.
BUILD = ("setuptools", "cython")
# PySpark has 450 MB and atheris no wheel for most platforms; the quick tests need neither.
NOT_NEEDED = {"pyspark", "atheris"}
# It has no wheels for musl, and the smoke test needs no regular expression.
NO_MUSL = {"google-re2"}


class Trial:
    """A folder with a virtual environment for the wheel."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self._wheel = wheel
        self._python = folder / "environment" / "bin" / "python"
        self._metadata = _metadata(wheel)
        self._pins = folder / "pins.txt"
        self._pins.write_text(pins(LOCK))

    def install(self) -> None:
        """Install the wheel, with nothing but its declared dependencies."""
        subprocess.run([sys.executable, "-m", "venv", self._folder / "environment"], check=True)
        self._pip(str(self._wheel))

    def smoke(self) -> None:
        """Run tests/smoke.py without extras, and then with what the embedded broker needs."""
        smoke = shutil.copy(ROOT / "tests" / "smoke.py", self._folder)
        self._run("-I", smoke)
        self._pip(*self._needed("broker", without=NO_MUSL))
        self._run("-I", smoke, "cluster")

    def quick_tests(self, arguments: list[str]) -> None:
        self._pip(self._with("cli", "broker"), *self._needed(*EXTRAS, without=NOT_NEEDED), *BUILD)
        copy = self._folder / "tree"
        copy.mkdir()
        unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.c")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, ignore=unwanted)
            else:
                shutil.copy(ROOT / name, copy)
        self._run("-c", "import kafkabuf, sys; sys.exit(not kafkabuf.__file__.startswith(sys.prefix))", folder=copy)
        self._run("-m", "tests.quick", "--installed", *arguments, folder=copy)

    def _with(self, *extras: str) -> str:
        """The wheel with those of the extras that it has."""
        known = [extra for extra in extras if extra in self._metadata.get_all("Provides-Extra", [])]
        return f"{self._wheel}[{','.join(known)}]" if known else str(self._wheel)

    def _needed(self, *extras: str, without: set[str]) -> list[str]:
        """Requirements of the extras, without their condition on the extra."""
        needed = []
        for line in self._metadata.get_all("Requires-Dist", []):
            requirement, _, condition = line.partition(";")
            name = re.split(r"[\s\[<>=!~]", requirement, maxsplit=1)[0]
            if name not in without and any(f'extra == "{extra}"' in condition for extra in extras):
                needed.append(requirement.strip())
        return needed

    def _pip(self, *requirements: str) -> None:
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
        self._run(*pip, "--constraint", str(self._pins), *requirements)

    def _run(self, *arguments: str | Path, folder: Path | None = None) -> None:
        ours = ("PYTHON", "PYSPARK_", "KAFKABUF_", "VIRTUAL_ENV")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        subprocess.run([self._python, *arguments], cwd=folder or self._folder, env=environment, check=True)


def pins(lock: Path) -> str:
    """The versions of a lock file without its hashes, which pip would ask of the wheel too."""
    return "".join(f"{name}\n" for name in re.findall(r"^[\w.-]+==[^\s\\]+", lock.read_text(), re.MULTILINE))


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/try_wheel.py", description="Try a wheel in an empty environment.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--smoke-only", action="store_true", help="leave the tests out")
    arguments, pytest_arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="kafkabuf-wheel-") as folder:
        trial = Trial(Path(folder), arguments.wheel.resolve())
        try:
            trial.install()
            trial.smoke()
            if not arguments.smoke_only:
                trial.quick_tests(pytest_arguments)
        except subprocess.CalledProcessError as error:
            print(f"try_wheel: {arguments.wheel.name} failed: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
