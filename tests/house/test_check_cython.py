"""The check of shapes that Cython compiles into code that crashes without memory: the check finds each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_cython import ROOT, SHAPES, advice, shapes_of

TRIED = """def f(g):
    {before}
    try:
        g()
    except ValueError as error:
        {clause}
    return 1
"""
LOOPED = """def f(g):
    for i in range(3):
        try:
            g()
        except ValueError:
            {clause}
"""


def found(folder: Path, text: str, suffix: str = ".pyx") -> list[str]:
    source = folder / f"sample{suffix}"
    source.write_text(text)
    return shapes_of(source)


@pytest.mark.parametrize(
    ("shape", "text", "line"),
    [
        ("return", TRIED.format(before="pass", clause="return error"), 6),
        ("return", TRIED.format(before="pass", clause="return 0"), 6),
        ("return", LOOPED.format(clause="return g(i)"), 6),
        ("return", TRIED.format(before="pass", clause="for i in g: return i"), 6),
        ("return", "cdef int f(g) except -1:\n    try:\n        g()\n    except:\n        return 1\n", 5),
        ("break", LOOPED.format(clause="break"), 6),
        ("continue", LOOPED.format(clause="continue"), 6),
        ("with", "def f(g):\n    with g:\n        g()\n", 2),
    ],
)
def test_shape_is_refused_with_its_line(tmp_path: Path, shape: str, text: str, line: int) -> None:
    assert found(tmp_path, text) == [f"{tmp_path / 'sample.pyx'}:{line}: {SHAPES[shape]}"]


@pytest.mark.parametrize(
    "text",
    [
        TRIED.format(before="pass", clause="raise"),
        TRIED.format(before="pass", clause="g = error"),
        TRIED.format(before="pass", clause="for i in g: break"),
        TRIED.format(before="if g is None: return 0", clause="raise ValueError from None"),
        TRIED.format(before="h = lambda: 1", clause="h = lambda: 2"),
        LOOPED.format(clause="while g(): continue"),
        "def f(g):\n    with nogil:\n        pass\n    for i in g:\n        break\n    return 1\n",
    ],
)
def test_other_code_passes(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


def test_list_of_new_objects_is_refused_and_a_list_of_present_objects_is_not(tmp_path: Path) -> None:
    source = tmp_path / "sample.pyx"
    source.write_text("def f(g):\n    kept = [i for i in g if i]\n    return [str(i) for i in kept]\n")
    assert advice(source).splitlines()[-1] == f"{source}:3: {SHAPES['list']}"
    assert f"{source}:2" not in advice(source)


def test_except_clause_in_a_contract_is_refused(tmp_path: Path) -> None:
    text = "cdef inline int f(g) except -1:\n    try:\n        g()\n    except ValueError:\n        pass\n"
    assert found(tmp_path, text, ".pxd") == [f"{tmp_path / 'sample.pxd'}:4: {SHAPES['except']}"]


def test_no_source_has_a_shape_that_is_refused() -> None:
    sources = [path for kind in ("*.pyx", "*.pxd") for path in (ROOT / "kafkabuf").rglob(kind)]
    assert len(sources) > 50
    assert [line for source in sources for line in shapes_of(source)] == []
