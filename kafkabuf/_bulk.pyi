from typing import Any, final

from kafkabuf._batch import Batch
from kafkabuf._producer import ProducerCore
from kafkabuf.report import ArrowReport

@final
class Segment:
    batch: Batch
    first_index: int
    rows: int
    bytes: int

def append_arrow(producer: ProducerCore, data: Any, topic: str | None) -> ArrowReport: ...
