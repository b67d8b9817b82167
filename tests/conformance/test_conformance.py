"""The embedded broker's responses equal Kafka 4.1.2's field by field, in every API and version that it serves."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster, apis
from kafkabuf.broker.apis.dispatch import APIS
from kafkabuf.protocol import messages
from rigs.real_kafka import RealKafka
from tests.broker.raw_client import RawClient
from tests.conformance import (
    acls,
    client_metrics,
    consumer_groups,
    groups,
    migration,
    node_settings,
    script,
    settings,
    topics,
    transactions,
    values,
)
from tests.conformance.deviations import DEVIATIONS, NOT_SERVED
from tests.conformance.script import STEPS, Conversation, differences

apis.load()
MODULES = (
    acls,
    client_metrics,
    consumer_groups,
    groups,
    migration,
    node_settings,
    settings,
    topics,
    transactions,
    values,
)
Answers = dict[tuple[int, int, str], Any]


def ask(address: str, name: str, wanted: dict[int, range]) -> Answers:
    talk = Conversation(address, name, RawClient(address))
    topics.prepare(talk)
    script.run(talk, wanted)
    talk.client.socket.close()
    return talk.answers


def shared(theirs: dict[int, range]) -> dict[int, range]:
    """The versions that both serve. Kafka 4 lists Produce 0 to 2 for old librdkafkas, but does not serve them.
    It serves two APIs that it does not list."""
    theirs = {**dict.fromkeys((messages.GET_TELEMETRY_SUBSCRIPTIONS, messages.PUSH_TELEMETRY), range(1)), **theirs}
    return {
        key: range(
            max(api.min_version, theirs[key].start, messages.known_versions(key).start),
            min(api.max_version + 1, theirs[key].stop),
        )
        for key, api in APIS.items()
    }


@pytest.fixture(scope="module")
def answers(kafka_4: RealKafka) -> tuple[Answers, Answers]:
    """Ours and theirs, in the versions that both serve."""
    theirs = script.versions(kafka_4.bootstrap_servers)
    both = shared(theirs)
    name = f"conf-{uuid.uuid4().hex[:8]}"
    with EmbeddedCluster() as cluster:
        ours = ask(cluster.bootstrap_servers, name, both)
    return ours, ask(kafka_4.bootstrap_servers, name, both)


def found(answers: tuple[Answers, Answers]) -> Iterator[tuple[int, int, str, str, Any, Any]]:
    ours, theirs = answers
    for api_key, version, step in ours:
        pair = ours[api_key, version, step], theirs[api_key, version, step]
        for path, our_value, their_value in differences(*pair):
            yield api_key, version, step, path, our_value, their_value


def test_every_api_has_a_step() -> None:
    assert set(APIS) - set(STEPS) == set()
    assert set(STEPS) - set(APIS) == set(), "these are not served"


@pytest.mark.kafka
def test_list_of_apis_that_are_not_served_is_whole(kafka_4: RealKafka) -> None:
    theirs = script.versions(kafka_4.bootstrap_servers)
    assert sorted(key for keys in NOT_SERVED.values() for key in keys) == sorted(theirs.keys() - APIS.keys())


@pytest.mark.kafka
def test_offsets_are_served_in_kafkas_versions(kafka_4: RealKafka) -> None:
    """Kafka 4.1 has schemas of version 10 (topic ids), and marks them unstable."""
    theirs = script.versions(kafka_4.bootstrap_servers)
    for key in (messages.OFFSET_COMMIT, messages.OFFSET_FETCH, messages.TXN_OFFSET_COMMIT):
        assert theirs[key] == range(APIS[key].min_version, APIS[key].max_version + 1)


def test_page_lists_the_served_versions() -> None:
    page = (Path(__file__).parents[2] / "docs" / "embedded-broker.md").read_text()
    listed = {
        int(key): (int(first), int(last or first))
        for key, first, last in re.findall(r"\((\d+)\)\s(\d+)(?:-(\d+))?", page)
    }
    assert listed == {key: (api.min_version, api.max_version) for key, api in APIS.items()}


def test_responses_equal_kafkas_but_for_known_deviations(answers: tuple[Answers, Answers]) -> None:
    assert answers[0].keys() == answers[1].keys()
    unexplained = [
        f"{api_key} v{version} {step!r}{path}: {our_value!r} here, {their_value!r} in Kafka"
        for api_key, version, step, path, our_value, their_value in found(answers)
        if not any(deviation.explains(api_key, step, path) for deviation in DEVIATIONS)
    ]
    assert unexplained == []


def test_every_known_deviation_shows(answers: tuple[Answers, Answers]) -> None:
    seen = list(found(answers))
    gone = [
        deviation
        for deviation in DEVIATIONS
        if not any(deviation.explains(key, step, path) for key, _, step, path, _, _ in seen)
    ]
    assert gone == []
