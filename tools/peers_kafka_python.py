"""Runs kafka-python's own producer tests with kafkabuf.compat.kafka_python: `python -m tools.peers_kafka_python`.

The tests come from the sdist of the release in requirements/test.lock. The command runs them with kafka-python first,
and fails if a test that passes there fails with kafkabuf's producer. rigs/kafka_python_tests.py has the fixtures:
those of the tests need files that the sdist lacks. There one word chooses the producer. The broker is a real Apache
Kafka, or with --embedded the embedded cluster.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tools.peers import FOLDER, Peer, arguments_of, compared, sdist

# kafka-python's consumer, which reads the records, needs the packages of its codecs.
PEER = Peer("kafka-python", "", "rigs.kafka_python_tests", needs=True)
TESTS = ("test/integration/test_producer_integration.py",)
NEEDED = ("test/testutil.py", *TESTS)


def main() -> int:
    arguments = arguments_of(PEER, __doc__)
    folder = own_tests(sdist(PEER))
    return compared(PEER, folder, TESTS, embedded=arguments.embedded, options=arguments.pytest)


def own_tests(source: Path) -> Path:
    """The tests without their conftest.py. `test` becomes a package, because Python has a package of that name."""
    folder = FOLDER / "kafka_python_own_tests"
    for name in NEEDED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, folder / name)
    for package in ("test", "test/integration"):
        (folder / package / "__init__.py").touch()
    return folder


if __name__ == "__main__":
    sys.exit(main())
