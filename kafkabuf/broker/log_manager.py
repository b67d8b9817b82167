"""Every log of the cluster, by node, topic and partition: opened, deleted, closed, and trimmed now and then (Kafka's
LogManager). Belongs to the event loop."""

from __future__ import annotations

from kafkabuf.broker.log import PartitionLog
from kafkabuf.broker.log_config import UNLIMITED, LogConfig
from kafkabuf.broker.timer import Timeout, Timer

# Between two looks at what has expired (Kafka's log.retention.check.interval.ms, which is five minutes there).
CHECK_SECONDS = 1.0


class LogManager:
    """Looks at the clock only while there is a log with a retention.ms."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._logs: dict[tuple[int, str, int], PartitionLog] = {}
        self._check: Timeout | None = None

    def open(self, node: int, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        """The log of this replica, which is made when it is asked for first."""
        key = node, topic, partition
        if key not in self._logs:
            self._logs[key] = PartitionLog(config, clock=self._timer.clock)
            self.configure(topic, config)
        return self._logs[key]

    def configure(self, topic: str, config: LogConfig) -> None:
        """A topic's configs have changed."""
        for (_, name, _), log in self._logs.items():
            if name == topic:
                log.config = config
        if self._check is None and config.retention_ms != UNLIMITED:
            self._check = self._timer.after(CHECK_SECONDS, self._retain)

    def _retain(self) -> None:
        self._check = None
        timed = [log for log in self._logs.values() if log.config.retention_ms != UNLIMITED]
        for log in timed:
            log.retain()
        if timed:
            self._check = self._timer.after(CHECK_SECONDS, self._retain)

    def delete(self, topic: str) -> None:
        """The logs of a topic on every node."""
        for key in [key for key in self._logs if key[1] == topic]:
            self._logs.pop(key).close()

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()
