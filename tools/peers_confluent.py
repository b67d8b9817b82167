"""Runs confluent-kafka's own producer tests with kafkabuf.compat.confluent: `python -m tools.peers_confluent`.

The tests come from confluent-kafka's repository, of the release in requirements/test.lock: its sdist has none. The
command runs them with confluent-kafka first, and fails if a test that passes there fails with kafkabuf's producer.
rigs/confluent_tests.py chooses the tests of `Producer`. Most of them need no broker; for those of integration/ the
broker is a real Apache Kafka, or with --embedded the embedded cluster.
"""

from __future__ import annotations

import sys

from tools.peers import Peer, arguments_of, clone, compared

# pytest takes none of its conftest.py: rigs/confluent_tests.py has the fixtures.
PEER = Peer(
    "confluent-kafka",
    "https://github.com/confluentinc/confluent-kafka-python",
    "rigs.confluent_tests",
    ("--noconftest",),
    # The tests import its Avro producer, and call nothing of it.
    needs=True,
    commit="8b1c7a613434eee3d0e1287d624d7af04932f410",  # v2.15.0
)
TESTS = (
    "tests/test_Producer.py",
    "tests/test_Wakeable.py",
    "tests/test_kafka_error.py",
    "tests/test_log.py",
    "tests/test_misc.py",
    "tests/test_threads.py",
    "tests/integration/producer/test_producer_wakeable_poll_flush.py",
    "tests/integration/producer/test_transactions.py",
)


def main() -> int:
    arguments = arguments_of(PEER, __doc__)
    folder = clone(PEER, arguments.repository, arguments.commit)
    return compared(PEER, folder, TESTS, embedded=arguments.embedded, options=arguments.pytest)


if __name__ == "__main__":
    sys.exit(main())
