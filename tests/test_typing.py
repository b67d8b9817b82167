"""Types as a user's type checker sees them: in a file of the user's own, against the package as a wheel installs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.config import ProducerConfig
from kafkabuf.testing import MockProducer
from kafkabuf.typing import BytesLike, Options, Producer, Settings
from tools import setting_types

ROOT = Path(__file__).parents[1]
# A comment `# error: REGEX` stands where a type checker must complain; it must not complain anywhere else.
USERS_FILE = """
import os
from typing import assert_type

from kafkabuf import KafkaProducer, RecordMetadata
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.testing import MockProducer
from kafkabuf.typing import BytesLike, Producer, Settings


class Order:
    def encode(self) -> bytes:
        return b""


def publish(producer: Producer, text: str) -> None:
    producer.send("orders", text)
    producer.flush()


def publish_order(producer: KafkaProducer[bytes, Order]) -> None:
    producer.send("orders", Order(), b"key")
    producer.send("orders", "no order")  # error


def publish_bytes(producer: Producer[bytes, bytes]) -> None:
    producer.send("orders", b"value", b"key")
    producer.send("orders", "value")  # error


plain = KafkaProducer(bootstrap_servers=["a:9092", "b:9092"], linger_ms=20, compression_type="lz4", acks="all")
assert_type(plain, "KafkaProducer[BytesLike, BytesLike]")
plain.send("t", b"v", memoryview(b"k"), callback=lambda metadata, error: None)
plain.send("t", bytearray(b"v"), None, headers={"h": b"1"})
assert_type(plain.send("t").result(), RecordMetadata)
plain.send("t", "text")  # error
plain.send("t", b"v", 5)  # error
plain.send_many("t", [b"v"]).result(errors="return")
plain.send_many("t", [b"v"]).result(errors="ignore")  # error

encoding = KafkaProducer(bootstrap_servers="a:9092", value_serializer=Order.encode, client_id=None)
encoding.send("t", Order(), b"key")
keyed = KafkaProducer(bootstrap_servers="a:9092", key_serializer="string")
keyed.send("t", b"v", "key")
keyed.send("t", "text", "key")  # error
publish_order(KafkaProducer(bootstrap_servers="a:9092", value_serializer=lambda order: order.encode()))
mapped = KafkaProducer({"bootstrap.servers": os.environ["KAFKA"], "value.serializer": "json"}, linger_ms=5)
mapped.send("t", {"any": "thing"})
settings: Settings = {"bootstrap_servers": "a:9092", "batch_size": 65536}
KafkaProducer(**settings, key_serializer="string").send("t", b"v", "key")

KafkaProducer(bootstrap_servers="a:9092", linger="5")  # error
KafkaProducer(bootstrap_servers="a:9092", linger_ms="soon")  # error
KafkaProducer(bootstrap_servers="a:9092", compression_type="brotli")  # error
KafkaProducer(bootstrap_servers="a:9092", ssl_cafile="ca.pem")  # error


async def run() -> None:
    async with AIOKafkaProducer(bootstrap_servers="a:9092", enable_idempotence=True) as producer:
        assert_type(await producer.send_and_wait("t", b"v"), RecordMetadata)
        await producer.send("t", "text")  # error
        await (await producer.send_arrow(object(), "t")).result(errors="return")
    AIOKafkaProducer(bootstrap_server="a:9092")  # error


mock = MockProducer({"t": 3}, auto_complete=False, linger_ms=5)
for each in (plain, mapped, mock):
    each.close()
publish(mock, "text")
publish(mapped, "text")
publish(KafkaProducer(bootstrap_servers="a:9092", value_serializer="string"), "text")
publish_bytes(plain)
publish_bytes(mock)
publish(AIOKafkaProducer(bootstrap_servers="a:9092"), "text")  # error
"""
EXPECTED = {number for number, line in enumerate(USERS_FILE.splitlines(), 1) if line.endswith("# error")}


@pytest.fixture(scope="module")
def users_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment, with kafkabuf's files as a wheel installs them, and the user's file."""
    project = tmp_path_factory.mktemp("project")
    venv.create(project / "venv")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(project / "venv")}))
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    for pattern in ("*.py", *shipped):
        for file in (ROOT / "kafkabuf").rglob(pattern):
            (site / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, site / file.relative_to(ROOT))
    # kafkabuf's dependencies come from the environment of the tests, behind the copy of kafkabuf.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (project / "users_file.py").write_text(USERS_FILE)
    return project


def complaints(command: list[str], project: Path, pattern: str) -> set[int]:
    """The lines of the user's file that a type checker complains about."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {int(line) for line in re.findall(pattern, done.stdout, re.MULTILINE)}


def test_mypy_knows_the_settings_and_the_types_of_values(users_project: Path) -> None:
    python = users_project / "venv" / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "users_file.py"]
    assert complaints(command, users_project, r"^users_file\.py:(\d+): error:") == EXPECTED


@pytest.mark.slow  # the package on PyPI fetches pyright itself from npm on its first run
def test_pyright_knows_the_settings_and_the_types_of_values(users_project: Path) -> None:
    python = users_project / "venv" / "bin" / "python"
    command = [sys.executable, "-m", "pyright", "--pythonpath", str(python), "users_file.py"]
    assert complaints(command, users_project, r"users_file\.py:(\d+):\d+ - error:") == EXPECTED


def test_keywords_are_current() -> None:
    assert setting_types.FILE.read_text() == setting_types.source(), "run `python -m tools.setting_types`"


def test_keywords_are_the_settings_of_the_producer() -> None:
    serializers = {"key_serializer", "value_serializer"}
    assert Settings.__annotations__.keys() == ProducerConfig.model_fields.keys() - serializers
    assert Options.__annotations__.keys() >= Settings.__annotations__.keys()


def test_types_can_be_used_at_run_time() -> None:
    assert isinstance(b"", BytesLike)
    for kind in (KafkaProducer, AIOKafkaProducer, Producer):
        assert kind[bytes, str].__origin__ is kind
    with MockProducer() as producer:
        assert producer.send("t", b"v").done()
