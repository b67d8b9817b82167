"""Every code block of the README and of the site's pages does what the page says: it runs, or its page says why not.

The blocks of a page run as one program, so that a block may use what the blocks before have made; test functions run
under pytest. blocks.py has the comments that speak to these tests, program.py what a page may take for granted.
"""

from __future__ import annotations

import operator
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from tests.formats.registry.support import FakeRegistry, running
from tests.pages.blocks import Block, blocks, pages
from tests.pages.program import Program, commands_of, compiled
from tools.site.pages import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["pytester", "tests.spark.fixtures"]

RUN = ("python", "sh", "console", "sql")
NOT_CODE = ("diff", "dockerfile", "ini", "json", "mermaid", "promql", "properties", "text", "toml", "xml", "yaml")
BLOCKS = {page: blocks(page) for page in pages()}
EVERY_BLOCK = [block for found in BLOCKS.values() for block in found]
# As in pyproject.toml: kafka-python says so of itself at import.
OF_KAFKA_PYTHON = [f"-Wignore:{name} is deprecated:DeprecationWarning" for name in ("read_text", "open_text")]
SESSION = re.compile(r"""(?<![\w.'"-])spark\.""")


def program_of(page: str) -> list[Block]:
    return [
        block
        for block in BLOCKS[page]
        if (block.language in RUN or block.title or block.is_printed) and not block.has_tests and not block.not_run
    ]


def with_tests(page: str) -> list[Block]:
    return [block for block in BLOCKS[page] if block.has_tests and not block.not_run]


def starts_spark(page: str) -> bool:
    return any("SparkSession" in block.text for block in program_of(page)) or needs_the_session(page)


def needs_the_session(page: str) -> bool:
    """Whether blocks of the page, and not only its files, use a session."""
    return any(
        not block.title and (block.language == "sql" or SESSION.search(block.text)) for block in program_of(page)
    )


@contextmanager
def program_in(folder: Path, **names: Any) -> Iterator[Program]:
    with EmbeddedCluster(default_partitions=2) as cluster, running(FakeRegistry()) as registry:
        addresses = {"localhost:9092": cluster.bootstrap_servers, "http://localhost:8081": registry.url}
        yield Program(folder, addresses, {"cluster": cluster, "registry_server": registry, **names})


def run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    monkeypatch.chdir(folder)
    with program_in(folder, monkeypatch=monkeypatch, **names) as program:
        # Not `sys.modules`, through which tests/needs.py would find every module.
        monkeypatch.setitem(operator.attrgetter("modules")(sys), "__main__", program.module)
        program.run(program_of(page))


@pytest.mark.parametrize("page", [page for page in BLOCKS if program_of(page) and not starts_spark(page)])
def test_program_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(page, tmp_path, monkeypatch)


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in BLOCKS if starts_spark(page) and not needs_the_session(page)])
def test_program_of_a_page_whose_files_start_spark_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", [page for page in BLOCKS if needs_the_session(page)])
def test_program_of_a_page_about_spark_runs(
    spark: SparkSession, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda session: None)  # other tests share the session
    run(page, tmp_path, monkeypatch, spark=spark)


@pytest.mark.parametrize("page", [page for page in BLOCKS if with_tests(page)])
def test_tests_of_a_page_pass(page: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    with program_in(pytester.path) as program:
        lines: list[str] = []
        for block in with_tests(page):  # each at the lines of the page, which a failure then shows
            lines += [""] * (block.line - 1 - len(lines)) + program.here(block.text).splitlines()
        source = "\n".join(lines)
        pytester.makepyfile(source)
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        options = ("-p", "kafkabuf.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers", "-W", "error")
        result = pytester.runpytest_subprocess(*options, *OF_KAFKA_PYTHON)
    result.assert_outcomes(passed=len(re.findall(r"^ *(?:async )?def test_", source, re.MULTILINE)))


def test_each_block_has_a_fence_with_a_language_that_these_tests_know() -> None:
    known = (*RUN, *NOT_CODE)
    unknown = [f"{block.name}: {block.language!r}" for block in EVERY_BLOCK if block.language not in known]
    assert unknown == [], f"give each block a fence with one of {', '.join(known)}"


@pytest.mark.parametrize("block", [block for block in EVERY_BLOCK if block.not_run], ids=lambda block: block.name)
def test_block_that_is_not_run_is_well_formed(block: Block) -> None:
    if block.language == "python":
        compiled(block, block.text)
    elif block.language in ("sh", "console"):
        subprocess.run(["bash", "-n", "-c", commands_of(block)], check=True)


def test_pages_name_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in BLOCKS:
        for names in re.findall(r"kafkabuf\[([\w,-]+)\]", (ROOT / page).read_text(encoding="utf-8")):
            assert set(names.split(",")) <= set(extras), f"{page}: kafkabuf[{names}]"
