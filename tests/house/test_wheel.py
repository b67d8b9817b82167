"""What is published: the sdist has every source, and a wheel that is not fit to be published is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tools import wheel
from tools.pythons import ROOT
from tools.try_wheel import pins
from tools.wheel import WheelError, check

LOCKS = ROOT / "requirements"
# The other lock files are of environments of their own.
SHARED_LOCKS = ("bench", "build", "docs", "gssapi", "peers")
# botocore needs an older python-dateutil than the tests, which put another signer in its place.
NOT_INSTALLED = {"aws-msk-iam-sasl-signer-python"}


def packed(folder: Path, name: str, content: bytes) -> Path:
    path = folder / "kafkabuf-0.1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("kafkabuf/_pool.so", b"\0.debug_info\0", "not stripped"),
        ("kafkabuf/_pool.so", b"\0.symtab\0", "not stripped"),
        ("kafkabuf/_pool.so", f"{ROOT}/kafkabuf/_pool.c".encode(), "a folder of this machine"),
        ("kafkabuf/_pool.c", b"", "which nobody needs"),
        ("kafkabuf/large", os.urandom(wheel.LARGEST), "at most 5000000 are allowed"),
    ],
)
def test_wheel_that_is_not_fit_is_refused(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    with pytest.raises(WheelError, match=reason):
        check(packed(tmp_path, name, content))


def test_fit_wheel_is_accepted(tmp_path: Path) -> None:
    check(packed(tmp_path, "kafkabuf/_pool.so", b"\x7fELF"))


def test_sdist_has_every_source_and_no_generated_file(tmp_path: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        if (ROOT / name).is_file():
            (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "tree" / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-c", wheel._SDIST, str(tmp_path)]
    subprocess.run(command, cwd=tmp_path / "tree", check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {name for name in tracked if name.startswith(("kafkabuf/", "pyspark_kafkabuf/"))}
    assert sources | {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.endswith((".c", ".so"))]


def test_every_requirement_of_an_extra_that_a_test_installs_is_in_a_lock_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = {*project["dependencies"]}.union(*project["optional-dependencies"].values())
    names = {re.split(r"[\[<>=;\s]", each)[0].lower().replace("_", "-") for each in requirements} - {"kafkabuf"}
    locked = [line for lock in LOCKS.glob("*.lock") for line in pins(lock).splitlines()]
    assert names - NOT_INSTALLED <= {line.partition("==")[0] for line in locked}


@pytest.mark.parametrize("lock", SHARED_LOCKS)
def test_package_has_one_version_in_all_lock_files_of_the_project(lock: str) -> None:
    versions, own = (
        dict(line.split("==") for line in pins(LOCKS / f"{name}.lock").splitlines()) for name in ("test", lock)
    )
    assert {name: version for name, version in own.items() if versions.get(name, version) != version} == {}


def test_release_workflows_use_make_targets_alone() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        commands = re.findall(r"- run: (.*)", workflow.read_text())
        assert commands
        for command in commands:
            words = command.split()
            assert (words[0] == "make" and words[1] in targets) or "valgrind" in command, command
