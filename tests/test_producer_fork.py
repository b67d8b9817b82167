"""A forked child and its parent's producer, in a process of their own: pytest's has threads that a fork would hurt."""

from __future__ import annotations

import subprocess
import sys

from kafkabuf.broker import EmbeddedCluster

SCRIPT = """
import os, sys, warnings
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: of a fork with threads, which is the point here
producer = KafkaProducer(bootstrap_servers=sys.argv[1])
producer.send("forked", b"before").result(10)

def refusal(call):
    try:
        call()
    except ClosedError as error:
        return "belongs to the parent" in str(error)

child = os.fork()
if child == 0:
    refused = refusal(lambda: producer.send("forked", b"child")) and refusal(lambda: producer.flush(10))
    producer.close()
    with KafkaProducer(producer.config) as own:
        own.send("forked", b"own").result(10)
    os._exit(0 if refused else 1)
status = os.waitpid(child, 0)[1]
producer.send("forked", b"after").result(10)
producer.close(10)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_forked_child_hangs_on_its_parents_producer() -> None:
    with EmbeddedCluster() as cluster:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, cluster.bootstrap_servers], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert cluster.end_offset("forked", 0) == 3
