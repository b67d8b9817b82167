"""Runs aiokafka's own producer tests with kafkabuf.compat.aiokafka: `python -m tools.peers_aiokafka [--embedded]`.

The tests come from aiokafka's repository, of the release in requirements/test.lock: its sdist has none. The command
runs them with aiokafka first, and fails if a test that passes there fails with kafkabuf's producer. Some tests are left
out: those that look into aiokafka's producer, or need its certificates (rigs/aiokafka_tests.py). The broker is a real
Apache Kafka, or the embedded cluster.
"""

from __future__ import annotations

import sys

from tools.peers import Peer, arguments_of, clone, compared

# pytest takes none of its conftest.py: rigs/aiokafka_tests.py has the fixtures.
_COMMIT = "672947afe85c91b7d953f0259e69837a711d3246"  # v0.14.0
PEER = Peer(
    "aiokafka", "https://github.com/aio-libs/aiokafka", "rigs.aiokafka_tests", ("--noconftest",), commit=_COMMIT
)
TESTS = ("tests/test_producer.py", "tests/test_transactional_producer.py")


def main() -> int:
    arguments = arguments_of(PEER, __doc__)
    folder = clone(PEER, arguments.repository, arguments.commit)
    options = [*arguments.pytest, *(["--embedded"] if arguments.embedded else [])]
    return compared(PEER, folder, TESTS, embedded=arguments.embedded, options=options)


if __name__ == "__main__":
    sys.exit(main())
