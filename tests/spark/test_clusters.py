"""The sink on clusters of Spark whose drivers and executors are separate processes. Kafka asks for TLS and passwords.

One driver runs the steps (tests/spark/driver.py) of each kind of cluster, once for all tests. Each kind gets the
secrets in a different form: PEM text, files, or Java's JAAS text. Then a test searches for the secrets in everything
that Spark and the sink wrote: logs, plans and event logs.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.partitioner import partition_for_key
from tests.network.tls.certificates import Authority, Identity
from tests.spark.driver import KEYS, ROWS
from tests.spark.job import PARTITIONS, committed
from tests.spark.places import Place
from tests.spark.versions import ROOT

PASSWORD = "sentinel-of-the-password"
KEY_PASSWORD = "sentinel-of-the-key"
# The settings that docs/spark.md recommends for Spark Connect.
REDACTION = r'"(kafka\.s(asl|sl)|schema\.registry)\.[^"]*"\s+value: "[^"\\]*+(\\.[^"\\]*+)*+"'
OPTIONS_REDACTION = r"(?i)url|keystore\.key"
STEPS = ("at_least_once", "atomic", "exactly_once_stream", "atomic_stream", "row_too_large")
KINDS = {
    "local-cluster": STEPS,
    "standalone": STEPS,
    "connect": (*STEPS, "registered", "from_a_thread", "update_mode", "partitions", "report"),
}


def lines(*files: int) -> Counter[bytes]:
    """The rows of a stream whose n-th file has `files[n]` rows."""
    return Counter(f"{file}-{row}".encode() for file, rows in enumerate(files) for row in range(rows))


TABLE = Counter(str(number).encode() for number in range(ROWS))
EXPECTED = {
    "at_least_once": TABLE,
    "registered": TABLE,
    "from_a_thread": TABLE,
    "atomic": TABLE,
    "exactly_once_stream": lines(30, 50, 20),
    "atomic_stream": lines(30, 50, 20),
    "update_mode": Counter({b"1": 80}),
}


@dataclass(frozen=True)
class Outcome:
    """The result of each step on a kind of cluster, and the text of every file in its folder."""

    kind: str
    results: dict[str, dict[str, Any]]
    logs: dict[Path, str]

    def error(self, step: str) -> str:
        return str(self.results[step]["error"])


class Secured:
    """A Kafka cluster that asks for a certificate and a password, and the settings of its clients."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        broker = authority.issue("broker", "DNS:localhost", "IP:127.0.0.1")
        self.client: Identity = authority.issue("client")
        self.locked: Identity = authority.issue("locked", password=KEY_PASSWORD)
        self.locked.store.write_text(self.locked.key.read_text() + self.locked.certificate.read_text())
        self.authority = authority.certificate
        security = Security(
            ssl_certfile=broker.store,
            ssl_cafile=self.authority,
            ssl_client_auth="required",
            users={"alice": PASSWORD},
        )
        self.cluster = EmbeddedCluster(brokers=2, security=security)

    def options(self, kind: str) -> dict[str, str]:
        common = {"kafka.bootstrap.servers": self.cluster.bootstrap_servers, "kafka.security.protocol": "SASL_SSL"}
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        texts = {
            "kafka.ssl.truststore.certificates": self.authority.read_text(),
            "kafka.ssl.keystore.key": self.client.key.read_text(),
            "kafka.ssl.keystore.certificate.chain": self.client.certificate.read_text(),
        }
        files = {
            "kafka.ssl.truststore.location": str(self.authority),
            "kafka.ssl.keystore.location": str(self.locked.store),
            "kafka.ssl.key.password": KEY_PASSWORD,
        }
        password = {"kafka.sasl.username": "alice", "kafka.sasl.password": PASSWORD}
        jaas = {"kafka.sasl.jaas.config": f'{module} username="alice" password="{PASSWORD}";'}
        return {
            "local-cluster": {**common, **texts, **password, "kafka.sasl.mechanism": "PLAIN"},
            "standalone": {**common, **files, **password, "kafka.sasl.mechanism": "SCRAM-SHA-512"},
            "connect": {**common, **texts, **jaas, "kafka.sasl.mechanism": "SCRAM-SHA-256"},
        }[kind]

    def key_lines(self) -> list[str]:
        """The lines of the client's key, without the last one, which is short."""
        return self.client.key.read_text().splitlines()[1:-2]

    def committed(self, topic: str) -> Counter[bytes]:
        return committed(
            self.cluster.bootstrap_servers,
            topic,
            security_protocol="SASL_SSL",
            ssl_ca_location=str(self.authority),
            ssl_certificate_location=str(self.client.certificate),
            ssl_key_location=str(self.client.key),
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password=PASSWORD,
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("certificates"))
    with secured.cluster:
        yield secured


