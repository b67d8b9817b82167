"""Executors that have kafkabuf from the wheel in dist/, installed or shipped with the job: `make test-spark-wheels`.

In the first test pip has installed the wheel for the executors' Python, which has nothing else of kafkabuf. In the
other tests the executors and the Connect server run a Python with pandas and pyarrow and without kafkabuf, and the job
ships the wheel as docs/spark.md says. A test checks that kafkabuf is missing there otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest

from kafkabuf.broker import EmbeddedCluster
from tests.spark.job import PARTITIONS, committed
from tests.spark.places import Place
from tests.spark.test_clusters import EXPECTED
from tests.spark.versions import ROOT

DRIVER_PATH = "environment:code"
CLUSTER_STEPS = ("at_least_once", "atomic", "exactly_once_stream")
CONNECT_STEPS = ("registered",)  # streams fail over Connect: docs/spark.md


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel of this Python that `make wheel` built last."""
    [wheel] = (ROOT / "dist").glob(f"kafkabuf-*-cp3{sys.version_info.minor}-*.whl")
    return wheel


@pytest.fixture(scope="module")
def pins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The versions of this environment, which are those of the lock file."""
    pins = tmp_path_factory.mktemp("pins") / "pins.txt"
    installed = ((package.metadata["Name"], package.version) for package in distributions())
    pins.write_text("".join(f"{name}=={version}\n" for name, version in sorted(installed) if name != "kafkabuf"))
    return pins


def pip(*arguments: str | Path) -> None:
    """Run pip of this Python, where pip sees no kafkabuf that PYTHONPATH or the working folder has."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, env=environment, check=True)


@pytest.fixture(scope="module")
def shipped(wheel: Path, pins: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip unpacked the wheel and its dependencies. An archive of the folder lies beside it."""
    folder = tmp_path_factory.mktemp("shipped")
    pip("install", "--target", folder / "environment", "-c", pins, wheel)
    with tarfile.open(folder / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(folder / "environment", ".")
    return folder / "environment"


def python_for_spark(folder: Path) -> Path:
    """A new Python in `folder` that has only the packages that Spark itself needs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for name in ("numpy", "pandas", "pyarrow", "python-dateutil", "tzdata"):
        package = distribution(name)
        for top in {path.parts[0] for path in package.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(package.locate_file(top)))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_for_spark(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def python_with_wheel(wheel: Path, pins: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python for Spark into which pip installed the wheel with its declared dependencies."""
    python = python_for_spark(tmp_path_factory.mktemp("installed"))
    pip("--python", python, "install", "-c", pins, wheel)
    return python


@pytest.fixture
def place(tmp_path: Path, bare_python: Path, shipped: Path) -> Iterator[Place]:
    """A place whose processes run the bare Python.

    The driver finds kafkabuf and the tests by the relative paths of DRIVER_PATH. Spark hands the same paths to the
    executors. These run in other folders, where the paths exist only if Spark ships the folders.
    """
    (tmp_path / "environment").symlink_to(shipped)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "tests").symlink_to(ROOT / "tests")
    with Place(tmp_path) as place:
        place.environment["PYSPARK_PYTHON"] = place.environment["PYSPARK_DRIVER_PYTHON"] = str(bare_python)
        del place.environment["PYTHONPATH"]
        yield place


def options(cluster: EmbeddedCluster, prefix: str, *steps: str) -> dict[str, str]:
    """Create a topic for each step. Returns the options of the writes."""
    for step in steps:
        cluster.create_topic(f"{prefix}-{step}", partitions=PARTITIONS)
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers}


def test_job_runs_on_workers_that_have_nothing_but_the_wheel(
    place: Place, cluster: EmbeddedCluster, python_with_wheel: Path
) -> None:
    """The driver finds the tests' code and the shipped package by relative paths, which its workers do not have."""
    place.environment["PYTHONPATH"] = DRIVER_PATH
    # Spark runs a data source that it found by itself with the driver's Python, on executors too.
    place.environment["PYSPARK_PYTHON"] = place.environment["PYSPARK_DRIVER_PYTHON"] = str(python_with_wheel)
    write_options = options(cluster, "installed", *CLUSTER_STEPS)
    steps = ("origin", *CLUSTER_STEPS)
    results = place.drive(steps, write_options, prefix="installed", master="local-cluster[2,1,1024]")
    site = str(python_with_wheel.parents[1] / "lib")
    origin = results.pop("origin")
    assert "error" not in origin, origin["error"]
    assert [path.startswith(site) for path in origin["returned"]] == [True, True], origin
    assert_written(results, cluster, "installed")


def test_bare_executors_lack_kafkabuf(place: Place, cluster: EmbeddedCluster) -> None:
    master = place.standalone(workers=1)
    place.environment["PYTHONPATH"] = DRIVER_PATH
    write_options = options(cluster, "bare", "at_least_once")
    results = place.drive(["at_least_once"], write_options, prefix="bare", master=master)
    assert "No module named 'kafkabuf'" in results["at_least_once"]["error"]


def test_archive_ships_kafkabuf_to_executors(place: Place, cluster: EmbeddedCluster, shipped: Path) -> None:
    master = place.standalone()
    place.environment["PYTHONPATH"] = DRIVER_PATH
    settings = {"spark.archives": f"{shipped}.tar.gz#environment", "spark.executorEnv.PYTHONPATH": "environment"}
    write_options = options(cluster, "archive", *CLUSTER_STEPS)
    results = place.drive(CLUSTER_STEPS, write_options, prefix="archive", settings=settings, master=master)
    assert_written(results, cluster, "archive")


def test_artifacts_ship_kafkabuf_to_connect(place: Place, cluster: EmbeddedCluster, shipped: Path) -> None:
    remote = place.connect("local-cluster[2,1,1024]")
    place.environment["PYTHONPATH"] = DRIVER_PATH
    write_options = options(cluster, "artifacts", *CONNECT_STEPS)
    results = place.drive(CONNECT_STEPS, write_options, prefix="artifacts", remote=remote, ship=str(shipped))
    assert_written(results, cluster, "artifacts")


def assert_written(results: dict[str, dict[str, object]], cluster: EmbeddedCluster, prefix: str) -> None:
    for step, result in results.items():
        assert "error" not in result, result["error"]
        assert committed(cluster.bootstrap_servers, f"{prefix}-{step}") == EXPECTED[step], step
