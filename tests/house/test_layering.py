"""The import check accepts the tree and reports each kind of forbidden import. No folder holds too many modules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tools.check_imports import check

ROOT = Path(__file__).parents[2]


def test_package_keeps_to_the_layers() -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize("tree", ["kafkabuf", "tests", "bench"])
def test_no_folder_holds_more_than_25_modules_and_the_package_itself_at_most_30(tree: str) -> None:
    modules = (path for path in (ROOT / tree).rglob("*.py*") if path.suffix in {".py", ".pyx"})
    counts = Counter(path.parent for path in modules if path.stem != "__init__")
    most = {ROOT / "kafkabuf": 30}
    assert [folder for folder, count in counts.items() if count > most.get(folder, 25)] == []


def _tree(root: Path, files: dict[str, str]) -> list[str]:
    """The faults in a package of these files and of those that every tree has."""
    for name, text in {
        "kafkabuf/__init__.py": "",
        "kafkabuf/errors.py": "",
        "kafkabuf/wire/_wire.pxd": "",
        **files,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return check(root)


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("kafkabuf/errors.py", "from kafkabuf.producer import KafkaProducer", "upward, from kafkabuf.producer"),
        (
            "kafkabuf/errors.py",
            "def f():\n    import kafkabuf.sending.sender",
            "errors.py:2: kafkabuf.errors imports upward",
        ),
        ("kafkabuf/sending/sender.py", "from .. import producer", "upward, from kafkabuf.producer"),
        (
            "kafkabuf/network/client.py",
            "from ..metadata.metadata import Metadata",
            "upward, from kafkabuf.metadata.metadata",
        ),
        ("kafkabuf/network/client.py", "from kafkabuf import __version__", "upward, from kafkabuf"),
        ("kafkabuf/_pool.pyx", "from kafkabuf.append._producer cimport P", "upward, from kafkabuf.append._producer"),
        ("kafkabuf/wire/_wire.pxd", "from kafkabuf cimport (\n    _pool,  # why\n)", "upward, from kafkabuf._pool"),
        (
            "kafkabuf/wire/_wire.pxd",
            "'''doc'''\ncimport kafkabuf._pool as pool",
            "_wire.pxd:2: kafkabuf.wire._wire imports",
        ),
        ("kafkabuf/_pool.pyi", "from kafkabuf.producer import KafkaProducer", "upward, from kafkabuf.producer"),
        ("kafkabuf/_pool.pyx", "cimport numpy as cnp", "cimports numpy"),
        ("kafkabuf/novelty.py", "", "kafkabuf.novelty is in no layer"),
        ("kafkabuf/errors.py", "import kafkabuf.novelty", "imports kafkabuf.novelty, which is in no layer"),
        ("kafkabuf/broker/log/log.py", "from kafkabuf._records import encode", "must not depend on kafkabuf._records"),
        ("kafkabuf/broker/log/log.py", "from kafkabuf import KafkaProducer", "must not depend on the package's face"),
        (
            "kafkabuf/batches/accumulator.py",
            "from kafkabuf.broker import EmbeddedCluster",
            "upward, from kafkabuf.broker",
        ),
    ],
)
def test_import_against_the_layers_is_reported(tmp_path: Path, path: str, text: str, fault: str) -> None:
    imported = dict.fromkeys(["kafkabuf/_pool.pyx", "kafkabuf/sending/sender.py", "kafkabuf/producer.py"], "")
    faults = _tree(tmp_path, {**imported, path: text})
    assert any(fault in line for line in faults), faults


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("kafkabuf/sending/sender.py", "from kafkabuf.batches.accumulator import RecordAccumulator"),
        (
            "kafkabuf/_pool.pyx",
            '"""\nimport kafkabuf.sending.sender\n"""\nimport numpy as np\nfrom kafkabuf.wire._wire cimport put',
        ),
        ("kafkabuf/spark/sink.py", "from kafkabuf import KafkaProducer"),
        ("kafkabuf/broker/log/log.py", "import asyncio\nfrom kafkabuf.errors import KafkaError\nfrom . import batch"),
        ("kafkabuf/cli/demo/command.py", "from kafkabuf.broker import EmbeddedCluster"),
    ],
)
def test_import_along_the_layers_is_accepted(tmp_path: Path, path: str, text: str) -> None:
    assert _tree(tmp_path, {path: text, "kafkabuf/broker/records/batch.py": ""}) == []


def test_broker_that_reaches_the_encoder_is_reported(tmp_path: Path) -> None:
    faults = _tree(
        tmp_path,
        {
            "kafkabuf/_records.pyx": "",
            "kafkabuf/protocol/__init__.py": "from kafkabuf.sending._produce import build",
            "kafkabuf/sending/_produce.pyx": "from kafkabuf._records cimport encode",
            "kafkabuf/protocol/messages.py": "",
            "kafkabuf/broker/__init__.py": "from kafkabuf.protocol import messages",
        },
    )
    assert any(fault.startswith("the broker must not depend on kafkabuf._records: kafkabuf.br") for fault in faults)


def test_circle_within_a_layer_is_reported(tmp_path: Path) -> None:
    cycle = {
        "kafkabuf/sending/sender.py": "import kafkabuf.append.report",
        "kafkabuf/append/report.py": "import kafkabuf.sending.sender",
    }
    faults = _tree(tmp_path, cycle)
    assert faults == [
        "modules import each other: kafkabuf.append.report -> kafkabuf.sending.sender -> kafkabuf.append.report"
    ]


def test_circle_of_annotations_is_refused(tmp_path: Path) -> None:
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kafkabuf.sending.sender import Sender"
    files = {
        "kafkabuf/sending/sender.py": "import kafkabuf.append.report",
        "kafkabuf/append/report.py": for_types,
    }
    assert _tree(tmp_path, files) == [
        "modules import each other: kafkabuf.append.report -> kafkabuf.sending.sender -> kafkabuf.append.report "
        "(for types only: kafkabuf.append.report -> kafkabuf.sending.sender)"
    ]


def test_circle_that_a_stub_file_closes_is_refused(tmp_path: Path) -> None:
    files = {
        "kafkabuf/_pool.pyx": "",
        "kafkabuf/_pool.pyi": "from kafkabuf.memory._held import Held",
        "kafkabuf/memory/_held.pyx": "from kafkabuf._pool cimport BufferPool",
    }
    assert any(fault.startswith("modules import each other: kafkabuf._pool -> ") for fault in _tree(tmp_path, files))


def test_circle_of_folders_is_refused_at_any_depth(tmp_path: Path) -> None:
    files = {
        "kafkabuf/network/client.py": "import kafkabuf.network.tls.context",
        "kafkabuf/network/tls/context.py": "import kafkabuf.network.resolve",
        "kafkabuf/network/resolve.py": "",
    }
    assert _tree(tmp_path, files) == [
        "folders import each other: kafkabuf.network -> kafkabuf.network.tls -> kafkabuf.network"
    ]


def test_each_circle_is_named_once(tmp_path: Path) -> None:
    files = {
        "kafkabuf/batches/a.py": "from . import b, c",
        "kafkabuf/batches/b.py": "from . import a",
        "kafkabuf/batches/c.py": "from . import b",
    }
    short, long = _tree(tmp_path, files)
    assert short == "modules import each other: kafkabuf.batches.a -> kafkabuf.batches.b -> kafkabuf.batches.a"
    assert long.endswith("kafkabuf.batches.a -> kafkabuf.batches.c -> kafkabuf.batches.b -> kafkabuf.batches.a")


@pytest.mark.parametrize("face", ["", "def f():\n    from kafkabuf._pool import BufferPool"])
def test_import_inside_a_function_loads_no_extension(tmp_path: Path, face: str) -> None:
    assert _discovery(tmp_path, face) == []


def test_extension_loaded_by_spark_discovery_is_reported(tmp_path: Path) -> None:
    faults = _discovery(tmp_path, "from kafkabuf._pool import BufferPool")
    assert faults == ["Spark's discovery must load no extension: pyspark_kafkabuf -> kafkabuf -> kafkabuf._pool"]


@pytest.mark.parametrize("path", ["bench/ground/pool.py", "rigs/producer.py", "kafkabuf/errors.py"])
def test_only_tests_import_tests(tmp_path: Path, path: str) -> None:
    faults = _tree(tmp_path, {path: "def f():\n    from tests.memory.pool_support import assert_all_free"})
    assert any(fault.startswith(f"{path}:2: imports tests.memory.pool_support; move") for fault in faults), faults


def _discovery(root: Path, face: str) -> list[str]:
    return _tree(
        root,
        {
            "kafkabuf/__init__.py": face,
            "kafkabuf/_pool.pyx": "",
            "kafkabuf/spark/__init__.py": "",
            "pyspark_kafkabuf/__init__.py": "from kafkabuf.spark import DefaultSource",
        },
    )
