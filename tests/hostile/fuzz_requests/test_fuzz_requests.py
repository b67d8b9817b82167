"""The broker survives malformed requests: it answers or closes the connection, at a small cost."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kafkabuf.broker.apis.dispatch import APIS
from kafkabuf.protocol import messages
from tests.broker.raw_client import batch
from tests.effort import EFFORT, effort
from tests.hostile.fuzz_requests import target as fuzz_target
from tests.hostile.fuzz_requests.mutations import mutated
from tests.hostile.fuzz_requests.target import Case, Target, api_of, corpus


@pytest.fixture(scope="module", autouse=True)
def busy_machine() -> Iterator[None]:
    """These tests are not about time, and run beside others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz_target, "SLOWER", 20)
        yield


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    fuzzed = Target()
    yield fuzzed
    fuzzed.close()


def first_and_last_versions() -> list[bytes]:
    ends = {(key, version) for key, api in APIS.items() for version in (api.min_version, api.max_version)}
    return [frame for frame in corpus() if api_of(frame) in ends]


def places(number: int, first: int, frame: bytes) -> range:
    """Every third place of a request, or every place in a whole run. Another request begins at another place."""
    step = 1 if EFFORT == "whole" else 3
    return range(first + number % step, len(frame), step)


def test_corpus_has_every_api_and_version(target: Target) -> None:
    """`python -m tests.hostile.fuzz_requests --renew` rewrites the corpus."""
    served = {(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)}
    assert {api_of(frame) for frame in corpus()} == served


def test_broker_survives_a_request_cut_short(target: Target) -> None:
    for number, frame in enumerate(first_and_last_versions()):
        for size in places(number, 0, frame):
            target(frame[:size])


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xfe", b"\xff\xff\xff\xff\x07"])
def test_broker_survives_a_count_or_length_beyond_the_frame(target: Target, count: bytes) -> None:
    """The count is an integer or a varint, at every place of the request."""
    for number, frame in enumerate(first_and_last_versions()):
        for at in places(number, 4, frame):
            target(frame[:at] + count + frame[at + len(count) :])


def test_broker_survives_a_varint_without_an_end(target: Target) -> None:
    for number, frame in enumerate(first_and_last_versions()):
        for at in places(number, 8, frame):
            target(frame[:at] + b"\xff" * (len(frame) - at))


def test_broker_survives_an_unknown_api_or_version(target: Target) -> None:
    for key in (-32768, -1, *range(100), 32767):
        for version in (-32768, -1, 0, 99, 32767):
            target(key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True) + bytes(60))


@pytest.mark.parametrize("version", range(5))
def test_response_to_a_very_long_name_fits_a_string(target: Target, version: int) -> None:
    """Strings of old versions hold 32,767 bytes, as names do: an error message cannot quote such a name whole."""
    name = "x" * 32_767
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "count": 3, "assignments": [], "configs": []}
    resource = {"resource_type": 2, "resource_name": name, "configuration_keys": None, "configs": []}
    for key in (
        messages.CREATE_TOPICS,
        messages.CREATE_PARTITIONS,
        messages.DESCRIBE_CONFIGS,
        messages.ALTER_CONFIGS,
        messages.INCREMENTAL_ALTER_CONFIGS,
    ):
        if APIS[key].min_version <= version <= APIS[key].max_version:
            entity = messages.build_request(key, version, topics=[topic], resources=[resource])
            target(messages.encode_request(key, version, 1, "c", entity))


@pytest.mark.parametrize("version", [3, 8])
def test_response_to_records_for_a_topic_with_a_very_long_name_fits_a_string(target: Target, version: int) -> None:
    data = [{"name": "x" * 32_767, "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
    entity = messages.build_request(messages.PRODUCE, version, acks=1, timeout=1000, topic_data=data)
    target.serve(Case(messages.encode_request(messages.PRODUCE, version, 1, "c", entity), "refused"))


def test_broker_survives_mutated_requests(target: Target) -> None:
    generator, frames = random.Random(7), corpus()
    for _ in range(effort(5_000)):
        target(mutated(generator, frames))
