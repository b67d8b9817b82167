"""The realm of `make test-kerberos`: one KDC and one node of Kafka for all its tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rigs.kdc import Kdc
from tests.network.tls.certificates import Authority
from tests.real.kerberos_support import KerberosKafka, World


@pytest.fixture(scope="session")
def kdc() -> Iterator[Kdc]:
    """A KDC that this process finds, with a user alice and her keytab."""
    with Kdc() as kdc, pytest.MonkeyPatch.context() as variables:
        kdc.add("alice")
        kdc.keytab("alice")
        for name, value in kdc.environment.items():
            variables.setenv(name, value)
        variables.setenv("KRB5CCNAME", f"FILE:{kdc.folder}/nobody")  # never a ticket of whoever runs the tests
        yield kdc


@pytest.fixture(scope="session")
def realm(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    ca = Authority(tmp_path_factory.mktemp("authority"))
    kafka = KerberosKafka(kdc, ca.issue("broker", "DNS:localhost"))
    with kafka:
        kafka.create_topic("t")
        yield World(kdc, kafka, ca)
