"""The bench computes the right figures, notices a lost record, and runs its commands on a few hundred records."""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench import claims, clients, harness, java, plot, report
from bench.__main__ import main
from bench.append import aio
from bench.batches import flights
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric, ratio
from bench.measure import Delivered, Publish, measure
from bench.sending import latency
from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from rigs.jars import JarsUnavailableError
from rigs.real_kafka import RealKafka

# kafka-python does not close the sockets of connections that it gives up.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

RATE = Metric("rate", "records/s")
COST = Metric("cost", "µs", more_is_better=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(verify_records=True) as running:
        yield running
    gc.collect()


def measured(*rates: float) -> list[Measurement]:
    return [{"rate": rate, "cost": 1 / rate} for rate in rates]


def claim(*goals: Goal, **more: Any) -> Claim:
    cases = [Case("ours", lambda job: {}), Case("half", lambda job: {}, share=0.5), Case("theirs", lambda job: {})]
    defaults = {"metrics": [RATE, COST], "baseline": "theirs", "amount": 100, "goals": goals}
    return Claim(**{"name": "try", "title": "Ours is faster", "cases": cases, **defaults, **more})


RESULTS = {"ours": measured(2, 30, 8), "half": measured(1, 1, 1), "theirs": measured(1, 10, 8)}


def test_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The ratio of the medians is 8 / 8.
    assert ratio(RESULTS, "ours", "theirs", "rate") == 2
    assert ratio(RESULTS, "ours", "theirs", "cost") == 0.5


def test_cases_are_compared_in_the_rounds_that_both_ran_in() -> None:
    assert ratio({"ours": measured(2, 30, 8), "theirs": measured(1)}, "ours", "theirs", "rate") == 2


@pytest.mark.parametrize(
    ("goal", "figure", "met"),
    [
        (Goal("twice", "ours", "rate", 2, "theirs"), 2, True),
        (Goal("more", "ours", "rate", 2.01, "theirs"), 2, False),
        (Goal("half", "ours", "cost", 0.5, "theirs", at_most=True), 0.5, True),
        (Goal("less", "ours", "cost", 0.49, "theirs", at_most=True), 0.5, False),
        (Goal("above", "ours", "rate", 3, "theirs", above="half"), 29 / 9, True),
        (Goal("alone", "ours", "rate", 8), 8, True),
        (Goal("alone, less", "ours", "rate", 7.9, at_most=True), 8, False),
    ],
)
def test_goal_is_judged_by_its_bound(goal: Goal, figure: float, met: bool) -> None:
    verdict = goal.judge(RESULTS)
    assert verdict is not None
    assert (verdict.figure, verdict.met) == (figure, met)
    assert verdict.line.startswith("met" if met else "missed")


def test_goal_without_its_cases_is_not_judged() -> None:
    ours = {"ours": RESULTS["ours"]}
    assert Goal("twice", "ours", "rate", 2, "theirs").judge(ours) is None
    assert Goal("alone", "ours", "rate", 2).judge({"theirs": RESULTS["theirs"]}) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"goals": [Goal("x", "our", "rate", 1)]}, "no case is called our"),
        ({"goals": [Goal("x", "ours", "rates", 1)]}, "no metric is called rates"),
        ({"goals": [Goal("x", "ours", "rate", 1, "theirs", above="one")]}, "no case is called one"),
        ({"baseline": "nobody"}, "no case is called nobody"),
        ({"cases": [Case("theirs", lambda job: {})] * 2}, "same name"),
        (
            {"cases": [Case("theirs", lambda job: {}, apart=True), Case("ours", lambda job: {})]},
            "needs the case theirs",
        ),
    ],
)
def test_claim_refuses_names_that_cannot_be_right(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        claim(**wrong)


def test_chosen_case_brings_its_baseline() -> None:
    cases = claims.load("compression").chosen(["kafkabuf zstd, CSV"])
    assert [case.name for case in cases] == ["confluent-kafka zstd, CSV", "kafkabuf zstd, CSV"]


def test_run_of_all_claims_leaves_out_the_cases_that_no_goal_needs() -> None:
    found = [case.name for case in claims.load("purgatory").briefly()]
    assert "Kafka 3.9, low latency, 150,000/s" in found
    assert "Kafka 0.8's design, in Python" not in found


def test_every_claim_has_a_command() -> None:
    assert set(main.commands) == {*claims.MODULES, "all"}
    assert [claims.load(name).name for name in claims.MODULES] == list(claims.MODULES)


def test_every_other_round_runs_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(claim: Claim, cases: Sequence[Case], job: Job) -> list[Measurement]:
        ran.append(" ".join(case.name for case in cases))
        return [{"rate": 1.0} for _ in cases]

    monkeypatch.setattr(harness, "run", run)
    results = harness.alternate(claim(), claim().cases, 2, Job(100))
    assert ran == ["ours", "half", "theirs", "theirs", "half", "ours"]
    assert {name: len(rounds) for name, rounds in results.items()} == {"ours": 2, "half": 2, "theirs": 2}
    ran.clear()
    harness.alternate(
        claim(), [replace(case, group="all" * (case.name != "half")) for case in claim().cases], 2, Job(1)
    )
    assert ran == ["ours theirs", "half", "theirs ours", "half"]


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 1), (5.9, 1), (6.0, 2), (9.0, 3), (100.0, 4)])
def test_no_round_starts_that_would_end_after_the_claims_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rounds: int
) -> None:
    now = [0.0]

    def run(claim: Claim, cases: Sequence[Case], job: Job) -> list[Measurement]:
        now[0] += 1.0  # a round of three cases takes three seconds
        return [{"rate": 1.0} for _ in cases]

    monkeypatch.setattr(harness, "run", run)
    monkeypatch.setattr("bench.harness.time.monotonic", lambda: now[0])
    judged = claim(Goal("faster", "ours", "rate", 1, "theirs", above="half"))
    results = harness.alternate(judged, judged.cases, 4, Job(1), seconds=seconds)
    assert {len(figures) for figures in results.values()} == {rounds}


