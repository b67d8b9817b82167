"""docs/schema-registry.md: its examples run, and its table is that of the code."""

from __future__ import annotations

import re

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.formats.registry.settings import RegistrySettings
from tests.formats.registry_support import FakeRegistry, running
from tools import registry_page


def test_examples_run() -> None:
    text = registry_page.PAGE.read_text(encoding="utf-8")
    examples = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.S | re.M))
    with running(FakeRegistry()) as fake, EmbeddedCluster(brokers=1) as cluster:
        here = examples.replace("http://localhost:8081", fake.url).replace("localhost:9092", cluster.bootstrap_servers)
        exec(here, {})
        assert len(fake.seen) == 4
        assert [(message.value or b"")[:5] for message in cluster.messages("flights")] == [b"\0\0\0\0\x64"] * 2


def test_table_is_that_of_the_code() -> None:
    assert registry_page.page() == registry_page.PAGE.read_text(encoding="utf-8"), "run python -m tools.registry_page"


def test_default_lifetime_is_that_of_the_page() -> None:
    default = RegistrySettings.fields["latest_cache_ttl_sec"].default
    assert f"`latest.cache.ttl.sec`, {default} seconds by default" in registry_page.PAGE.read_text(encoding="utf-8")
