class Stat:
    def __init__(self, kept: int, window: float) -> None: ...
    @property
    def total(self) -> float: ...
    @property
    def count(self) -> int: ...
    def add(self, value: float, now: float) -> None: ...
    def recent(self, now: float) -> tuple[int, float, float, float]:
        """(count, sum, max, seconds) of the values in the last windows; `seconds` is the duration of these windows."""

class TopicStats:
    records: Stat
    bytes: Stat
    compression: Stat
    retries: Stat
    errors: Stat

class NodeStats:
    requests: Stat
    responses: Stat
    latency: Stat

class ProducerStats:
    batch_size: Stat
    compression: Stat
    queue_time: Stat
    record_size: Stat
    records: Stat
    retries: Stat
    errors: Stat
    splits: Stat
    latency: Stat
    throttle: Stat
    requests: Stat
    responses: Stat
    opened: Stat
    closed: Stat
    io_waits: Stat
    io_times: Stat
    waits: Stat
    exhausted: Stat
    dropped: Stat
    topics: dict[str, TopicStats]
    nodes: dict[int, NodeStats]
    def __init__(self, kept: int = 2, window: float = 30.0) -> None: ...
    def retried(self, topic: str, records: int, now: float) -> None: ...
    def failed(self, topic: str, records: int, now: float) -> None: ...
    def request(self, node_id: int, nbytes: int, now: float) -> int: ...
    def response(self, node_id: int, nbytes: int, now: float) -> int: ...
