"""The pytest fixtures, as users have them: each test runs pytest in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
PLUGIN = "kafkabuf.pytest_plugin"


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other plugins take seconds to load, and the plugin of kafkabuf may be installed or not."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", PLUGIN, "-p", "no:cacheprovider", "--strict-markers")


def test_entry_point_names_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"kafkabuf": PLUGIN}


def test_plugin_imports_nothing_else_of_kafkabuf_but_the_loader_of_names() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import kafkabuf.pytest_plugin\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['kafkabuf', 'kafkabuf.lazy_names', 'kafkabuf.pytest_plugin']"


def test_fixtures_have_the_documented_scope_and_options(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        seen = []

        @pytest.mark.parametrize("number", range(2))
        def test_cluster(kafkabuf_cluster, number):
            assert len(kafkabuf_cluster.nodes()) == 3
            kafkabuf_cluster.create_topic(f"t{number}")
            assert len(kafkabuf_cluster.topics()) == number + 1, "the same for all tests"

        @pytest.mark.parametrize("number", range(2))
        def test_broker(kafkabuf_broker, number):
            assert len(kafkabuf_broker.nodes()) == 1
            assert kafkabuf_broker.topics() == {}, "fresh for each test"
            kafkabuf_broker.create_topic("t")

        @pytest.mark.kafkabuf(brokers=2, default_partitions=4)
        def test_marked(kafkabuf_broker):
            assert len(kafkabuf_broker.nodes()) == 2

        @pytest.mark.kafkabuf(brokers=0)
        def test_mistake(kafkabuf_broker):
            pass

        @pytest.mark.kafkabuf(2)
        def test_no_keyword(kafkabuf_broker):
            pass

        class TestOverride:
            @pytest.fixture
            def kafkabuf_broker_options(self):
                return {"brokers": 4}

            def test_overridden(self, kafkabuf_broker):
                assert len(kafkabuf_broker.nodes()) == 4
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=6, errors=2)
    result.stdout.fnmatch_lines(["*ConfigError: brokers=0: a cluster has at least one node*"])
    result.stdout.fnmatch_lines(["*the marker kafkabuf takes keywords, such as brokers=3, found (2,)*"])


def test_fixture_overrides_the_options_of_the_cluster(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafkabuf_cluster_options():
            from kafkabuf.broker import Security
            return {"brokers": 2, "security": Security(users={"alice": "secret"})}
        """
    )
    pytester.makepyfile(
        """
        from kafkabuf import KafkaProducer

        def test_user(kafkabuf_cluster):
            sasl = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
            user = {"sasl_username": "alice", "sasl_password": "secret"}
            servers = kafkabuf_cluster.bootstrap_servers
            assert servers.count(",") == 1
            with KafkaProducer(bootstrap_servers=servers, **sasl, **user) as producer:
                assert producer.send("t", b"v").result(10).offset == 0
        """
    )
    run(pytester).assert_outcomes(passed=1)
