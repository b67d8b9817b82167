"""A small Kafka in one process, for demos and tests: `EmbeddedCluster`.

listener.py accepts, server.py frames, authenticator.py lets in, dispatch.py finds the handler under apis/ (one file per
API key), cluster.py and topics.py hold who leads what, log.py the records, groups.py the consumer groups. It shares
protocol/, errors and clock with the client and nothing else, so that it checks the encoder instead of agreeing with it.
"""

from kafkabuf.broker.embedded import EmbeddedCluster
from kafkabuf.broker.limits import ConnectionLimits
from kafkabuf.broker.request_log import LoggedRequest
from kafkabuf.broker.security import Security

__all__ = ["ConnectionLimits", "EmbeddedCluster", "LoggedRequest", "Security"]
