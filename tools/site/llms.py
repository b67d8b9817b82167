"""llms.txt: the pages of the site as a list for language models (llmstxt.org), and each page as Markdown beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

DIRECTIVE = "\n::: "
_SENTENCE = re.compile(r"(.+?\.)(?:\s|$)", re.DOTALL)


class Listed(NamedTuple):
    """A page of the site."""

    section: str
    title: str
    path: str
    """Of its Markdown, from the root of the site."""
    text: str


def markdown_of(source: str, html: str) -> str:
    """The Markdown of a page: its source, or where docstrings make the page, the page turned back into Markdown."""
    if DIRECTIVE not in source:
        return source
    from markdownify import markdownify

    text: str = markdownify(html, heading_style="atx")
    return text


def listing(name: str, description: str, pages: Iterable[Listed]) -> str:
    lines = [f"# {name}", "", f"> {description}"]
    section = ""
    for page in pages:
        if page.section != section:
            section = page.section
            lines += ["", f"## {section}", ""]
        summary = first_sentence(page.text)
        lines.append(f"- [{page.title}]({page.path})" + (f": {summary}" if summary else ""))
    return "\n".join(lines) + "\n"


def first_sentence(text: str) -> str:
    """The first sentence of a page's text, without links, or ""."""
    for paragraph in _paragraphs(text):
        if found := _SENTENCE.match(paragraph):
            return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found[1]).split())
    return ""


def _paragraphs(text: str) -> Iterator[str]:
    for part in re.split(r"\n\s*\n", text):
        stripped = part.strip()
        if stripped[:1].isalpha() or (stripped[:1] in ("`", "[") and not stripped.startswith("```")):
            yield stripped


def write(site: Path, name: str, description: str, pages: list[Listed]) -> None:
    for page in pages:
        (site / page.path).write_text(page.text, encoding="utf-8")
    (site / "llms.txt").write_text(listing(name, description, pages), encoding="utf-8")
