"""A small Kafka in one process, for demos and tests: `EmbeddedCluster`.

front/ accepts connections, reads frames and authenticates, apis/ has the handlers (one file per API key), cluster/ the
nodes, the topics and the controller, replica/ the copies of partitions, log/ their records, groups/ the consumer
groups, guards/ the limits, waiting/ the requests that wait.
The broker shares protocol/, errors and clock with the client and nothing else, so that it checks the client's encoder
instead of agreeing with it.

Parts that are of use on their own, from any thread: `TimingWheel`, which runs what is due later, and
`RequestPurgatory`, in which a `DelayedOperation` waits for one of its keys to change or to expire. An
`ExpirationReaper` is the thread that drives a wheel where there is no event loop.
"""

from kafkabuf.broker.embedded import EmbeddedCluster
from kafkabuf.broker.guards.limits import ConnectionLimits
from kafkabuf.broker.guards.request_log import LoggedRequest
from kafkabuf.broker.guards.security import Security
from kafkabuf.broker.waiting._purgatory import DelayedOperation, RequestPurgatory
from kafkabuf.broker.waiting._timing_wheel import Timeout, TimerTask, TimingWheel
from kafkabuf.broker.waiting.reaper import ExpirationReaper

__all__ = [
    "ConnectionLimits",
    "DelayedOperation",
    "EmbeddedCluster",
    "ExpirationReaper",
    "LoggedRequest",
    "RequestPurgatory",
    "Security",
    "Timeout",
    "TimerTask",
    "TimingWheel",
]
