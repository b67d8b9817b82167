from kafkabuf.batches._batch import Batch
from kafkabuf.protocol._frame import Frame

PRODUCE: int
VERSIONS_BY_MAGIC: dict[int, tuple[int, int]]

class PartitionResponse:
    error_code: int
    leader: int
    leader_epoch: int
    base_offset: int
    log_append_time: int
    log_start_offset: int
    message: str | None
    record_errors: list[tuple[int, str | None]] | None

class ProduceResponse:
    partitions: dict[tuple[str, int], PartitionResponse]
    nodes: dict[int, tuple[str, int, str | None]]
    throttle_ms: int

def build_request(
    version: int,
    correlation_id: int,
    client_id: bytes,
    acks: int,
    timeout_ms: int,
    batches: list[Batch],
    transactional_id: bytes | None = None,
) -> Frame: ...
def parse_response(version: int, frame: bytes) -> ProduceResponse: ...
