from collections import deque
from collections.abc import Callable
from typing import final

from kafkabuf.batches._accumulator import PartitionQueue
from kafkabuf.batches._batch import Batch
from kafkabuf.batches._drain import DrainCore
from kafkabuf.clock import Clock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import AuthenticationError, KafkaError, UnsupportedVersionError
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network._metrics import ProducerStats
from kafkabuf.network._request import Completion
from kafkabuf.network.client import NetworkClient
from kafkabuf.protocol._frame import Frame
from kafkabuf.sending._produce import PartitionResponse, ProduceResponse
from kafkabuf.transactions.manager import TransactionManager

class ProduceRequest:
    version: int
    batches: list[Batch]
    def __new__(cls, sender: SenderCore, version: int, batches: list[Batch]) -> ProduceRequest: ...
    def build(self, correlation_id: int) -> Frame: ...

class RecoveryPolicy:
    tell_at: float
    @property
    def errands(self) -> deque[Callable[[], object]]: ...
    def expire(self, now: float) -> None: ...
    def run_errands(self) -> None: ...
    def tell(self) -> None: ...
    def retry_or_fail(self, batch: Batch, error: KafkaError, response: PartitionResponse | None = None) -> None: ...
    def retry_or_fail_all(self, batches: list[Batch], error: KafkaError) -> None: ...
    def go_again(self, batches: list[Batch], error: BaseException, sent: bool) -> None: ...
    def fail_unsupported(self, batches: list[Batch], error: UnsupportedVersionError) -> None: ...
    def fail_unauthenticated(self, queues: list[PartitionQueue], error: AuthenticationError) -> None: ...

class UpkeepPolicy:
    transactions: TransactionManager | None
    produce_versions: tuple[int, int]
    def ask_for_leaders(self, topics: set[str]) -> None: ...
    def on_leaders(self, leaders: dict[tuple[str, int], tuple[int, int]], response: ProduceResponse) -> None: ...
    def update_producer_state(self, now: float) -> float: ...
    def run_transactions(self, now: float) -> float: ...
    def is_finished(self) -> bool: ...
    def wait_while_closing(self, now: float) -> float: ...

@final
class SenderCore:
    _accumulator: DrainCore
    _metadata: Metadata
    _client: NetworkClient
    _clock: Clock
    stats: ProducerStats
    recovery: RecoveryPolicy
    upkeep: UpkeepPolicy
    transactional_id: bytes | None
    many_queues: int
    closing: bool
    def __init__(
        self,
        config: ProducerConfig,
        accumulator: DrainCore,
        metadata: Metadata,
        client: NetworkClient,
        clock: Clock,
        stats: ProducerStats,
        recovery: RecoveryPolicy,
        upkeep: UpkeepPolicy,
    ) -> None: ...
    def step(self) -> bool: ...
    def run_once(self, max_wait: float = ...) -> None: ...
    def end_requests(self, completions: list[Completion]) -> None: ...
