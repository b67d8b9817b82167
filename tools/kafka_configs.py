"""`python -m tools.kafka_configs` asks a real Kafka 4.1.2 for the settings of a node, and writes their names, types and
defaults to kafkabuf/broker/configs/kafka-4.1.2.txt. With --check it writes nothing, and fails if the file differs.

The texts of Kafka's documentation are not asked for, and do not enter the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from kafkabuf.broker.configs.kinds import PASSWORD, TYPE_NAMES
from kafkabuf.broker.configs.table import PATH
from kafkabuf.protocol import messages
from rigs.real_kafka import KAFKA_4, TEST_JVM, RealKafka
from tests.broker.raw_client import RawClient

_BROKER, _DEFAULT = 4, 5
_HEAD = """\
# The settings of a node of Kafka 4.1.2: name, type, `dynamic` if a running node can change it, and the default.
# `python -m tools.kafka_configs` makes this file.
"""


def line(entry: Any) -> str:
    """The line of a setting, from its entry in a DescribeConfigs response."""
    defaults = [
        synonym.value
        for synonym in entry.synonyms
        if synonym.source == _DEFAULT and synonym.name == entry.name
    ]  # fmt: skip
    assert entry.is_sensitive == (entry.config_type == PASSWORD), entry.name
    words = [entry.name, TYPE_NAMES[entry.config_type], *([] if entry.read_only else ["dynamic"])]
    return " ".join(words) + "".join(f" = {default}".rstrip() for default in defaults)


def table(entries: Iterable[Any]) -> str:
    return _HEAD + "".join(f"{text}\n" for text in sorted(map(line, entries)))


def describe(address: str) -> Any:
    """The settings of node 1, as it describes them itself."""
    resource = {"resource_type": _BROKER, "resource_name": "1", "configuration_keys": None}
    with RawClient(address) as client:
        response = client.ask(messages.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True)
    return response.results[0].configs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kafka_configs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if the file differs")
    check = parser.parse_args().check
    with RealKafka(KAFKA_4, jvm_options=TEST_JVM) as kafka:
        new = table(describe(kafka.bootstrap_servers))
    if check:
        return int(PATH.read_text(encoding="utf-8") != new)
    PATH.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
