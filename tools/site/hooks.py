"""The hooks of mkdocs.yml: pages from files outside docs/, Mermaid from this machine, llms.txt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # mkdocs runs this file as a script

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.site import pages

MERMAID = "assets/mermaid.min.js"
MERMAID_FILE = pages.ROOT / "build/docs/mermaid.min.js"
DIAGRAM = 'class="mermaid"'


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    for source, page in pages.OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(pages.ROOT / source)))
    files.append(File.generated(config, MERMAID, abs_src_path=str(MERMAID_FILE)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    shown = pages.with_pictures_of_the_site(pages.without_comments(markdown))
    return pages.with_links_between_pages(shown, page.file.src_uri)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Pages with a diagram load Mermaid from the site: the theme would fetch it from another server."""
    if DIAGRAM not in output:
        return output
    script = f'<script src="{page.file.url and "../" * page.file.url.count("/")}{MERMAID}"></script>'
    return output.replace("</head>", f"{script}</head>", 1)
