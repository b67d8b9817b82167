"""Which Markdown files are pages of the site, and how links between files become links between pages.

The same links work where the repository is read on a code host: they lead from file to file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Files outside docs/ and the pages that they become.
OUTSIDE = {
    "README.md": "index.md",
    "DESIGN.md": "design.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "STYLE.md": "style.md",
    "SECURITY.md": "vulnerabilities.md",
    "tests/README.md": "tests.md",
    "bench/README.md": "benchmarks.md",
}
README = "README.md"
_FENCE = re.compile(r"^ *(```+|~~~+)")
# As code hosts show a picture by the colours of the reader's system; the site has a switch of its own.
_PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img src="([^"]+)" alt="([^"]+)">\s*</picture>')
# The site has no page of a code file: the link is for readers on a code host.
_CODE_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)*kafkabuf[^)\s]*\)")
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def source_of(page: str) -> str:
    """The file, from the root of the repository, that a page is made of."""
    return next((source for source, name in OUTSIDE.items() if name == page), f"docs/{page}")


def page_of(source: str) -> str | None:
    """The page that a file of the repository becomes, or None."""
    return OUTSIDE.get(source) or (source.removeprefix("docs/") if source.startswith("docs/") else None)


def with_links_between_pages(markdown: str, page: str) -> str:
    """The text of a file with links between pages in place of links between files, and without links to code.

    Leaves blocks of code alone.
    """
    folder = posixpath.dirname(source_of(page))

    def linked(match: re.Match[str]) -> str:
        start, target, anchor, end = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        other = page_of(posixpath.normpath(posixpath.join(folder, target)))
        if other is None:
            return match[0]
        return f"{start}{posixpath.relpath(other, posixpath.dirname(page) or '.')}{anchor or ''}{end}"

    lines, fence = [], ""
    for line in markdown.splitlines(keepends=True):
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence):
            fence = ""
        lines.append(line if found or fence else _LINK.sub(linked, _CODE_LINK.sub(r"\1", line)))
    return "".join(lines)


def without_comments(markdown: str) -> str:
    """The text without the comments that speak to tests and tools."""
    return re.sub(r"^<!-- .*?-->\n", "", markdown, flags=re.DOTALL | re.MULTILINE)


def with_pictures_of_the_site(markdown: str) -> str:
    """The text with an image for each of the site's two colour schemes in place of `<picture>`."""
    return _PICTURE.sub(r"![\3](\2#only-light)\n![\3](\1#only-dark)", markdown)
