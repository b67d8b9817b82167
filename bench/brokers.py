"""An embedded broker in a process of its own. It responds fast, or never responds to a Produce request.

`python -m bench.brokers TOPIC PARTITIONS STALLED` prints its address and runs until its standard input ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness import ROOT
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.protocol import messages

TOPIC = "bench"
RETENTION_BYTES = 1 << 16  # per partition: a broker that keeps little stays fast
FOR_EVER_S = 86_400.0


@contextmanager
def broker(partitions: int = 1, *, stalled: bool = False) -> Iterator[str]:
    """The address of a broker for the time of the `with`. It has TOPIC with so many partitions."""
    command = [sys.executable, "-m", "bench.brokers", TOPIC, str(partitions), str(int(stalled))]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError("the embedded broker did not start")
        try:
            yield address
        finally:
            process.kill()


def serve(topic: str, partitions: int, stalled: bool) -> None:
    with EmbeddedCluster(retention_bytes=RETENTION_BYTES) as cluster:
        cluster.create_topic(topic, partitions)
        if stalled:
            cluster.delay_next(messages.PRODUCE, FOR_EVER_S, times=sys.maxsize)
        print(cluster.bootstrap_servers, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
