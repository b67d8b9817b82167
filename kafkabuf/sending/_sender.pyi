from collections import deque

from kafkabuf.batches._batch import Batch
from kafkabuf.batches._drain import DrainCore
from kafkabuf.batches._sequences import SequenceCore
from kafkabuf.clock import Clock
from kafkabuf.config import ProducerConfig
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network._metrics import ProducerStats
from kafkabuf.network._request import Completion
from kafkabuf.network.client import NetworkClient
from kafkabuf.protocol._frame import Frame
from kafkabuf.transactions.manager import TransactionManager

class ProduceRequest:
    version: int
    batches: list[Batch]
    def __new__(cls, sender: SenderCore, version: int, batches: list[Batch]) -> ProduceRequest: ...
    def build(self, correlation_id: int) -> Frame: ...

class SenderCore:
    _accumulator: DrainCore
    _metadata: Metadata
    _client: NetworkClient
    _clock: Clock
    stats: ProducerStats
    _producer_state: SequenceCore | None
    _transactions: TransactionManager | None
    transactional_id: bytes | None
    produce_versions: tuple[int, int]
    many_queues: int
    tell_at: float
    closing: bool
    def __init__(
        self,
        config: ProducerConfig,
        accumulator: DrainCore,
        metadata: Metadata,
        client: NetworkClient,
        clock: Clock,
    ) -> None: ...
    @property
    def _purges(self) -> deque[tuple[list[Batch], bool]]: ...
    def step(self) -> bool: ...
    def run_once(self, max_wait: float = ...) -> None: ...
    def end_requests(self, completions: list[Completion]) -> None: ...
