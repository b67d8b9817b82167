"""The recipes of docs/spark.md for executors that lack kafkabuf: `make test-spark-wheels`, which builds a wheel first.

The Python that executors and Connect's server run has pandas and pyarrow and no kafkabuf, which the first test proves.
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

USERS_PATH = "environment:code"
CLUSTER_STEPS = ("at_least_once", "atomic", "exactly_once_stream")
CONNECT_STEPS = ("registered",)  # streams fail there: docs/spark.md


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and all it needs, as pip unpacks it; as an archive it lies beside."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT], check=True)
    # The versions of the lock file.
    pins = folder / "pins.txt"
    ours = ((found.metadata["Name"], found.version) for found in distributions())
    pins.write_text("".join(f"{name}=={version}\n" for name, version in sorted(ours) if name != "kafkabuf"))
    wheel = next(folder.glob("*.whl"))
    subprocess.run([*pip, "install", "--target", folder / "environment", "-c", pins, wheel], check=True)
    with tarfile.open(folder / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(folder / "environment", ".")
    return folder / "environment"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with what Spark itself wants of one."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for name in ("numpy", "pandas", "pyarrow", "python-dateutil", "tzdata"):
        found = distribution(name)
        for top in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(found.locate_file(top)))
    return folder / "bin" / "python"


@pytest.fixture
def place(tmp_path: Path, bare: Path, shipped: Path) -> Iterator[Place]:
    """What users run finds both folders where it runs; Spark tells executors, which run elsewhere, the same path."""
    (tmp_path / "environment").symlink_to(shipped)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "tests").symlink_to(ROOT / "tests")
    with Place(tmp_path) as place:
        place.environment["PYSPARK_PYTHON"] = place.environment["PYSPARK_DRIVER_PYTHON"] = str(bare)
        del place.environment["PYTHONPATH"]
        yield place


def options(cluster: EmbeddedCluster, prefix: str, *steps: str) -> dict[str, str]:
    for step in steps:
        cluster.create_topic(f"{prefix}-{step}", partitions=PARTITIONS)
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers}


def test_bare_executors_have_kafkabuf_after_all(place: Place, cluster: EmbeddedCluster) -> None:
    master = place.standalone(workers=1)
    place.environment["PYTHONPATH"] = USERS_PATH
    given = options(cluster, "bare", "at_least_once")
    told = place.drive(["at_least_once"], given, prefix="bare", master=master)
    assert "No module named 'kafkabuf'" in told["at_least_once"]["error"]


def test_archive_does_not_reach_executors(place: Place, cluster: EmbeddedCluster, shipped: Path) -> None:
    master = place.standalone()
    place.environment["PYTHONPATH"] = USERS_PATH
    settings = {"spark.archives": f"{shipped}.tar.gz#environment", "spark.executorEnv.PYTHONPATH": "environment"}
    given = options(cluster, "archive", *CLUSTER_STEPS)
    told = place.drive(CLUSTER_STEPS, given, prefix="archive", settings=settings, master=master)
    assert_written(told, cluster, "archive")


def test_artifacts_do_not_reach_connect(place: Place, cluster: EmbeddedCluster, shipped: Path) -> None:
    remote = place.connect("local-cluster[2,1,1024]")
    place.environment["PYTHONPATH"] = USERS_PATH
    given = options(cluster, "artifacts", *CONNECT_STEPS)
    told = place.drive(CONNECT_STEPS, given, prefix="artifacts", remote=remote, ship=str(shipped))
    assert_written(told, cluster, "artifacts")


def assert_written(told: dict[str, dict[str, object]], cluster: EmbeddedCluster, prefix: str) -> None:
    for step, outcome in told.items():
        assert "error" not in outcome, outcome["error"]
        assert committed(cluster.bootstrap_servers, f"{prefix}-{step}") == EXPECTED[step], step
