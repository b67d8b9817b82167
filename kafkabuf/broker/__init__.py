"""A small Kafka in one process, for demos and tests: `EmbeddedCluster`.

front/       accepts connections, reads frames and authenticates
apis/        the handlers: one file for each API key
cluster/     the nodes, the topics, and the controller that elects leaders
replica/     the copies of partitions, and how followers fetch from leaders
log/         the records of a copy
groups/      the consumer groups
expressions/ regular expressions of clients, in bounded time
guards/      limits, quotas, faults, the request log, security
waiting/     the requests that wait, and their timers

Users call the methods in embedded.py, controls.py, message_controls.py, node_controls.py and acl_controls.py.
messages.py compares records with what a test expects. transactions.py is the transaction coordinator.

The broker shares protocol/, errors and clock with the client and nothing else. It therefore checks the client's encoder
instead of agreeing with it.

Some parts are of use on their own, and any thread may use them. A `TimingWheel` runs tasks when they are due. In a
`RequestPurgatory` a `DelayedOperation` waits until one of its keys changes or its time is over. An `ExpirationReaper`
is a thread that drives a wheel where there is no event loop.
"""

from kafkabuf.broker.embedded import EmbeddedCluster
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.guards.acls import Acl
from kafkabuf.broker.guards.limits import ConnectionLimits
from kafkabuf.broker.guards.request_log import LoggedRequest
from kafkabuf.broker.guards.security import Security
from kafkabuf.broker.log.decoding import ConsumerRecord
from kafkabuf.broker.messages import Messages
from kafkabuf.broker.waiting._purgatory import DelayedOperation, RequestPurgatory
from kafkabuf.broker.waiting._timing_wheel import Timeout, TimerTask, TimingWheel
from kafkabuf.broker.waiting.reaper import ExpirationReaper

__all__ = [
    "Acl",
    "ConnectionLimits",
    "ConsumerRecord",
    "DelayedOperation",
    "EmbeddedCluster",
    "ExpirationReaper",
    "GroupSettings",
    "LoggedRequest",
    "Messages",
    "RequestPurgatory",
    "Security",
    "Timeout",
    "TimerTask",
    "TimingWheel",
]
