"""The figures of the pages come from a run: `python -m bench.pages` fills tables, sentence and picture."""

from __future__ import annotations

from typing import Any

import pytest

from bench import claims, picture
from bench.append import send
from bench.measure import CPU, RATE
from bench.pages import ROOT, circumstances, filled, is_whole

PLACES = "".join(f"<!-- figures {claim} -->\nold\n<!-- /figures -->\n" for claim in ("send", "send table"))


def run(**figures: tuple[float, float]) -> dict[str, Any]:
    """A run of kafkabuf and confluent-kafka with these rates and costs."""
    names = {
        "ours": send.SEND_LARGE,
        "ours_told": send.SEND_CALLBACK,
        "theirs": send.CONFLUENT,
        "theirs_bare": send.CONFLUENT_BARE,
        "slow": "kafka-python send 128 KiB",
    }
    baseline = figures["theirs"]
    return {
        "claim": "send",
        "records": 1_000_000,
        "machine": {"time": "2026-11-23T10:00:00", "cores": 2, "processor": "a CPU", "kafka": "4.1.2"},
        "cases": {
            names[name]: {
                "medians": {RATE.name: rate, CPU.name: cpu},
                "ratios": {RATE.name: rate / baseline[0], CPU.name: cpu / baseline[1]},
                "baseline": send.CONFLUENT,
                "rounds": [{RATE.name: rate, CPU.name: cpu}] * 5,
            }
            for name, (rate, cpu) in figures.items()
        },
    }


RUN = run(ours=(4e6, 0.1), ours_told=(3e6, 0.2), theirs=(1e6, 2.0), theirs_bare=(2e6, 1.0), slow=(1e5, 20.0))


def test_page_gets_the_figures_of_a_run_with_its_date_and_machine() -> None:
    text = filled(PLACES, {"send": RUN})
    assert "old" not in text
    assert "a callback for each record in both,\n3.0 times the rate at 0.10 of the CPU time." in text
    assert "Without callbacks, 2.0 times the rate at 0.10 of the CPU time;" in text
    assert f"| {send.SEND_LARGE} | 4,000,000 | 0.100 | 4.00 | 0.05 |" in text
    assert text.count("Medians of 5 rounds on 2026-11-23; 2 cores of a CPU, which Apache Kafka 4.1.2 shares.") == 2
    assert filled(text, {"send": RUN}) == text


def test_figures_of_a_claim_that_did_not_run_stay() -> None:
    assert filled(PLACES, {}) == PLACES


@pytest.mark.parametrize("name", ["spool", "spool-latency", "spool-outage"])
def test_page_of_numbers_has_a_table_for_each_claim_of_the_file(name: str) -> None:
    claim = claims.load(name)
    figures = {metric.name: 1.0 for metric in claim.metrics}
    rows = {
        case.name: {"medians": figures, "ratios": figures, "baseline": case.baseline or claim.baseline, "rounds": [{}]}
        for case in claim.cases
    }
    page = (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8")
    text = filled(page, {name: {**RUN, "claim": name, claim.unit: claim.amount, "cases": rows}})
    place = text.partition(f"<!-- figures {name} table -->")[2].partition("<!-- /figures -->")[0]
    assert [row.split(" | ")[0].strip("|* ") for row in place.splitlines()[3:-2]] == [case.name for case in claim.cases]


def test_sentence_of_the_first_screen_needs_five_rounds() -> None:
    few = run(ours=(4e6, 0.1), ours_told=(3e6, 0.2), theirs=(1e6, 2.0), theirs_bare=(2e6, 1.0))
    for case in few["cases"].values():
        del case["rounds"][-1]
    text = filled(PLACES, {"send": few})
    assert text.count("old") == 1
    assert "Medians of 4 rounds" in text


def test_figures_say_that_some_cases_had_fewer_rounds() -> None:
    few = run(ours=(4e6, 0.1), theirs=(1e6, 2.0))
    few["cases"][send.SEND_LARGE]["rounds"] = [{}]
    assert circumstances(few).startswith("Medians of 1 to 5 rounds on 2026-11-23;")
    few["cases"][send.CONFLUENT]["rounds"] = [{}]
    assert circumstances(few).startswith("One round on 2026-11-23;")


@pytest.mark.parametrize(("name", "whole"), [("send", True), ("spark", False)])
def test_a_page_gets_no_figures_of_a_run_with_less_work_than_it_states(name: str, whole: bool) -> None:
    claim = claims.load(name)
    amount = round(claim.amount * claim.brief)
    assert is_whole({"claim": name, claim.unit: amount}) is whole


@pytest.mark.parametrize("name", ["README.md", "docs/numbers.md"])
def test_pages_have_places_for_claims_that_exist(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert "<!-- figures send" in page
    assert {part.split()[0] for part in page.split("<!-- figures ")[1:]} <= set(claims.MODULES)


@pytest.mark.parametrize("theme", picture.THEMES)
def test_picture_shows_each_producer_and_cuts_the_longest_bar(theme: str) -> None:
    pytest.importorskip("matplotlib", reason="only the extra bench has it")
    text = picture.svg(RUN, theme)
    assert text == picture.svg(RUN, theme)
    for shown in ("kafkabuf", "kafka-python", "20 →", picture.THEMES[theme].ours):
        assert f">{shown}<" in text or shown in text, shown
