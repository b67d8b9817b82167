"""The check of names: the package passes it, and it finds each way to bind a word that STYLE.md bans."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_names import banned, check

ROOT = Path(__file__).parents[2]
STYLE = "- A name says something.\n- `found`, `told` and `one` are not names: they do not say what the thing is.\n"


def _faults(root: Path, text: str, suffix: str) -> list[str]:
    (root / "STYLE.md").write_text(STYLE)
    source = root / "kafkabuf" / f"sample{suffix}"
    source.parent.mkdir()
    source.write_text(text)
    return [fault.partition(" does not")[0] for fault in check(root)]


def test_package_has_no_name_that_is_banned() -> None:
    assert check(ROOT) == []


def test_banned_words_are_those_of_the_style_guide() -> None:
    assert banned(STYLE) == {"found", "told", "one"}
    assert {"found", "told", "one"} <= banned((ROOT / "STYLE.md").read_text())


def test_style_guide_without_banned_words_is_refused() -> None:
    with pytest.raises(ValueError, match="are not names"):
        banned("- Names are good.\n")


@pytest.mark.parametrize(
    "text",
    [
        "found = 1\n",
        "found: int = 1\n",
        "self.found = 1\n",
        "a, *found = b\n",
        "(found := 1)\n",
        "for found in a: pass\n",
        "[found for found in a]\n",
        "with a as found: pass\n",
        "def found(): pass\n",
        "async def found(): pass\n",
        "def f(*, found): pass\n",
        "lambda found: 1\n",
        "class found: pass\n",
        "import a as found\n",
        "try: pass\nexcept E as found: pass\n",
        "match a:\n    case [*found]: pass\n",
        "match a:\n    case {**found}: pass\n",
        "match a:\n    case found: pass\n",
    ],
)
def test_each_binding_in_python_is_found(tmp_path: Path, text: str) -> None:
    line = next(n for n, code in enumerate(text.splitlines(), 1) if "found" in code)
    assert _faults(tmp_path, text, ".py") == [f"kafkabuf/sample.py:{line}: 'found'"]


def test_underscores_do_not_hide_a_name(tmp_path: Path) -> None:
    assert _faults(tmp_path, "_found = 1\none_ = 2\n", ".pyi") == [
        "kafkabuf/sample.pyi:1: '_found'",
        "kafkabuf/sample.pyi:2: 'one_'",
    ]


@pytest.mark.parametrize("text", ["cdef int64_t i, found = 0\n", "cdef f(str found): pass\n", "memcpy(&found, p, 2)\n"])
def test_each_bare_name_in_cython_is_found(tmp_path: Path, text: str) -> None:
    assert _faults(tmp_path, text, ".pyx") == ["kafkabuf/sample.pyx:1: 'found'"]


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ('"""What was found."""\nnot_found = f(found=1) + a.found  # found\n', ".py"),
        ('"""What was found."""\nnot_found = a.found + "found" + \'told\'  # found\n', ".pyx"),
        ('cdef extern from *:\n    """\n    int found;\n    """\n    int f()\n', ".pxd"),
    ],
)
def test_words_in_texts_and_in_longer_names_are_free(tmp_path: Path, text: str, suffix: str) -> None:
    assert _faults(tmp_path, text, suffix) == []
