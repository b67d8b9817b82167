"""kio's schemas are loaded before the first node listens, and hypothesis is not loaded with them."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import sys
from kafkabuf.broker import EmbeddedCluster

{before}
known = sys.modules.get("hypothesis")
with EmbeddedCluster():
    assert "kio.index" in sys.modules
    assert sys.modules.get("hypothesis") is known
    from kio.schema.create_topics.v7.request import CreateTopicsRequest
    assert sys.modules.get("hypothesis") is known
"""


@pytest.mark.parametrize(
    "before",
    ["", "import hypothesis", "sys.modules['hypothesis'] = None", "import kio.index"],
    ids=["hypothesis is installed", "hypothesis is imported", "hypothesis is not installed", "kio is imported"],
)
def test_start_loads_the_schemas_and_no_hypothesis(before: str) -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT.format(before=before)], check=True, timeout=120)
