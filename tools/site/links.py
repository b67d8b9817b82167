"""Checks the built site: each link leads to a page and an anchor that exist, and no page loads anything from elsewhere.

Links to other servers are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

# What a browser fetches to show a page; a link is fetched when the reader follows it.
_LOADED = {"img": "src", "script": "src", "source": "srcset", "link": "href"}
# The page that a server shows for a missing one: its addresses begin at the server's root.
_MISSING = "404.html"


@dataclass
class Page(HTMLParser):
    """The addresses and anchors of a page."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attributes if value is not None}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in _LOADED and _LOADED[tag] in found:
            self.loaded.append(found[_LOADED[tag]])


def faults(site: Path) -> Iterator[str]:
    """A sentence for each link that leads nowhere, and for each thing that comes from another server."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html")) if path.name != _MISSING}
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        for address in page.loaded:
            if urlsplit(address).netloc:
                yield f"{name} loads {address} from another server"
        for address in {*page.links, *page.loaded}:
            if not urlsplit(address).scheme and not urlsplit(address).netloc and not _leads(pages, path, address):
                yield f"{name} has the link {address}, which leads nowhere"


def anchors(folder: Path) -> set[str]:
    """The anchors of all pages of a folder."""
    return {anchor for path in folder.rglob("*.html") for anchor in _read(path).anchors}


def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _leads(pages: dict[Path, Page], start: Path, address: str) -> bool:
    target, anchor = urldefrag(address)
    path = (start.parent / unquote(urlsplit(target).path)).resolve() if target else start
    if path.is_dir():
        path /= "index.html"
    if path not in pages:
        return path.is_file()
    return not anchor or anchor == "__top" or unquote(anchor) in pages[path].anchors
