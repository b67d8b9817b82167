"""The hooks of mkdocs.yml: files outside docs/, Mermaid from this machine, narrow screens, llms.txt, and checks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # mkdocs runs this file as a script

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

from tools.site import links, llms, narrow, pages, reference

MERMAID = "assets/mermaid.min.js"
MERMAID_FILE = pages.ROOT / "build/docs/mermaid.min.js"
DIAGRAM = 'class="mermaid"'
WITH_MERMAID = "KAFKABUF_DOCS_WITHOUT_MERMAID" not in os.environ  # make docs-check has no npm
# The pages in the order of the navigation, and the text of each page by its source.
_ordered: list[Page] = []
_texts: dict[str, str] = {}


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    for source, page in pages.OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(pages.ROOT / source)))
    if WITH_MERMAID:
        files.append(File.generated(config, MERMAID, abs_src_path=str(MERMAID_FILE)))
    return files


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    _ordered[:] = nav.pages
    return nav


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    shown = pages.with_pictures_of_the_site(pages.without_comments(markdown))
    _texts[page.file.src_uri] = pages.with_links_between_pages(shown, page.file.src_uri)
    return _texts[page.file.src_uri]


def on_page_content(html: str, page: Page, **_: Any) -> str:
    _texts[page.file.src_uri] = llms.markdown_of(_texts[page.file.src_uri], html)
    return narrow.for_narrow_screens(html)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Pages with a diagram load Mermaid from the site: the theme would fetch it from another server."""
    if not WITH_MERMAID or DIAGRAM not in output:
        return output
    script = f'<script src="{page.file.url and "../" * page.file.url.count("/")}{MERMAID}"></script>'
    return output.replace("</head>", f"{script}</head>", 1)


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    site = Path(config.site_dir)
    listed = [
        llms.Listed([*page.ancestors][-1].title or "", str(page.title), page.file.src_uri, _texts[page.file.src_uri])
        for page in _ordered
    ]
    llms.write(site, config.site_name, config.site_description or "", listed)
    if faults := [*links.faults(site), *reference.faults(links.anchors(site / "api"))]:
        raise PluginError("\n".join(faults))
