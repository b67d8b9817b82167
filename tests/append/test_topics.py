"""What a call does about a topic or a partition that it does not know."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from kafkabuf.errors import ClosedError
from rigs.producer import TOPIC, Rig


@pytest.mark.parametrize(
    "unknown", [{"topic": ["not-seen-before"], "partition": [0]}, {"topic": [TOPIC], "partition": [7]}]
)
def test_a_call_looks_nothing_up_once_its_stream_has_closed_the_producer(
    unknown: dict[str, list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    looked_up: list[str] = []
    for name in ("await_topic", "await_partition"):
        monkeypatch.setattr(rig.producer.topics, name, lambda topic, *_: looked_up.append(topic))
    schema = pa.schema({"value": pa.binary(), "topic": pa.string(), "partition": pa.int32()})

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": [b"v"], "topic": [TOPIC], "partition": [0]}, schema=schema)
        rig.producer.close()
        yield pa.record_batch({"value": [b"v"], **unknown}, schema=schema)

    with pytest.raises(ClosedError, match="the producer is closed"):
        rig.producer.send_arrow(pa.RecordBatchReader.from_batches(schema, batches()))
    assert looked_up == []
