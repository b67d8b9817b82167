"""The code blocks of a page, as Markdown's parser sees them, with the comments that speak to the tests.

Comments do not show on the page:

    <!-- not run: REASON -->      the next block is not run here; its syntax is still checked
    <!-- needs: PACKAGE -->       the next block is run only where the package is installed
    <!-- printed -->              the next block is what the block before it prints, to the letter
    <!-- python                   code that runs at this place: it prepares what the page takes for granted,
    orders = ["first"]            or checks what a block has done; `sh` and `sql` work too
    -->

A Python block with a title (```python title="first.py") is a file, which later blocks run.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tools.site.pages import OUTSIDE, ROOT

_PARSER = MarkdownIt("commonmark")
_NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->\s*", re.DOTALL)
_NEEDS = re.compile(r"<!-- needs: (\w+) -->\s*")
_PRINTED = re.compile(r"<!-- printed -->\s*")
_HIDDEN = re.compile(r"<!-- (python|sh|sql)\n(.*)^-->\s*", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'\btitle="([^"]+)"')
_TEST = re.compile(r"^ *(async )?def test_", re.MULTILINE)
# Admonitions and tabs of the site indent what they contain, which is a block of code to the parser.
_CONTAINER = re.compile(r"^ *(!!!|\?\?\?|===) ")


@dataclass(frozen=True)
class Block:
    page: str
    """The file, from the root of the repository."""
    line: int
    """The line of the file at which the code begins, from 1."""
    language: str
    """The first word behind the fence; "indented" for a block that has no fence."""
    text: str
    title: str = ""
    """The name of the file that the block is, or ""."""
    not_run: str = ""
    """Why the block is not run here, or ""."""
    is_printed: bool = False
    """Whether the block before it prints this block."""

    @property
    def has_tests(self) -> bool:
        """Whether pytest runs the block: it has test functions, and is no file."""
        return self.language == "python" and not self.title and _TEST.search(self.text) is not None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """The README and every page of the site, from the root of the repository."""
    own = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return sorted({*OUTSIDE, *own})


def blocks(page: str) -> list[Block]:
    return list(_found((ROOT / page).read_text(encoding="utf-8"), page, 0))


def _found(text: str, page: str, offset: int) -> Iterator[Block]:
    """The blocks of a text that begins `offset` lines below the top of the page."""
    not_run, is_printed = "", False
    lines = text.splitlines()
    for token in _PARSER.parse(text):
        if token.type not in ("fence", "code_block", "html_block"):
            continue
        line = offset + _line(token) + 1
        if token.type == "html_block":
            if marked := _NOT_RUN.fullmatch(token.content):
                not_run = marked[1]
            elif needs := _NEEDS.fullmatch(token.content):
                installed = importlib.util.find_spec(needs[1]) is not None
                not_run = "" if installed else f"{needs[1]} is not installed"
            elif _PRINTED.fullmatch(token.content):
                is_printed = True
            elif hidden := _HIDDEN.fullmatch(token.content):
                yield Block(page, line + 1, hidden[1], hidden[2], not_run=not_run)
                not_run = ""
            continue
        if token.type == "fence":
            title = _TITLE.search(token.info)
            language = token.info.split()[0] if token.info.strip() else ""
            yield Block(page, line + 1, language, token.content, title[1] if title else "", not_run, is_printed)
        elif _is_in_a_container(lines[: _line(token)]):
            yield from _found(token.content, page, line - 1)
        else:
            yield Block(page, line, "indented", token.content, not_run=not_run)
        not_run, is_printed = "", False


def _line(token: Token) -> int:
    """The line of the text at which a block begins, from 0."""
    assert token.map is not None
    return token.map[0]


def _is_in_a_container(above: list[str]) -> bool:
    """Whether the nearest line that is not indented opens an admonition or a tab."""
    return _CONTAINER.match(next((line for line in reversed(above) if line[:1].strip()), "")) is not None
