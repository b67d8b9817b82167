"""GSSAPI against MIT's KDC and Apache Kafka 4.1.2: `make test-kerberos`."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.errors import AuthenticationError, KafkaError, SaslAuthenticationError
from rigs.kdc import REALM
from tests.real.kerberos_support import World

pytest_plugins = ["tests.real.kerberos_fixtures"]

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


@pytest.mark.parametrize("listener", ["KEYTAB", "TLS"])
def test_records_arrive_with_a_keytab(realm: World, listener: str) -> None:
    with KafkaProducer(**realm.settings(listener)) as producer:
        realm.assert_delivers(f"with-a-keytab-{listener}", producer)


def test_records_arrive_with_the_text_of_javas_users(realm: World) -> None:
    text = (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'serviceName="kafka" keyTab="{realm.keytab}" principal="alice@{REALM}";'
    )
    given = {"sasl_kerberos_keytab": None, "sasl_kerberos_principal": None, "sasl_kerberos_service_name": None}
    with KafkaProducer(**realm.settings(**given, sasl_jaas_config=text)) as producer:
        realm.assert_delivers("by-jaas", producer)


def test_examples_of_the_page_about_security_work(realm: World) -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    section = page.split("\n## Kerberos (GSSAPI)\n")[1].split("\n## ")[0]
    for there, here in {
        "kafka1.example.com:9093": f"localhost:{realm.kafka.ports['KEYTAB']}",
        "SASL_SSL": "SASL_PLAINTEXT",
        "/etc/security/alice.keytab": str(realm.keytab),
        "EXAMPLE.COM": REALM,
    }.items():
        assert there in section
        section = section.replace(there, here)
    realm.kafka.create_topic("orders")
    names = {"KafkaProducer": KafkaProducer}
    for example in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        exec(compile(example, "docs/security.md", "exec"), names)
    assert realm.values_in("orders") == [b"by keytab", b"by JAAS"]


def by_cache(realm: World, listener: str = "KEYTAB", /, **more: Any) -> dict[str, Any]:
    given = {"sasl_kerberos_keytab": None, "sasl_kerberos_principal": None}
    return realm.settings(listener, **given, **more)


def test_records_arrive_with_a_ticket_cache(realm: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    realm.kinit(tmp_path / "cache")
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/cache")
    with KafkaProducer(**by_cache(realm)) as producer:
        realm.assert_delivers("by-cache", producer)


def renewals(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return len(re.findall(text, caplog.text))


def send_until(realm: World, topic: str, producer: KafkaProducer[Any, Any], reached: Any) -> None:
    """Send a record after the other, until the condition holds. All of them arrive, in order."""
    realm.kafka.create_topic(topic)
    deadline, sent = time.monotonic() + PATIENCE, 0
    while not reached():
        assert time.monotonic() < deadline, "it never came to that"
        producer.send(topic, b"%d" % sent).result(PATIENCE)
        sent += 1
    assert realm.values_in(topic) == [b"%d" % number for number in range(sent)]


# Tickets end with whole seconds: one of 4 seconds may end after 3.
OFTEN = {"sasl_kerberos_min_time_before_relogin": 1, "sasl_kerberos_ticket_renew_window_factor": 0.5, "linger_ms": 0}


def test_no_record_is_lost_while_tickets_of_a_keytab_end(realm: World, caplog: pytest.LogCaptureFixture) -> None:
    """The broker asks again and again for an authentication, which a ticket that has ended would not pass."""
    caplog.set_level(logging.DEBUG, "kafkabuf.network")
    realm.kdc.add("brief", "-maxlife", "4 seconds")
    keytab = realm.kdc.keytab("brief")
    given = {"sasl_kerberos_keytab": str(keytab), "sasl_kerberos_principal": f"brief@{REALM}"}
    with KafkaProducer(**realm.settings("SESSION", **given, **OFTEN)) as producer:
        send_until(
            realm,
            "short-tickets",
            producer,
            lambda: renewals(caplog, "logged in as brief") >= 3 and renewals(caplog, "has authenticated us") >= 5,
        )
    assert "could not be renewed" not in caplog.text


def test_no_record_is_lost_while_kinit_renews_a_ticket_cache(
    realm: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kafkabuf.network")
    cache = f"FILE:{tmp_path}/cache"
    realm.kinit(tmp_path / "cache", "-l", "6s", "-r", "10m")
    text = f"com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true ticketCache='{cache}';"
    with KafkaProducer(**by_cache(realm, "SESSION", sasl_jaas_config=text, **OFTEN)) as producer:
        send_until(realm, "renewed-cache", producer, lambda: renewals(caplog, "renewed the ticket in") >= 2)


def failure(settings: dict[str, Any], within: float = 20.0) -> KafkaError:
    """The error of the first record, which comes long before max.block.ms has passed."""
    with KafkaProducer(**settings) as producer:
        start = time.monotonic()
        with pytest.raises(KafkaError) as caught:
            producer.send("t", b"v").result(PATIENCE)
        assert time.monotonic() - start < within
    return caught.value


def test_ticket_that_has_ended_asks_for_kinit(realm: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/cache")
    realm.kinit(tmp_path / "cache", "-l", "1s")
    deadline = time.monotonic() + PATIENCE
    while realm.kdc.succeeds("klist", "-s", "-c", f"FILE:{tmp_path}/cache"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    error = failure(by_cache(realm))
    assert isinstance(error, SaslAuthenticationError)
    assert "has expired: run kinit again" in str(error)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sasl_kerberos_principal": f"bob@{REALM}"}, "has no key of principal bob"),
        ({"sasl_kerberos_keytab": "/no/such.keytab"}, "the keytab /no/such.keytab of .* cannot be read here: No such"),
        ({"sasl_kerberos_service_name": "kafla"}, "the KDC does not know the broker as kafla/localhost"),
        ({"sasl_kerberos_principal": "alice@OTHER.TEST"}, "has no key of principal alice@OTHER.TEST"),
    ],
)
def test_wrong_settings_fail_at_once_with_advice(realm: World, given: dict[str, str], words: str) -> None:
    error = failure(realm.settings(**given))
    assert isinstance(error, SaslAuthenticationError)
    assert re.search(words, str(error))


def test_principal_that_the_kdc_does_not_know_is_named(realm: World) -> None:
    realm.kdc.add("gone")
    keytab = realm.kdc.keytab("gone")
    realm.kdc.admin("delprinc -force gone")
    error = failure(realm.settings(sasl_kerberos_keytab=str(keytab), sasl_kerberos_principal=f"gone@{REALM}"))
    assert isinstance(error, SaslAuthenticationError)
    assert f"the KDC does not know principal gone@{REALM}" in str(error)


def test_realm_without_kdc_is_named(realm: World) -> None:
    realm.kdc.add("stray@STRAY.TEST")
    keytab = realm.kdc.keytab("stray@STRAY.TEST", name="stray.keytab")
    given = {"sasl_kerberos_keytab": str(keytab), "sasl_kerberos_principal": "stray@STRAY.TEST", "max_block_ms": 2000}
    error = failure(realm.settings(**given))
    assert "krb5.conf names no KDC of the realm" in str(error)


def test_keytab_with_an_old_key_is_named(realm: World) -> None:
    realm.kdc.add("rekeyed")
    old = realm.kdc.keytab("rekeyed")
    realm.kdc.keytab("rekeyed", name="newer.keytab")
    error = failure(realm.settings(sasl_kerberos_keytab=str(old), sasl_kerberos_principal=f"rekeyed@{REALM}"))
    assert isinstance(error, SaslAuthenticationError)
    assert "the key in the keytab is not the present key of principal rekeyed" in str(error)


def test_broker_with_an_old_key_is_named_with_advice(realm: World) -> None:
    realm.kdc.keytab("rotated/localhost", name="newest.keytab")
    error = failure(realm.settings("ROTATED", sasl_kerberos_service_name="rotated"))
    assert isinstance(error, AuthenticationError)
    assert "refused the GSSAPI credentials" in str(error)
    assert "its keytab lacks the present key" in str(error)


def test_missing_ticket_cache_asks_for_kinit(realm: World) -> None:
    error = failure(by_cache(realm))
    assert isinstance(error, SaslAuthenticationError)
    assert "has no ticket: run kinit" in str(error)


def test_clocks_that_differ_are_named(realm: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The KDC is an hour ahead. With kdc_timesync, MIT's default, the client follows it, and the broker refuses."""
    exact = realm.kdc.write_conf("exact.conf", "kdc_timesync = 0")
    realm.kdc.stop()
    realm.kdc.start("+1h")
    try:
        refused = failure(realm.settings())
        monkeypatch.setenv("KRB5_CONFIG", str(exact))
        error = failure(realm.settings())
    finally:
        realm.kdc.stop()
        realm.kdc.start()
    assert "refused the GSSAPI credentials" in str(refused)
    assert "or its clock is wrong" in str(refused)
    assert isinstance(error, SaslAuthenticationError)
    assert "the clocks of this machine and of the KDC or the broker differ too much" in str(error)


def test_producer_survives_a_kdc_that_is_down(realm: World) -> None:
    realm.kdc.stop()
    with KafkaProducer(**realm.settings(max_block_ms=2000)) as producer:
        with pytest.raises(KafkaError) as caught:
            producer.send("t", b"v").result(PATIENCE)
        realm.kdc.start()
        assert re.search("no KDC answers: is one running", str(caught.value))
        send_with_patience(producer)


def test_kdc_that_hangs_costs_no_more_than_max_block(realm: World) -> None:
    realm.kdc.pause()
    try:
        with KafkaProducer(**realm.settings(max_block_ms=8000, request_timeout_ms=3000)) as producer:
            start = time.monotonic()
            with pytest.raises(KafkaError) as caught:
                producer.send("t", b"v").result(PATIENCE)
            assert time.monotonic() - start < 20
            realm.kdc.resume()
            assert "does a KDC of krb5.conf answer" in str(caught.value)
            send_with_patience(producer)
    finally:
        realm.kdc.resume()


def send_with_patience(producer: KafkaProducer[Any, Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            producer.send("t", b"v").result(PATIENCE)
            return
        except KafkaError:
            assert time.monotonic() < deadline
