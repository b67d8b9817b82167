"""A small Kafka in one process, for demos and tests: `EmbeddedCluster`.

front/ accepts, frames and lets in, apis/ has the handlers (one file per API key), cluster/ the nodes and who leads
what, replica/ a partition's copies, log/ their records, groups/ the consumer groups, guards/ the limits, waiting/ what
waits.
It shares protocol/, errors and clock with the client and nothing else, so that it checks the encoder instead of
agreeing with it.

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
