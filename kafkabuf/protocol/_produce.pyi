from kafkabuf._batch import Batch
from kafkabuf.network._frame import Frame

PRODUCE: int
VERSIONS_BY_MAGIC: dict[int, tuple[int, int]]

class PartitionAnswer:
    error_code: int
    base_offset: int
    log_append_time: int
    message: str | None

def build_request(
    version: int, correlation_id: int, client_id: bytes, acks: int, timeout_ms: int, batches: list[Batch]
) -> Frame: ...
def parse_response(version: int, frame: bytes) -> dict[tuple[str, int], PartitionAnswer]: ...
