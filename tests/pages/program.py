"""Runs the blocks of a page as one program: in the order of the page, with the names of the blocks before.

`localhost:9092` stands for an embedded cluster, which the program knows as `cluster`; `http://localhost:8081` for a
Schema Registry, `registry_server`; `/tmp/` for an empty folder of the page's own, in which the blocks run. The program
also knows pytest's `monkeypatch`, and on a page about Spark the session `spark`.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from tests.pages.blocks import Block
from tools.site.pages import ROOT

# Bounds a command that waits for something that does not come.
SECONDS = 600
# The JVMs of Spark live for a short time: they should start quickly rather than run fast.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The targets of `make` are looked up, not made.
SHELL = f'set -euo pipefail\nmake() {{ command make --dry-run --directory="{ROOT}" "$@" >/dev/null; }}\n'


class Program:
    """The state of a page's program: its names, its folder and the addresses that stand for those of the page."""

    def __init__(self, folder: Path, addresses: dict[str, str], names: dict[str, Any]) -> None:
        self.folder = folder
        self._addresses = {**addresses, "/tmp/": f"{folder}/"}
        # Classes and functions of `__main__` are pickled by value, as those of a script are.
        self.module = ModuleType("__main__")
        self._names = self.module.__dict__
        self._names.update(names)
        self._printed = ""

    def run(self, blocks: Iterable[Block]) -> None:
        """Run the blocks. An exception shows the line of the page that raised it."""
        for block in blocks:
            if block.is_printed:
                assert self._printed == block.text, block.name
            elif block.title:
                path = self.folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.here(block.text), encoding="utf-8")
            else:
                runs = {"python": self._python, "sh": self._sh, "console": self._sh, "sql": self._sql}
                runs[block.language](block)

    def here(self, text: str) -> str:
        """The text with the addresses of this run."""
        for address, ours in self._addresses.items():
            text = text.replace(address, ours)
        return text

    def _python(self, block: Block) -> None:
        code = compiled(block, self.here(block.text))
        with contextlib.redirect_stdout(io.StringIO()) as output:
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(eval(code, self._names))
            else:
                exec(code, self._names)
        self._printed = output.getvalue()

    def _sql(self, block: Block) -> None:
        for statement in filter(str.strip, self.here(block.text).split(";")):
            self._names["spark"].sql(statement)

    def _sh(self, block: Block) -> None:
        """Run the commands, and end what they leave in the background."""
        # Spark finds the format on the import path, where an editable installation is not.
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        process = subprocess.Popen(
            ["bash", "-c", SHELL + self.here(commands_of(block))],
            cwd=self.folder,
            env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "SPARK_SUBMIT_OPTS": JVM},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self._printed, errors = process.communicate(timeout=SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            output = f"{self._printed}\n{errors}"
            pytest.fail(f"{block.name}: the commands ended with {process.returncode}:\n{output}", pytrace=False)


def compiled(block: Block, text: str) -> CodeType:
    """The code of a Python block, at the lines of the page. `await` may stand outside of functions."""
    lines = "\n" * (block.line - 1) + text
    code = compile(lines, str(ROOT / block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    assert isinstance(code, CodeType)
    return code


def commands_of(block: Block) -> str:
    """The commands of a block: those of a session (`console`) follow `$ `, and a line behind a backslash goes on."""
    if block.language != "console":
        return block.text
    commands: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif commands and commands[-1].endswith("\\"):
            commands.append(line)
    return "\n".join(commands)
