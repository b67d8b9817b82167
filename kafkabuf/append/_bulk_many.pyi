from collections.abc import Iterable
from typing import Any

from kafkabuf.append._producer import ProducerCore
from kafkabuf.append.report import BulkReport

def append_many(
    producer: ProducerCore,
    report: BulkReport,
    topic: str,
    values: Iterable[Any],
    keys: Iterable[Any] | None,
    headers: Iterable[Any] | None,
    partitions: Iterable[int | None] | None,
    timestamps_ms: Iterable[int | None] | None,
) -> None: ...
