"""tools/bootstrap.sh names what a fresh machine lacks. It runs here where only a few programs exist."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BOOTSTRAP = Path(__file__).parents[2] / "tools" / "bootstrap.sh"


class Machine:
    """A PATH of its own, with the shell's everyday programs and those that a test installs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("sh", "uname", "sed", "head"):
            path = shutil.which(name)
            assert path, f"{name} belongs to every Linux"
            (folder / name).symlink_to(path)

    def install(self, name: str, script: str) -> None:
        path = self._folder / name
        path.unlink(missing_ok=True)  # a link would lead to the program of this machine
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self._folder), **environment}
        return subprocess.run([str(BOOTSTRAP), *arguments], env=environment, capture_output=True, text=True)

    def complaint(self, *arguments: str, **environment: str) -> str:
        done = self.run(*arguments, **environment)
        assert done.returncode == 1, done
        return done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_missing_java_is_reported(machine: Machine) -> None:
    assert "no Java found" in machine.complaint("check-java")
    assert "/opt/jdk/bin/java" in machine.complaint("check-java", JAVA_HOME="/opt/jdk")


@pytest.mark.parametrize(("version", "status"), [("1.8.0_292", 1), ("11.0.2", 1), ("17.0.15", 0), ("25", 0)])
def test_java_17_is_the_oldest_accepted(machine: Machine, version: str, status: int) -> None:
    machine.install("java", f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")
    assert machine.run("check-java").returncode == status


def test_macos_is_set_up_and_other_systems_are_refused(machine: Machine) -> None:
    machine.install("uname", "echo Darwin")
    assert "no C compiler found" in machine.complaint("venv", "unused", PYTHON=sys.executable, CC="no-such-cc")
    machine.install("uname", "echo MINGW64_NT-10.0")
    assert "runs on Linux and macOS; this is MINGW64_NT-10.0" in machine.complaint("venv", "unused")


def test_missing_compiler_is_reported_in_a_line(machine: Machine) -> None:
    complaint = machine.complaint("venv", "unused", PYTHON=sys.executable, CC="no-such-cc -O2")
    assert "no C compiler found (looked for no-such-cc)" in complaint


def test_missing_python_is_named(machine: Machine) -> None:
    assert "There is no python3 on the PATH" in machine.complaint("venv", "unused")
    assert "There is no /opt/python" in machine.complaint("venv", "unused", PYTHON="/opt/python")


def test_unfit_python_is_refused(machine: Machine) -> None:
    machine.install("python3", "echo is Python 3.9")
    machine.install("python3.12", "exit 1")
    complaint = machine.complaint("venv", "unused")
    assert "python3 is Python 3.9" in complaint
    assert "python3.12 does not run" in complaint
