"""The examples of docs/formats.md work, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def test_examples_of_the_page_work() -> None:
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(examples) > 5
    with EmbeddedCluster() as cluster, KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        names = {"producer": producer, "cluster": cluster}
        for example in examples:
            exec(compile(example, str(PAGE), "exec"), names)
