from typing import Any

from kafkabuf.append._producer import ProducerCore
from kafkabuf.append.report import BulkReport
from kafkabuf.formats.plan import Formats

def append_arrow(
    producer: ProducerCore, report: BulkReport, data: Any, topic: str | None, formats: Formats | None = None
) -> None: ...
