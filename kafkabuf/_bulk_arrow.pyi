from typing import Any

from kafkabuf._producer import ProducerCore
from kafkabuf.report import BulkReport

def append_arrow(producer: ProducerCore, report: BulkReport, data: Any, topic: str | None) -> None: ...