@pytest.mark.parametrize(("seconds", "rounds"), [(4.9, 1), (5.0, 2), (math.inf, 3)])
def test_with_a_bound_of_time_a_case_that_decides_no_goal_runs_once(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rounds: int
) -> None:
    now = [0.0]

    def run(claim: Claim, cases: Sequence[Case], job: Job) -> list[Measurement]:
        now[0] += 1.0  # a round of the two cases that decide takes two seconds
        return [{"rate": 1.0} for _ in cases]

    monkeypatch.setattr(harness, "run", run)
    monkeypatch.setattr("bench.harness.time.monotonic", lambda: now[0])
    judged = claim(Goal("faster", "ours", "rate", 1, "theirs"))
    results = harness.alternate(judged, judged.cases, 3, Job(1), seconds=seconds)
    undecided = 3 if math.isinf(seconds) else 1
    assert {name: len(figures) for name, figures in results.items()} == {
        "ours": rounds,
        "half": undecided,
        "theirs": rounds,
    }


def test_slow_peer_gets_its_share_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    amounts = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        amounts.append(json.loads(command[-1])["amount"])
        return subprocess.CompletedProcess(command, 0, 'noise\n{"rate": 1, "cost": 2, "more": 3}\n', "")

    monkeypatch.setattr(subprocess, "run", run)
    assert harness.run(claim(), [claim().case("half")], Job(100)) == [{"rate": 1, "cost": 2, "more": 3}]
    harness.run(claim(), [claim().case("half")], Job(1))
    assert amounts == [50, 1]


@pytest.mark.parametrize(
    ("status", "output", "message"),
    [
        (1, '{"rate": 1, "cost": 2}', "failed\nwhy"),
        (0, "", "printed no figures"),
        (0, "Segmentation fault", "printed no figures"),
        (0, '{"rate": 1}', "measured no cost"),
    ],
)
def test_case_that_fails_ends_the_claim(
    monkeypatch: pytest.MonkeyPatch, status: int, output: str, message: str
) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, status, output, "why")
    )
    with pytest.raises(harness.CaseFailed, match=message):
        harness.run(claim(), [claim().case("ours")], Job(1))


