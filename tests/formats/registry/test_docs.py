"""docs/schema-registry.md: its table is that of the code."""

from __future__ import annotations

from kafkabuf.formats.registry.settings import RegistrySettings
from tools import registry_page


def test_table_is_that_of_the_code() -> None:
    assert registry_page.page() == registry_page.PAGE.read_text(encoding="utf-8"), "run python -m tools.registry_page"


def test_default_lifetime_is_that_of_the_page() -> None:
    default = RegistrySettings.fields["latest_cache_ttl_sec"].default
    assert f"`latest.cache.ttl.sec`, {default} seconds by default" in registry_page.PAGE.read_text(encoding="utf-8")
