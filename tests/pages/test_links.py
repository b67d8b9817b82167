"""Links lead somewhere: those between files, as code hosts show them, and those of the built site."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.pages.blocks import pages
from tools.site import links, llms
from tools.site.narrow import for_narrow_screens
from tools.site.pages import ROOT, with_links_between_pages, with_pictures_of_the_site, without_comments

HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
# A file of code that a page names, and one that code names.
SOURCE = re.compile(r"`((?:[\w.]+/)*[a-z_]\w*\.(?:py|pyx|pxd))`")
WRITTEN = re.compile(r"(?<![\w./])((?:[a-z_]\w*/)*_?[a-z]\w+\.(?:py|pyx|pxd))(?!\w)")
OF_OTHERS = {"pyspark/daemon.py"}


def prose(page: str) -> str:
    return FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))


def anchors(page: str) -> set[str]:
    """The anchors that code hosts give the headings of a file."""
    headings = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(prose(page)))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@functools.cache
def sources() -> list[str]:
    folders = ("kafkabuf", "pyspark_kafkabuf", "rigs", "bench", "tests", "tools")
    paths = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".pyx", ".pxd"}
    ]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def is_source(name: str) -> bool:
    return (ROOT / name).exists() or any(f"/{file}".endswith(f"/{name}") for file in sources())


@pytest.mark.parametrize("page", pages())
def test_links_between_files_lead_to_files_and_headings(page: str) -> None:
    for target in LINK.findall(CODE.sub("`code`", prose(page))):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(path.resolve().relative_to(ROOT).as_posix()), f"{page}: {target}"


def test_broken_links_of_the_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "index.html").write_text('<h1 id="top">API</h1><a href="../index.html#there">up</a>')
    (tmp_path / "index.html").write_text(
        '<h2 id="there">There</h2><a href="api/#top">1</a><a href="#there">2</a><a href="https://example.com/x">3</a>'
        '<a href="api/#gone">4</a><a href="gone.html">5</a><a href="#gone">6</a><img src="gone.svg">'
        '<script src="https://example.com/x.js"></script>'
    )
    assert sorted(links.faults(tmp_path)) == [
        "index.html has the link #gone, which leads nowhere",
        "index.html has the link api/#gone, which leads nowhere",
        "index.html has the link gone.html, which leads nowhere",
        "index.html has the link gone.svg, which leads nowhere",
        "index.html loads https://example.com/x.js from another server",
    ]


def test_llms_txt_lists_the_pages_of_each_section_with_their_first_sentence() -> None:
    listed = [
        llms.Listed(
            "Start", "Overview", "index.md", "# kafkabuf\n\nA [producer](producer.md) for\nPython. And more.\n"
        ),
        llms.Listed("Start", "Empty", "empty.md", "# Empty\n\n```text\nno prose\n```\n"),
        llms.Listed("Reference", "API", "api/index.md", "# API\n\n| a | table |\n\n`send()` sends. It returns.\n"),
    ]
    assert llms.listing("kafkabuf", "A producer", listed).splitlines() == [
        "# kafkabuf",
        "",
        "> A producer",
        "",
        "## Start",
        "",
        "- [Overview](index.md): A producer for Python.",
        "- [Empty](empty.md)",
        "",
        "## Reference",
        "",
        "- [API](api/index.md): `send()` sends.",
    ]


def test_links_between_files_become_links_between_pages() -> None:
    text = "[a](docs/spark.md#guarantees) `[b](docs/spark.md)`\n```\n[c](DESIGN.md)\n```\n[d](DESIGN.md) [e](LICENSE)\n"
    linked = with_links_between_pages(text, "index.md").splitlines()
    assert linked[0].startswith("[a](spark.md#guarantees) ")
    assert linked[2] == "[c](DESIGN.md)"
    assert linked[4] == "[d](design.md) [e](LICENSE)"


def test_links_to_code_are_text_on_the_site() -> None:
    text = "[send](kafkabuf/append/_producer.pyx), [all](kafkabuf) and [that](../kafkabuf/aio); [no](docs/spark.md)"
    assert with_links_between_pages(text, "design.md") == "send, all and that; [no](spark.md)"


@pytest.mark.parametrize("page", ["DESIGN.md", "CONTRIBUTING.md", "STYLE.md", "tests/README.md", "bench/README.md"])
def test_files_that_pages_for_developers_name_exist(page: str) -> None:
    named = set(SOURCE.findall(prose(page)))
    assert named
    assert sorted(name for name in named if not is_source(name)) == []


def test_files_that_modules_name_exist() -> None:
    """In comments and docstrings of the package, which outlive many a move."""
    faults = [
        f"{file} names {name}"
        for file in sources()
        if file.startswith("kafkabuf/")
        for name in set(WRITTEN.findall((ROOT / file).read_text(encoding="utf-8")))
        if name not in OF_OTHERS and not is_source(name)
    ]
    assert faults == []


def test_design_is_read_in_one_sitting() -> None:
    assert (ROOT / "DESIGN.md").stat().st_size <= 30_000


def test_comments_and_pictures_of_code_hosts_do_not_reach_the_site() -> None:
    assert without_comments("a\n<!-- python\nx = 1\n-->\nb\n<!-- not run: no -->\nc\n") == "a\nb\nc\n"
    picture = '<picture>\n  <source media="(x)" srcset="d.svg">\n  <img src="l.svg" alt="A plot">\n</picture>'
    assert with_pictures_of_the_site(picture) == "![A plot](l.svg#only-light)\n![A plot](d.svg#only-dark)"


def test_code_in_tables_breaks_between_the_parts_of_a_name_and_elsewhere_not_at_all() -> None:
    html = "<p><code>a.b</code></p><td>x.y <code>linger.ms</code></td><td><code>-X name=v &lt;a&gt;</code></td>"
    shown = for_narrow_screens(html)
    assert shown.startswith("<p><code>a.b</code></p><td>x.y <code>linger.<wbr>ms</code></td>")
    assert shown.endswith("<td><code>-X name=<wbr>v &lt;a&gt;</code></td>")


def test_diagrams_have_a_frame_that_scrolls() -> None:
    drawing = '<pre class="mermaid"><code>flowchart TB\n</code></pre>'
    assert for_narrow_screens(f"<p>a</p>{drawing}<p>b</p>") == f'<p>a</p><div class="wide">{drawing}</div><p>b</p>'