def test_record_without_a_successful_callback_fails_the_check() -> None:
    delivered = Delivered()
    delivered.on_kafkabuf(object(), None)
    delivered.on_confluent(None, object())
    delivered.check(2)
    delivered.on_kafkabuf(object(), None)
    delivered.on_kafkabuf(object(), RuntimeError())
    delivered.on_confluent(RuntimeError(), object())
    with pytest.raises(RuntimeError, match="1 of 3 records"):
        delivered.check(3)


def test_producer_that_loses_a_record_is_refused(cluster: EmbeddedCluster) -> None:
    @contextmanager
    def forgetful(bootstrap: str, topic: str) -> Iterator[Publish]:
        with KafkaProducer(bootstrap_servers=bootstrap) as producer:

            def publish(records: int) -> int:
                for _ in range(records - (records > 2)):
                    producer.send(topic, b"x")
                producer.flush()
                return records

            yield publish

    with harness.topic(cluster.bootstrap_servers) as topic:
        with pytest.raises(RuntimeError, match="101 of 102 records arrived"):
            measure(forgetful, Job(100, cluster.bootstrap_servers, topic))


@pytest.mark.parametrize(
    ("client", "records"),
    [
        (clients.kafkabuf(16384, callback=True), 306),
        (clients.kafkabuf(16384, full=True), 306),
        (clients.kafkabuf_arrow(16384), 306),
        (clients.confluent(callback=True), 306),
        (clients.confluent(full=True), 306),
        (clients.confluent_batches(clients.CONFLUENT_BEST), 306),
        (clients.aiokafka(16384), 306),
        (clients.aiokafka(16384, batches=True), 306),
        *((library(sends), 306) for library in (aio.kafkabuf, aio.aiokafka) for sends in aio.STYLES.values()),
        (clients.kafka_python(16384), 306),
        (clients.replay(1000), 8 + 304),  # whole batches of eight
    ],
    ids=["kafkabuf", "full", "arrow", "confluent", "confluent-full", "batches", "aio", "aio-batches"]
    + [f"{library}-{style}" for library in ("kafkabuf.aio", "aiokafka") for style in aio.STYLES]
    + ["kp", "replay"],
)
def test_every_record_that_a_client_counts_arrives(
    cluster: EmbeddedCluster, client: Any, records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = []
    monkeypatch.setattr("bench.measure.arrivals.check", lambda self, count: arrived.append((count, self.expected)))
    with harness.topic(cluster.bootstrap_servers) as topic:
        figures = measure(client, Job(300, cluster.bootstrap_servers, topic))
    assert arrived == [(records, records)]
    assert figures["records_per_s"] > 0
    assert figures["cpu_us"] > 0


def test_command_writes_its_figures(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    ours, theirs = "kafkabuf send 128 KiB", "confluent-kafka, callback"
    options = ["--bootstrap-servers", cluster.bootstrap_servers, "--records", "300", "--rounds", "1"]
    done = CliRunner().invoke(main, ["send", *options, "--case", ours, "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "send.json").read_text())
    assert (written["records"], written["rounds"], list(written["cases"])) == (300, 1, [ours, theirs])
    assert {"cores", "load_at_start", "kernel", "kafka", "commit", "peers"} <= written["machine"].keys()
    assert "none" not in written["machine"]["peers"].values()
    rounds = {name: case["rounds"] for name, case in written["cases"].items()}
    assert written["cases"][ours]["ratios"]["cpu_us"] == pytest.approx(ratio(rounds, ours, theirs, "cpu_us"))
    assert [(goal["other"], goal["metric"]) for goal in written["goals"]] == [
        (theirs, "records_per_s"),
        (theirs, "cpu_us"),
    ]
    assert all(("met" if goal["met"] else "missed") in done.output for goal in written["goals"])
    assert (tmp_path / "send.png").exists() == plot.available()
    assert ("no plot" in done.stderr) != plot.available()


def test_table_has_every_result(tmp_path: Path) -> None:
    written = report.write(claim(), RESULTS, 100, {}, tmp_path)
    assert [path.name for path in written] == ["try.json", "try.png"][: 2 if plot.available() else 1]
    assert all(path.stat().st_size for path in written)
    rows = [list(column.cells) for column in report.table(claim(), RESULTS).columns]
    assert rows == [
        ["ours", "half", "theirs"],
        ["8.00  x  2.00", "1.00  x  0.12", "8.00  =  1.00"],
        ["0.12  x  0.50", "1.00  x  8.00", "0.12  =  1.00"],
    ]


class StalledTime:
    """Time that passes only in sleeps, and during the third call of send()."""

    def __init__(self) -> None:
        self.now = 5_000_000_000
        self.sent = 0

    def perf_counter_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)

    def send(self) -> None:
        self.sent += 1
        if self.sent == 3:
            self.now += 3_500_000


def test_latency_by_the_schedule_shows_a_delayed_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = StalledTime()
    monkeypatch.setattr(latency, "time", stalled)
    due, called = latency.pace(stalled.send, 1000, 8)
    assert [(when - 5_000_000_000) / 1e6 for when in due] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [(when - 5_000_000_000) / 1e6 for when in called] == [0, 1, 2, 5.5, 5.5, 5.5, 6, 7]
    figures = latency.latencies(due, called, [when + 1_000_000 for when in called])
    assert figures["call_p50_ms"] == figures["call_p99_ms"] == figures["due_p50_ms"] == 1
    assert figures["due_p99_ms"] == pytest.approx(3.43, abs=0.01)


@pytest.mark.parametrize("case", ["kafkabuf, 1,000/s", "confluent-kafka, 1,000/s"])
def test_latency_by_the_schedule_is_at_least_that_of_the_call(
    cluster: EmbeddedCluster, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "WARM_UP_S", 0)
    with harness.topic(cluster.bootstrap_servers) as topic:
        figures = claims.load("latency").case(case).run(Job(1, cluster.bootstrap_servers, topic))
    assert 0 < figures["call_p50_ms"] <= figures["call_p99_ms"]
    assert figures["call_p50_ms"] <= figures["due_p50_ms"]


@pytest.mark.parametrize(
    "case", ["kafkabuf, high latency, 150,000/s", "kafkabuf, requests in Python", "Kafka 0.8's design, in Python"]
)
def test_every_request_of_the_purgatory_load_ends(case: str) -> None:
    """A run ends when every request has ended. This load lasts a tenth of a second, and some requests expire."""
    figures = claims.load("purgatory").case(case).run(Job(2_000))
    assert figures["cpu_us"] > 0
    assert figures["requests_per_s"] > 100


def test_flight_row_has_the_json_that_spark_writes() -> None:
    row = flights.as_json(7, {"year": "2013", "dep_delay": "NA", "carrier": "UA", "lat": "1.5"})
    assert row == '{"_row":7,"year":2013,"carrier":"UA","lat":1.5}'


def test_reported_compression_is_that_of_the_log(
    kafka_4: RealKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "JSON", tmp_path / "rows")
    flights._lines.cache_clear()
    (tmp_path / "rows").write_text("\n".join(flights.as_json(n, {"carrier": "UA", "flight": "1545"}) for n in range(9)))
    ratios = {}
    for name in ("kafkabuf none, JSON", "kafkabuf zstd, JSON"):
        ratios[name] = claims.load("compression").case(name).run(Job(1000, kafka_4.bootstrap_servers))["compression"]
    flights._lines.cache_clear()
    assert 0.5 < ratios["kafkabuf none, JSON"] < 1 < 5 < ratios["kafkabuf zstd, JSON"]


def test_java_without_a_compiler_is_refused_before_any_case_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "java"
    runtime.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2 || echo java.base@17\n')
    runtime.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    java.require_compiler.cache_clear()
    with pytest.raises(JarsUnavailableError, match="Install a JDK, version 17 or newer"):
        java.require_compiler()


@pytest.mark.parametrize("summary", ["", "500 records sent, 9.0 records/sec (0.01 MB/sec), 1.0 ms avg latency"])
def test_tool_without_a_final_summary_is_refused(summary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "java"
    tool.write_text(f"#!/bin/sh\necho '{summary}'\n")
    tool.chmod(0o755)
    monkeypatch.setattr(java, "java", lambda: str(tool))
    monkeypatch.setattr(java, "require_tools", lambda: tmp_path)
    with pytest.raises(RuntimeError, match="ProducerPerformance failed"):
        java.producer_performance("localhost:9092", "topic", 1000, 100, {})
