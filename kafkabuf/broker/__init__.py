"""A small Kafka in one process, for demos and tests: `EmbeddedCluster`.

server.py frames, dispatch.py finds the handler under apis/ (one file per API key), cluster.py and topics.py hold who
leads what, log.py the records, groups.py the consumer groups. It shares protocol/, errors and clock with the client and
nothing else, so that it checks the encoder instead of agreeing with it.
"""

from kafkabuf.broker.embedded import EmbeddedCluster

__all__ = ["EmbeddedCluster"]
