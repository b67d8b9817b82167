"""docs/cloud.md: a producer takes each block of settings, and PLAIN carries the credentials of Event Hubs over TLS."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.clock import SystemClock
from kafkabuf.config import ProducerConfig
from kafkabuf.network.sasl import mechanisms as sasl
from tests.network.tls.certificates import Authority

TEXT = (Path(__file__).parents[2] / "docs" / "cloud.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```properties\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def settings_of(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.replace("PORT_SSL", "12345").splitlines())


@pytest.mark.parametrize("block", BLOCKS)
def test_settings_of_the_page_are_those_of_a_producer(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", SimpleNamespace(MSKAuthTokenProvider=None))
    config = ProducerConfig(settings_of(block))
    if config.security_protocol != "SSL":
        sasl.mechanism(config, SystemClock(), lambda: 0.5)


def test_page_has_a_block_for_each_service() -> None:
    services = re.findall(r"^\| \[.*?\]\(#(.*?)\)", TEXT, re.MULTILINE)
    assert len(services) == 6
    for service in services:
        section = re.split(r"^## ", TEXT, flags=re.MULTILINE)
        (found,) = [part for part in section if part.splitlines()[0].lower().replace(" ", "-") == service]
        assert "```properties" in found


def test_connection_string_of_event_hubs_authenticates_over_tls(tmp_path: Path) -> None:
    settings = settings_of(BLOCKS[0])
    ca = Authority(tmp_path)
    server = ca.issue("broker", "DNS:localhost", "IP:127.0.0.1")
    security = Security(
        ssl_certfile=server.store,
        users={settings["sasl.username"]: settings["sasl.password"]},
        sasl_mechanisms=["PLAIN"],
    )
    with EmbeddedCluster(security=security) as cluster:
        settings |= {"bootstrap.servers": cluster.bootstrap_servers, "ssl.truststore.location": str(ca.certificate)}
        with KafkaProducer(settings) as producer:
            producer.send("orders", b"order").result(timeout=30)
        assert cluster.messages("orders") == [(None, b"order")]
