"""The map of folders in DESIGN.md, and what tools/file_map.py refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import file_map


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "kafkabuf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_each_folder_and_module_says_what_it_holds() -> None:
    assert list(file_map.faults(file_map.ROOT)) == []


def test_design_has_the_map_as_the_tool_writes_it() -> None:
    old = (file_map.ROOT / "DESIGN.md").read_text(encoding="utf-8")
    assert file_map.page(old) == old, "run python -m tools.file_map"


def test_folders_and_modules_that_do_not_say_what_they_hold_are_faults(tmp_path: Path) -> None:
    root = made(
        tmp_path,
        {
            "__init__.py": '"""A producer."""\n',
            "good.pyx": '# cython: language_level=3\n"""It encodes.\n\nAnd more.\n"""\n',
            "half.py": '"""A line that goes\non."""\n',
            "silent.pxd": "# cython: language_level=3\nfrom libc.stdint cimport int64_t\n",
            "bare.h": "#ifndef BARE_H\n",
            "empty/__init__.py": "",
            "loose/module.py": '"""A module."""\n',
        },
    )
    assert list(file_map.faults(root)) == [
        "kafkabuf/bare.h has no docstring that says what it holds",
        "the first line of kafkabuf/half.py's docstring is not a whole sentence",
        "kafkabuf/silent.pxd has no docstring that says what it holds",
        "kafkabuf/empty/__init__.py has no docstring that says what it holds",
        "kafkabuf/loose has no __init__.py that says what it holds",
    ]


def test_map_has_the_first_sentence_of_each_folder(tmp_path: Path) -> None:
    root = made(
        tmp_path,
        {
            "__init__.py": '"""A producer."""\n',
            "a/__init__.py": '"""Reads a.b files. Slowly."""\n',
            "a/inner/__init__.py": '"""Inside."""\n',
            "__pycache__/x.txt": "",
        },
    )
    assert file_map.folder_map(root).splitlines() == [
        "```text",
        "kafkabuf/   A producer",
        "  a/        Reads a.b files",
        "    inner/  Inside",
        "```",
    ]


def test_list_of_a_folder_has_its_headers_too(tmp_path: Path) -> None:
    root = made(tmp_path, {"__init__.py": '"""A producer."""\n', "_a.h": "/* A lock.\n */\n", "b.txt": ""})
    assert file_map.listing(root / "kafkabuf") == "__init__.py  A producer.\n_a.h         A lock.\n"


def test_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        file_map.page("# A page\n")
