"""Which tests `make sanitize` takes, and the copy of the tree in which it runs them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkabuf._pool import BufferPool
from kafkabuf.broker.embedded import EmbeddedCluster
from rigs.real_kafka import RealKafka
from tests.hostile.sanitized import _CORE, _NOT_CORE, _STARTS_A_JVM, _leads_to
from tools import sanitize


def starts_a_server() -> None:
    RealKafka("4.1.2")


def has_it_started() -> None:
    starts_a_server()


def is_given_one(kafka: RealKafka) -> None:
    assert kafka


def says_so_within() -> Callable[[], None]:
    def later() -> None:
        has_it_started()

    return later


class Harness:
    def start(self) -> None:
        starts_a_server()


def uses_a_harness() -> None:
    Harness()


def uses_the_pool() -> None:
    BufferPool(1, 1)


def starts_a_cluster() -> None:
    EmbeddedCluster()


@pytest.mark.parametrize("test", [starts_a_server, has_it_started, says_so_within, uses_a_harness])
def test_what_leads_to_a_jvm_is_left_out(test: Callable[..., None]) -> None:
    assert _leads_to(test, _STARTS_A_JVM, set())


@pytest.mark.parametrize("test", [is_given_one, uses_the_pool, starts_a_cluster])
def test_what_leads_to_none_is_in(test: Callable[..., None]) -> None:
    assert not _leads_to(test, _STARTS_A_JVM, set())


def test_core_is_what_leads_to_extensions_alone() -> None:
    assert _leads_to(uses_the_pool, _CORE, set())
    assert not _leads_to(uses_the_pool, _NOT_CORE, set())
    assert _leads_to(starts_a_cluster, _NOT_CORE, set())


def test_copy_follows_the_tree_and_keeps_what_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    monkeypatch.setattr(sanitize, "ROOT", tree)
    monkeypatch.setattr(sanitize, "COPY", copy)
    (tree / "kafkabuf").mkdir(parents=True)
    source, gone, built = (tree / "kafkabuf" / name for name in ("a.pyx", "b.py", "a.so"))
    for path in (source, gone, built):
        path.write_text("old")
    sanitize.sync()
    assert sorted(path.name for path in (copy / "kafkabuf").iterdir()) == ["a.pyx", "b.py"]
    there = copy / "kafkabuf" / "a.so"
    there.write_text("with sanitizers")
    gone.unlink()
    before = (copy / "kafkabuf" / "a.pyx").stat()
    sanitize.sync()
    assert sorted(path.name for path in (copy / "kafkabuf").iterdir()) == ["a.pyx", "a.so"]
    assert (there.read_text(), (copy / "kafkabuf" / "a.pyx").stat()) == ("with sanitizers", before)
    source.write_text("new")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    sanitize.sync()
    assert (copy / "kafkabuf" / "a.pyx").read_text() == "new"
