"""Each setting in Kafka's own table of producer settings is accepted, or refused with a reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kafkabuf.cli import main
from kafkabuf.config import ProducerConfig, dotted, refused, schema_registry, table
from kafkabuf.errors import ConfigError

HERE = Path(__file__).parent
KAFKAS = {
    row["name"]: row for row in csv.DictReader((HERE / "producer_configs.tsv").read_text().splitlines(), delimiter="\t")
}
OURS = {row.name: row for row in table.rows()}
SERVERS = {"bootstrap.servers": "localhost:9092"}

# Settings whose default is not Kafka's, and why.
OTHER_DEFAULTS = {
    "bootstrap.servers": "Java's empty list is an error as well",
    "client.id": "Java numbers its producers",
    "key.serializer": "bytes need no serializer",
    "value.serializer": "bytes need no serializer",
    "metric.reporters": "there is no JMX",
}
# Settings that Kafka does not have.
OUR_OWN = {
    "compression.thread.enable",
    "kafkabuf.buffer.expire",
    "kafkabuf.buffer.full",
    "kafkabuf.buffer.path",
    "kafkabuf.buffer.sync",
    "kafkabuf.buffer.unproven",
    "on.acknowledged",
    "record.magic",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.token.provider",
    *map(dotted, schema_registry.producer_fields()),
}
ALIKE = {"int": {"int", "long", "short"}, "float": {"double"}, "object": {"class"}}


@pytest.fixture(autouse=True)
def _all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "NOT_YET", ("none",))


def kafkas_default(row: dict[str, str]) -> str:
    text = row["default"].split(" (")[0]
    return "" if text == '""' else text


def wrong_value(row: dict[str, str]) -> str:
    """A value of the right type that is not the default."""
    if row["type"] in ("int", "long", "short", "double"):
        return "12"
    if row["type"] == "boolean":
        return "false" if row["default"] == "true" else "true"
    return "com.example.Other"


def test_table_has_kafkas_settings_and_our_own() -> None:
    assert len(KAFKAS) == 119
    assert OURS.keys() - KAFKAS.keys() == OUR_OWN
    assert KAFKAS.keys() <= OURS.keys()


@pytest.mark.parametrize("name", KAFKAS)
def test_type_and_default_are_kafkas(name: str) -> None:
    theirs, ours = KAFKAS[name], OURS[name]
    assert theirs["type"] in ALIKE.get(ours.type, {ours.type})
    if name not in OTHER_DEFAULTS:
        assert ours.default == kafkas_default(theirs)
    assert ours.here


@pytest.mark.parametrize("name", [name for name, row in KAFKAS.items() if row["valid"].startswith("[")])
def test_range_is_kafkas(name: str) -> None:
    text = KAFKAS[name]["valid"]
    theirs = text.removeprefix("[").split("]")[0].split(",")
    if name == "compression.gzip.level":
        assert OURS[name].valid == "1 to 9, or -1"
    elif name not in refused.JAVA_ONLY and "..." in theirs:
        low, high = theirs[0], theirs[-1]
        above = high in ("...", "2147483647")
        assert OURS[name].valid == (f"{low} and above" if above else f"{low} to {high}")
    elif name not in refused.JAVA_ONLY:
        assert [choice.strip() for choice in theirs] == OURS[name].valid.split(", ")


@pytest.mark.parametrize("name", KAFKAS)
def test_setting_is_known_by_both_names(name: str) -> None:
    """A value of a type that no setting has is refused, by an error about the value that names the setting."""
    for spelt in (name, name.replace(".", "_")):
        with pytest.raises(ConfigError) as raised:
            ProducerConfig.from_mapping({} if name == "bootstrap.servers" else SERVERS, {spelt: 1j})
        assert str(raised.value).startswith(f"{name}: ")


@pytest.mark.parametrize("name", refused.JAVA_ONLY)
def test_setting_without_use_here_is_refused_unless_at_its_default(name: str) -> None:
    default = refused.JAVA_ONLY[name].default
    for harmless in (default, str(default) if default is not None else ""):
        ProducerConfig.from_mapping(SERVERS, {name: harmless, "linger_ms": 1})
    with pytest.raises(ConfigError, match="leave it out") as raised:
        ProducerConfig.from_mapping(SERVERS, {name: wrong_value(KAFKAS[name])})
    assert str(raised.value).startswith(f"{name}: ")
    assert "found" not in str(raised.value), "the value may be a secret"


@pytest.mark.parametrize("name", ProducerConfig.model_fields)
def test_default_is_accepted_as_a_string(name: str) -> None:
    """Spark passes strings: the default, written as on the page, must be accepted."""
    row = OURS[dotted(name)]
    if row.default in ("required", "null"):
        return
    found = ProducerConfig.from_mapping(SERVERS, {row.name: row.default})
    assert getattr(found, name) == ProducerConfig.model_fields[name].default


# ---- the command -----------------------------------------------------------------------------------------------------


def run(*arguments: str) -> str:
    outcome = CliRunner().invoke(main, ["config", *arguments], env={"COLUMNS": "120"})
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    page = (HERE.parents[1] / "docs" / "configuration.md").read_text()
    assert page == run("--format", "markdown"), "generate the page again: kafkabuf config --format markdown"


def test_every_setting_is_printed() -> None:
    entries: list[dict[str, Any]] = json.loads(run("--format", "json"))
    assert [entry["name"] for entry in entries] == list(OURS)
    printed = "".join(run().split())
    assert [name for name in OURS if name not in printed and len(name) < 30] == []


def test_words_narrow_the_table() -> None:
    entries = json.loads(run("--format", "json", "retry", "max_ms"))
    assert {entry["name"] for entry in entries} >= {"retry.backoff.max.ms", "sasl.login.retry.backoff.max.ms"}
    assert all("max.ms" in entry["name"] for entry in entries)
    assert CliRunner().invoke(main, ["config", "nonsense"]).exit_code == 1
    assert CliRunner().invoke(main, ["config", "--format", "markdown", "ssl"]).exit_code == 2
