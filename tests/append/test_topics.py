"""What a call does about a topic that it does not know."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from kafkabuf.errors import ClosedError
from rigs.producer import TOPIC, Rig


def test_a_call_looks_no_topic_up_once_its_stream_has_closed_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    looked_up: list[str] = []
    monkeypatch.setattr(rig.producer.topics, "await_topic", lambda name, timeout: looked_up.append(name))
    schema = pa.schema({"value": pa.binary(), "topic": pa.string()})

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([[b"v"], [TOPIC]], schema=schema)
        rig.producer.close()
        yield pa.record_batch([[b"v"], ["not-seen-before"]], schema=schema)

    with pytest.raises(ClosedError, match="the producer is closed"):
        rig.producer.send_arrow(pa.RecordBatchReader.from_batches(schema, batches()))
    assert looked_up == []
