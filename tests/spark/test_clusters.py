"""The sink where drivers, executors and users are processes of their own, on a cluster of TLS and passwords.

Each kind of place runs its steps (tests/spark/driver.py) in one driver, once for all tests. The secrets go there in a
different way each: as PEM text, as files, as Java's JAAS text; what Spark and the sink then leave in logs, plans and
event logs is searched for them.
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
from tests.network.certificates import Authority, Identity
from tests.spark.driver import KEYS, ROWS
from tests.spark.job import PARTITIONS, committed
from tests.spark.places import Place
from tests.spark.versions import ROOT

PASSWORD = "sentinel-of-the-password"
KEY_PASSWORD = "sentinel-of-the-key"
# What docs/spark.md says to set for Spark Connect.
REDACTION = r'"kafka\.s(asl|sl)\.[^"]*"\s+value: "[^"\\]*+(\\.[^"\\]*+)*+"'
STEPS = ("at_least_once", "atomic", "exactly_once_stream", "atomic_stream", "row_too_large")
KINDS = {
    "local-cluster": STEPS,
    "standalone": STEPS,
    "connect": (*STEPS, "registered", "update_mode", "partitions", "report"),
}


def lines(*files: int) -> Counter[bytes]:
    """The rows of a stream whose files have so many."""
    return Counter(f"{file}-{row}".encode() for file, rows in enumerate(files) for row in range(rows))


TABLE = Counter(str(number).encode() for number in range(ROWS))
EXPECTED = {
    "at_least_once": TABLE,
    "registered": TABLE,
    "atomic": TABLE,
    "exactly_once_stream": lines(30, 50, 20),
    "atomic_stream": lines(30, 50, 20),
    "update_mode": Counter({b"1": 80}),
}


@dataclass(frozen=True)
class Outcome:
    """What came of a place: what its steps told, and all that was written in its folder."""

    kind: str
    told: dict[str, dict[str, Any]]
    logs: dict[Path, str]

    def error(self, step: str) -> str:
        return str(self.told[step]["error"])


class Secured:
    """A cluster that takes a certificate and a password, and what its clients give."""

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
        """Of the key that is given as text, each line but the last, which is short."""
        return self.client.key.read_text().splitlines()[1:-2]

    def found(self, topic: str) -> Counter[bytes]:
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
    """Gives the outcome of a kind of place, once it has been driven through its steps."""
    for kind, steps in KINDS.items():
        for step in steps:
            secured.cluster.create_topic(f"{kind}-{step}", partitions=PARTITIONS)

    def of(kind: str) -> Outcome:
        with Place(tmp_path_factory.mktemp(kind)) as place:
            told = _drive(place, kind, KINDS[kind], secured.options(kind))
        return Outcome(kind, told, place.logs())

    return functools.cache(of)


@pytest.fixture(scope="module", params=list(KINDS))
def outcome(run: Callable[[str], Outcome], request: pytest.FixtureRequest) -> Outcome:
    return run(request.param)


def _drive(place: Place, kind: str, steps: Sequence[str], options: dict[str, str]) -> dict[str, dict[str, Any]]:
    events = place.log_events()
    if kind == "connect":
        server = place.connect("local[2]", **events, **{"spark.sql.redaction.string.regex": REDACTION})
        return place.drive(steps, options, prefix=kind, remote=server)
    master = place.standalone() if kind == "standalone" else "local-cluster[2,1,1024]"
    return place.drive(steps, options, prefix=kind, settings=events, master=master)


def test_rows_of_a_cluster_s_executors_are_lost_or_doubled(outcome: Outcome, secured: Secured) -> None:
    for step in set(outcome.told) & set(EXPECTED):
        assert "error" not in outcome.told[step], outcome.told[step]["error"]
        assert secured.found(f"{outcome.kind}-{step}") == EXPECTED[step], step


def test_secret_is_in_a_log_a_plan_or_an_error(outcome: Outcome, secured: Secured) -> None:
    written = {**outcome.logs, Path("told"): json.dumps(outcome.told)}
    everything = "".join(written.values())
    assert "SparkListenerApplicationEnd" in everything, "there is no event log to be searched"
    assert "Starting Python" in everything or outcome.kind == "connect", "there is no executor's log to be searched"
    for secret in (PASSWORD, KEY_PASSWORD, *secured.key_lines()):
        assert [str(path) for path, text in written.items() if secret in text] == []


def test_failing_row_of_an_executor_is_not_named_to_the_user(outcome: Outcome, secured: Secured) -> None:
    assert re.search(r"row \d+ of this task \(key b'\d+', \d bytes\) cannot be sent", outcome.error("row_too_large"))
    assert not secured.found(f"{outcome.kind}-row_too_large")


def test_driver_s_log_has_no_line_of_a_write(outcome: Outcome) -> None:
    name = "connect.log" if outcome.kind == "connect" else f"driver-{outcome.kind}.log"
    log = next(text for path, text in outcome.logs.items() if path.name == name)
    assert re.search(rf"INFO kafkabuf.spark: {ROWS} rows, \d+ bytes by 4 tasks to {PARTITIONS} partitions of", log)
    assert "INFO kafkabuf.spark: micro-batch 2: 20 rows" in log
    assert "of 4 tasks had sent all their rows, which stay in the topic" in log


def test_helper_needs_a_classic_session(run: Callable[[str], Outcome]) -> None:
    outcome = run("connect")
    found = outcome.told["partitions"]["told"]
    assert found == [None if key is None else partition_for_key(key.encode(), 7) for key in KEYS]
    assert "no classic Spark session in this process: the driver's log has the reports" in outcome.error("report")


def test_documented_redaction_is_another_than_the_tried_one() -> None:
    assert REDACTION in (ROOT / "docs" / "spark.md").read_text()
