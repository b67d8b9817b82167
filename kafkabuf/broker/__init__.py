"""A small Kafka in one process, for demos and tests: `EmbeddedCluster`.

Users call the methods in embedded.py and in the modules whose names end in `_controls`. messages.py compares records
with what a test expects.

The broker shares protocol/, process/, errors and clock with the client, and nothing that encodes records: it checks the
client's encoder instead of agreeing with it.

Some parts are of use on their own, and any thread may use them. A `TimingWheel` runs tasks when they are due. In a
`RequestPurgatory` a `DelayedOperation` waits until one of its keys changes or its time is over. An `ExpirationReaper`
is a thread that drives a wheel where there is no event loop. These parts need no package of the extra `broker`, so
importing this package loads none of its modules: the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkabuf.lazy_names import lazy_names

if TYPE_CHECKING:
    from kafkabuf.broker.embedded import EmbeddedCluster as EmbeddedCluster
    from kafkabuf.broker.groups.settings import GroupSettings as GroupSettings
    from kafkabuf.broker.guards.acls import Acl as Acl
    from kafkabuf.broker.guards.limits import ConnectionLimits as ConnectionLimits
    from kafkabuf.broker.guards.request_log import LoggedRequest as LoggedRequest
    from kafkabuf.broker.guards.security import Security as Security
    from kafkabuf.broker.log.decoding import ConsumerRecord as ConsumerRecord
    from kafkabuf.broker.messages import Messages as Messages
    from kafkabuf.broker.telemetry.arrived import ClientMetrics as ClientMetrics
    from kafkabuf.broker.telemetry.otlp import MetricPoint as MetricPoint
    from kafkabuf.broker.waiting._purgatory import DelayedOperation as DelayedOperation
    from kafkabuf.broker.waiting._purgatory import RequestPurgatory as RequestPurgatory
    from kafkabuf.broker.waiting._timing_wheel import Timeout as Timeout
    from kafkabuf.broker.waiting._timing_wheel import TimerTask as TimerTask
    from kafkabuf.broker.waiting._timing_wheel import TimingWheel as TimingWheel
    from kafkabuf.broker.waiting.reaper import ExpirationReaper as ExpirationReaper

_HOMES = {
    "Acl": "kafkabuf.broker.guards.acls",
    "ClientMetrics": "kafkabuf.broker.telemetry.arrived",
    "ConnectionLimits": "kafkabuf.broker.guards.limits",
    "ConsumerRecord": "kafkabuf.broker.log.decoding",
    "DelayedOperation": "kafkabuf.broker.waiting._purgatory",
    "EmbeddedCluster": "kafkabuf.broker.embedded",
    "ExpirationReaper": "kafkabuf.broker.waiting.reaper",
    "GroupSettings": "kafkabuf.broker.groups.settings",
    "LoggedRequest": "kafkabuf.broker.guards.request_log",
    "Messages": "kafkabuf.broker.messages",
    "MetricPoint": "kafkabuf.broker.telemetry.otlp",
    "RequestPurgatory": "kafkabuf.broker.waiting._purgatory",
    "Security": "kafkabuf.broker.guards.security",
    "Timeout": "kafkabuf.broker.waiting._timing_wheel",
    "TimerTask": "kafkabuf.broker.waiting._timing_wheel",
    "TimingWheel": "kafkabuf.broker.waiting._timing_wheel",
}
__all__ = [*_HOMES]  # noqa: PLE0604

__getattr__ = lazy_names(globals(), _HOMES)
