"""kio's schemas are loaded before the first node listens, unless hypothesis would come with them."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import sys
from kafkabuf.broker import EmbeddedCluster

{before}
with EmbeddedCluster():
    print("kio.index" in sys.modules)
"""


@pytest.mark.parametrize(
    ("before", "loaded"),
    [
        ("", "False"),
        ("import hypothesis", "True"),
        ("sys.modules['hypothesis'] = None", "True"),
    ],
    ids=["hypothesis would be imported", "hypothesis is imported", "hypothesis is not installed"],
)
def test_start_loads_the_schemas_where_that_is_quick(before: str, loaded: str) -> None:
    command = [sys.executable, "-c", _SCRIPT.format(before=before)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert done.stdout.strip() == loaded
