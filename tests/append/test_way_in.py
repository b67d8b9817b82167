"""The quick way into send(): every call means what it means to Python, and raises what Python raises."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.append._producer import ProducerCore
from kafkabuf.interceptors import ProducerRecord
from kafkabuf.record_metadata import BatchOutcome
from rigs.producer import TOPIC, Rig
from tests.effort import effort

SIGNATURE = inspect.signature(ProducerCore.send)
ARGUMENTS: dict[str, Any] = {
    "topic": TOPIC,
    "value": b"value",
    "key": b"key",
    "headers": [("name", b"header")],
    "partition": 1,
    "timestamp_ms": 7,
    "callback": lambda metadata, error: None,
    "opaque": object(),
}


class Name(str):
    """Equal to the name of a parameter, and another object."""


class Spy:
    """An interceptor sees most arguments of send()."""

    def __init__(self) -> None:
        self.records: list[ProducerRecord] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.records.append(record)
        return record


def bound(rig: Rig, places: list[Any], names: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments as Python assigns them to the parameters; None: Python refuses the call."""
    try:
        call = SIGNATURE.bind(rig.producer, *places, **names)
    except TypeError:
        return None
    call.apply_defaults()
    return call.arguments


@given(
    by_place=st.integers(0, len(ARGUMENTS) + 1),
    by_name=st.lists(st.sampled_from([*ARGUMENTS, "valeu", "self"]), unique=True),
    name_type=st.sampled_from([str, Name]),
)
@settings(max_examples=effort(300), deadline=None)
def test_arguments_have_the_places_that_python_gives_them(
    by_place: int, by_name: list[str], name_type: type[str]
) -> None:
    spy, outcomes = Spy(), list[BatchOutcome]()
    rig = Rig([1, 1], interceptor_classes=[spy], on_acknowledged=outcomes.append)
    places: list[Any] = [*ARGUMENTS.values(), None][:by_place]
    names: dict[str, Any] = {name_type(name): ARGUMENTS.get(name) for name in by_name}
    expected = bound(rig, places, names)
    if expected is None:
        with pytest.raises(TypeError, match=r"argument"):
            rig.producer.send(*places, **names)
        assert not rig.accumulator.incomplete
        return
    rig.producer.send(*places, **names)
    record = spy.records[0]
    headers = expected["headers"] or []
    assert record._replace(headers=list(record.headers or ())) == ProducerRecord(
        TOPIC, expected["value"], expected["key"], headers, expected["partition"], expected["timestamp_ms"]
    )
    rig.ack_all()
    assert outcomes[0].opaques == ([expected["opaque"]] if expected["opaque"] else [])


def test_send_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="descriptor 'send'"):
        ProducerCore.send(5, TOPIC)  # type: ignore[arg-type]


def test_keywords_that_were_made_at_run_time_name_parameters() -> None:
    rig = Rig()
    more: dict[str, Any] = {"val" + "ue": b"v", "part" + "ition": 0}
    future = rig.producer.send(TOPIC, **more)
    rig.ack_all()
    assert future.result().serialized_value_size == 1
