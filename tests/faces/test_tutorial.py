"""docs/tutorial.md: its files and commands, run in order in an empty folder, print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kafkabuf.broker import EmbeddedCluster

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
# The page's reader runs these; the test has the environment and the cluster already.
READERS_OWN = ("pip install", "kafkabuf broker ")
BLOCK = re.compile(r'^```(python|sh|text)(?: title="([\w.]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def steps(first: int, last: int) -> str:
    """The text of the page's numbered sections."""
    sections = re.split(r"^## (?=\d+\. )", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return "".join(each for each in sections if first <= int(each.split(".")[0]) <= last)


def run_steps(text: str, folder: Path, servers: str) -> int:
    """Write the files and run the commands of a text. Returns how many blocks of output it compared."""
    # Spark finds the format on the import path, where an editable installation is not.
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    printed, compared = "", 0
    for kind, title, block in BLOCK.findall(text):
        content = block.replace("localhost:9092", servers)
        if kind == "python":
            (folder / title).write_text(content, encoding="utf-8")
        elif kind == "text":
            assert printed == block
            compared += 1
        elif not any(part in block for part in READERS_OWN):
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", content],
                cwd=folder,
                env=os.environ | paths,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            printed = done.stdout
    return compared


def test_steps_without_spark_print_what_the_page_says(tmp_path: Path) -> None:
    with EmbeddedCluster(default_partitions=2) as cluster:
        assert run_steps(steps(1, 7), tmp_path, cluster.bootstrap_servers) == 4
        assert len(cluster.messages("orders")) == 100_001


@pytest.mark.spark
def test_steps_with_spark_print_what_the_page_says(tmp_path: Path) -> None:
    with EmbeddedCluster(default_partitions=2) as cluster:
        assert run_steps(steps(8, 9), tmp_path, cluster.bootstrap_servers) == 2
