"""Go's part: a module's source from the module proxy, a compiled test, and how its tests ended."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.peers import FOLDER
from tools.suites import FAILED, PASSED, SKIPPED, States, UnavailableError

_ENDED = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)
_STARTED = re.compile(r"^=== RUN +([^\s/]+)$", re.MULTILINE)
_STATES = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
_MINUTES = 8


def module(path: str, version: str) -> Path:
    """A copy of a module's files that may be changed, made once."""
    folder = FOLDER / f"{path.rpartition('/')[2]}-{version}"
    if not folder.exists():
        downloaded = json.loads(_go("mod", "download", "-json", f"{path}@{version}", cwd=Path(__file__).parent))
        shutil.copytree(downloaded["Dir"], folder, copy_function=shutil.copyfile)
        for place, folders, _ in os.walk(folder):
            for name in (".", *folders):
                os.chmod(Path(place, name), 0o755)
    return folder


def compiled(folder: Path, package: str) -> Path:
    """The compiled tests of a package."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    test = FOLDER / f"{Path(package).name}.test"
    _go("test", "-c", "-o", str(test), package, cwd=folder)
    return test


def ended(test: Path, folder: Path, environment: Mapping[str, str], tests: Iterable[str] | None) -> States:
    """Run the tests. A test that began and did not end, because the process ended before, has failed."""
    command = [str(test), "-test.v", f"-test.timeout={_MINUTES}m"]
    if tests is not None:
        command.append(f"-test.run=^({'|'.join(tests)})$")
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    log = test.with_suffix(".log")
    log.write_text(done.stdout + done.stderr)
    found = dict.fromkeys(_STARTED.findall(done.stdout), FAILED)
    return found | {name: _STATES[state] for state, name in _ENDED.findall(done.stdout) if "/" not in name}


def _go(*arguments: str, cwd: Path) -> str:
    if shutil.which("go") is None:
        raise UnavailableError("needs Go on the PATH")
    environment = {**os.environ, "GOFLAGS": "-mod=mod"}
    done = subprocess.run(["go", *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"`go {' '.join(arguments[:2])}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
