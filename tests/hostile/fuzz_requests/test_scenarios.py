"""The scenarios of the fuzzer do what they are made for: the broker carries their requests out."""

from __future__ import annotations

import random

import pytest

from tests.hostile.fuzz_requests import target as fuzz_target
from tests.hostile.fuzz_requests.cases import Cases
from tests.hostile.fuzz_requests.scenarios import (
    SCENARIOS,
    Scenario,
    acls,
    bombs,
    everything,
    members,
    protocols,
    transaction,
    upgrade,
)
from tests.hostile.fuzz_requests.target import Case, Target

UNKNOWN_MEMBER, INVALID_TIMESTAMP, INVALID_REQUEST, POLICY_VIOLATION, GROUP_SUBSCRIBED_TO_TOPIC = 25, 32, 42, 44, 86
# A member that waits for others has no response.
NO_RESPONSE = None
EXPECTED: dict[Scenario, set[int | None]] = {
    transaction: {0},
    members: {0, GROUP_SUBSCRIBED_TO_TOPIC},
    protocols: {0, NO_RESPONSE, INVALID_REQUEST, UNKNOWN_MEMBER},
    upgrade: {0, NO_RESPONSE},
    bombs: {0, INVALID_TIMESTAMP},
    everything: {0},
    acls: {0, POLICY_VIOLATION, INVALID_REQUEST},
}


def serve(target: Target, case: Case) -> int | None:
    """The error code of the response."""
    target.serve(case)
    logged = reversed(target.world.cluster.request_log._entries)
    return next(entry.error_code for entry in logged if entry.client_id == "fuzz")


@pytest.mark.parametrize(
    ("kind", "scenario"), [(kind, scenario) for kind, scenarios in SCENARIOS.items() for scenario in scenarios]
)
def test_broker_carries_out_the_requests_of_a_scenario(
    kind: str, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_target, "SLOWER", 20)
    target = Target(kind)
    try:
        cases = scenario(random.Random(1), 40, target.world.producer)
        assert {serve(target, case) for case in cases} == EXPECTED[scenario]
    finally:
        target.close()


@pytest.mark.parametrize("kind", SCENARIOS)
def test_scenarios_come_first_in_some_generations(kind: str) -> None:
    first = [Cases(random.Random(seed), kind).next().origin for seed in range(100)]
    names = {scenario.__name__ for scenario in SCENARIOS[kind]}
    assert names < set(first)
    assert sum(origin in names for origin in first) < 60