@pytest.fixture(scope="module")
def run(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """A function that runs the steps of a kind of cluster and returns the outcome. It runs each kind once."""
    for kind, steps in KINDS.items():
        for step in steps:
            secured.cluster.create_topic(f"{kind}-{step}", partitions=PARTITIONS)

    def outcome_of(kind: str) -> Outcome:
        with Place(tmp_path_factory.mktemp(kind)) as place:
            results = _drive(place, kind, KINDS[kind], secured.options(kind))
        return Outcome(kind, results, place.logs())

    return functools.cache(outcome_of)


@pytest.fixture(scope="module", params=list(KINDS))
def outcome(run: Callable[[str], Outcome], request: pytest.FixtureRequest) -> Outcome:
    return run(request.param)


def _drive(place: Place, kind: str, steps: Sequence[str], options: dict[str, str]) -> dict[str, dict[str, Any]]:
    events = place.log_events()
    if kind == "connect":
        redaction = {
            "spark.sql.redaction.string.regex": REDACTION,
            "spark.sql.redaction.options.regex": OPTIONS_REDACTION,
        }
        server = place.connect("local[2]", **events, **redaction)
        return place.drive(steps, options, prefix=kind, remote=server)
    master = place.standalone() if kind == "standalone" else "local-cluster[2,1,1024]"
    return place.drive(steps, options, prefix=kind, settings=events, master=master)


def test_rows_of_a_clusters_executors_arrive_once(outcome: Outcome, secured: Secured) -> None:
    for step in set(outcome.results) & set(EXPECTED):
        assert "error" not in outcome.results[step], outcome.results[step]["error"]
        assert secured.committed(f"{outcome.kind}-{step}") == EXPECTED[step], step


def test_secrets_stay_out_of_logs_plans_and_errors(outcome: Outcome, secured: Secured) -> None:
    written = {**outcome.logs, Path("results"): json.dumps(outcome.results)}
    everything = "".join(written.values())
    assert "SparkListenerApplicationEnd" in everything, "there is no event log to search"
    assert "Starting executor ID" in everything or outcome.kind == "connect", "there is no executor's log to search"
    for secret in (PASSWORD, KEY_PASSWORD, *secured.key_lines()):
        assert [str(path) for path, text in written.items() if secret in text] == []


def test_error_names_the_row_that_an_executor_cannot_send(outcome: Outcome, secured: Secured) -> None:
    assert re.search(r"row \d+ of this task \(key b'\d+', \d bytes\) cannot be sent", outcome.error("row_too_large"))
    assert not secured.committed(f"{outcome.kind}-row_too_large")


def test_drivers_log_has_a_line_for_each_write(outcome: Outcome) -> None:
    name = "connect.log" if outcome.kind == "connect" else f"driver-{outcome.kind}.log"
    log = next(text for path, text in outcome.logs.items() if path.name == name)
    assert re.search(rf"INFO kafkabuf.spark: {ROWS} rows, \d+ bytes by 4 tasks to {PARTITIONS} partitions of", log)
    assert "INFO kafkabuf.spark: micro-batch 2: 20 rows" in log
    assert "of 4 tasks had sent all their rows, which stay in the topic" in log


def test_connect_computes_partitions_and_says_where_reports_are(run: Callable[[str], Outcome]) -> None:
    outcome = run("connect")
    partitions = outcome.results["partitions"]["returned"]
    assert partitions == [None if key is None else partition_for_key(key.encode(), 7) for key in KEYS]
    assert "no classic Spark session in this process: the driver's log has the reports" in outcome.error("report")


def test_documented_redaction_is_the_tested_redaction() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    assert REDACTION in page
    assert OPTIONS_REDACTION in page
