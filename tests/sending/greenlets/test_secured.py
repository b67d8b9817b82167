"""TLS, SASL, a token endpoint, a Schema Registry, transactions and tables in programs that greenlets have patched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kafkabuf.broker import EmbeddedCluster, Security
from tests.formats.registry.support import FakeRegistry, running
from tests.network.sasl.token_server import Endpoint
from tests.network.security_support import server_context
from tests.network.tls.certificates import Authority

PATIENCE = 120.0
PROGRAM = Path(__file__).parent / "secured.py"


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_secured_producers_work_in_a_patched_process(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    ca = Authority(tmp_path)
    node = ca.issue("node", "DNS:localhost", "IP:127.0.0.1")
    tokens = Endpoint(server_context(node), [(200, {}, b'{"access_token":"token","expires_in":3600}')])
    security = Security(
        ssl_certfile=node.store, users={"user": "word"}, oauth_validator=lambda token: "user" if token else ""
    )
    trusted = {"ssl.truststore.location": str(ca.certificate), "ssl.truststore.type": "PEM"}
    oauth = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": tokens.url,
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "secret",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'ssl.truststore.location="{ca.certificate}" ssl.truststore.type="PEM";',
    }
    try:
        with EmbeddedCluster(security=security) as cluster, running(FakeRegistry()) as registry:
            cluster.create_topic("t")
            common = {"bootstrap.servers": cluster.bootstrap_servers, "security.protocol": "SASL_SSL", **trusted}
            password = {"sasl.username": "user", "sasl.password": "word"}
            producers = {
                name: common | {"sasl.mechanism": name} | password
                for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
            }
            producers["OAUTHBEARER"] = common | oauth
            arguments = json.dumps({"producers": producers, "registry": registry.url})
            done = subprocess.run(
                [sys.executable, str(PROGRAM), library, arguments], capture_output=True, text=True, timeout=PATIENCE * 2
            )
    finally:
        tokens.close()
    assert (done.returncode, done.stdout.split()) == (0, [*producers, "transaction", "arrow", "registry"]), done.stderr
    assert "Traceback" not in done.stderr
