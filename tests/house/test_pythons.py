"""`make wheel` and `make test-pythons` find the interpreters of a machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import pythons


def interpreter(path: Path, answer: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)


def answering(version: str, implementation: str = "CPython", free_threaded: str = "false") -> str:
    """A script that answers the probe; it has no fault that bootstrap.sh could find."""
    return f"""[ "$1" = - ] || echo '["{implementation}", "{version}", {free_threaded}, "'"$0"'"]'"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a PATH and a pyenv of its own, on which no Python runs this."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "runs-this"))
    interpreter(tmp_path / "runs-this", "exit 1")
    return tmp_path


def versions(root: Path) -> dict[str, str]:
    """The interpreters that lie below `root`, by version."""
    return {python.version: python.path for python in pythons.found() if python.path.startswith(str(root))}


def test_each_series_is_found_once_on_the_path_before_pyenv(machine: Path) -> None:
    interpreter(machine / "bin" / "python3.20", answering("3.20.1"))
    interpreter(machine / "pyenv" / "versions" / "3.20.0" / "bin" / "python3", answering("3.20.0"))
    interpreter(machine / "pyenv" / "versions" / "3.21.0" / "bin" / "python3", answering("3.21.0"))
    assert list(versions(machine)) == ["3.20.1", "3.21.0"]


@pytest.mark.parametrize(
    "answer",
    ["exit 127", answering("3.10.9"), answering("3.20.0", "PyPy"), answering("3.20.0", free_threaded="true")],
)
def test_interpreter_that_kafkabuf_does_not_support_is_left_out(machine: Path, answer: str) -> None:
    interpreter(machine / "bin" / "python3.20", answer)
    assert versions(machine) == {}


def test_usable_interpreter_stands_for_its_series_before_an_unusable_one(machine: Path) -> None:
    without_headers = answering("3.20.1").replace("[", '[ "$1" != - ] || echo has no C headers; [', 1)
    interpreter(machine / "bin" / "python3.20", without_headers)
    assert [python.fault for python in pythons.found("3.20")] == ["has no C headers"]
    interpreter(machine / "pyenv" / "versions" / "3.20.0" / "bin" / "python3", answering("3.20.0"))
    assert versions(machine) == {"3.20.0": str(machine / "pyenv" / "versions" / "3.20.0" / "bin" / "python3")}


def test_failure_under_an_interpreter_fails_the_command(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    interpreter(machine / "bin" / "python3.20", answering("3.20.1"))
    interpreter(machine / "bin" / "python3.21", answering("3.21.0"))
    interpreter(machine / "bin" / "make", """echo "$@"; [ "$1" = VENV=build/pythons/3.20 ]""")
    monkeypatch.setattr(pythons, "_candidates", lambda: map(str, sorted((machine / "bin").glob("python*"))))
    monkeypatch.setattr(sys, "argv", ["pythons", "quick", "ARGS=x"])
    assert pythons.main() == 1
    output = capfd.readouterr().out
    assert f"VENV=build/pythons/3.20 PYTHON={machine}/bin/python3.20 quick ARGS=x" in output
    assert [line.split()[2] for line in output.splitlines() if line.startswith("3.2")] == ["passed", "failed:"]
