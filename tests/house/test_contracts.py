"""The check of what a Cython class expects of its subclass: the tree passes it, and it finds what is not listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_contracts import check

ROOT = Path(__file__).parents[2]

BASE = "cdef class Base:\n    cdef int limit, room[3]\n    cdef int count(self)\n"
SECTION = """\
    # ---- methods that the subclass defines
    # _expire(now: float) -> None: fail what is late,
    #     and say so
"""


def _tree(root: Path, pxd: str, pyx: str) -> list[str]:
    for name, text in {"_turn.pxd": pxd, "_turn.pyx": pyx}.items():
        path = root / "kafkabuf" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return check(root)


def test_each_pxd_of_the_package_lists_what_its_classes_expect_of_a_subclass() -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize(
    "body",
    [
        "cdef int count(self):\n        return self.limit + self.room[0]",
        "def run(self):\n        self.count()",
        "def run(self):\n        return self.__class__",
        '"""Not code: self._expire()."""',
        "# not code: self._expire()",
    ],
)
def test_name_that_the_class_defines_needs_no_entry(tmp_path: Path, body: str) -> None:
    assert _tree(tmp_path, BASE, f"cdef class Base:\n    {body}\n") == []


def test_name_that_a_base_defines_or_lists_needs_no_entry(tmp_path: Path) -> None:
    pyx = "cdef class Base:\n    def run(self):\n        self._expire(1)\n"
    sub = "cdef class Sub(Base):\n    def again(self):\n        self.run()\n        self._expire(self.limit)\n"
    assert _tree(tmp_path, BASE + SECTION, pyx + "\n\n" + sub) == []


def test_method_of_the_subclass_that_is_not_listed_is_reported(tmp_path: Path) -> None:
    (fault,) = _tree(tmp_path, BASE, "cdef class Base:\n    def run(self):\n        self._expire(1)\n")
    assert fault.startswith("kafkabuf/_turn.pyx:3: Base uses self._expire, which neither it nor a base of it defines")


def test_listed_method_that_is_not_used_is_reported(tmp_path: Path) -> None:
    faults = _tree(tmp_path, BASE + SECTION, "cdef class Base:\n    pass\n")
    assert faults == ["kafkabuf/_turn.pxd:5: Base lists _expire() for its subclass, and does not use it"]
