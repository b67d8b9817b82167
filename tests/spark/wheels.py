"""docs/spark.md says how to ship kafkabuf to executors that lack it: `make test-spark-wheels` tests that with a wheel.

The executors and the Connect server run a Python with pandas and pyarrow and without kafkabuf. The first test checks
that kafkabuf is missing there.
"""

from __future__ import annotations

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
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip unpacked the wheel and its dependencies. An archive of the folder lies beside it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT], check=True)
    # Pin the dependencies to the versions of this environment, which are those of the lock file.
    pins = folder / "pins.txt"
    installed = ((package.metadata["Name"], package.version) for package in distributions())
    pins.write_text("".join(f"{name}=={version}\n" for name, version in sorted(installed) if name != "kafkabuf"))
    wheel = next(folder.glob("*.whl"))
    subprocess.run([*pip, "install", "--target", folder / "environment", "-c", pins, wheel], check=True)
    with tarfile.open(folder / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(folder / "environment", ".")
    return folder / "environment"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has only the packages that Spark itself needs."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for name in ("numpy", "pandas", "pyarrow", "python-dateutil", "tzdata"):
        package = distribution(name)
        for top in {path.parts[0] for path in package.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(package.locate_file(top)))
    return folder / "bin" / "python"


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
