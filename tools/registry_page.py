"""Writes the table of settings in docs/schema-registry.md: `python -m tools.registry_page`."""

from __future__ import annotations

from pathlib import Path

from kafkabuf.config.kinds import dotted
from kafkabuf.formats.registry.settings import RegistrySettings

PAGE = Path(__file__).parent.parent / "docs" / "schema-registry.md"
MARK = "<!-- `python -m tools.registry_page` writes what follows. -->\n"


def table() -> str:
    rows = ["| setting | type | default | valid | what it does |", "|---|---|---|---|---|"]
    for name, setting in RegistrySettings.fields.items():
        default = "" if setting.default is None else str(setting.default)
        rows.append(
            f"| `{dotted(name)}` | {setting.type} | {default} | {setting.valid} | {setting.description.strip()} |"
        )
    return "\n".join(rows) + "\n"


def page() -> str:
    """The page with the table of this code."""
    return f"{PAGE.read_text(encoding='utf-8').partition(MARK)[0]}{MARK}\n{table()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
