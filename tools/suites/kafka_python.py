"""kafka-python's integration tests, from its sdist: producer, consumer, groups and the admin client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

from tools.peers import FOLDER, needed, sdist, state_of
from tools.peers_kafka_python import PEER
from tools.suites import Clusters, States, Suite, UnavailableError, Wanted

_FILES = tuple(f"test/integration/test_{name}_integration.py" for name in ("producer", "consumer", "admin"))
_VERSION = "4.1.2"
# The sdist lacks the file that starts brokers. The tests import its names, and need them for no broker of others.
_SERVICE = """class SpawnedService:
    pass


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = stop = open
"""


def run(clusters: Clusters, tests: Iterable[str] | None) -> States:
    try:
        folder = _complete(sdist(PEER))
        path = os.pathsep.join(map(str, (folder, needed(PEER))))
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"pip could not get it: {error}") from error
    report = FOLDER / "kafka_python.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command += ["--rootdir", str(folder), f"--junitxml={report}", *_FILES]
    if tests is not None:
        command += ["-k", " or ".join(test.rpartition(".")[2].partition("[")[0] for test in tests)]
    with clusters(Wanted()) as address:
        environment = os.environ | {"KAFKA_URI": f"kafka://{address}", "KAFKA_VERSION": _VERSION, "PYTHONPATH": path}
        environment["KAFKA_ROOT"] = str(folder)  # any folder that is there
        with (FOLDER / "kafka_python.log").open("w") as log:
            subprocess.run(command, check=False, cwd=folder, env=environment, stdout=log, stderr=log)
    cases = ET.parse(report).getroot().iter("testcase")
    found = {f"{str(case.get('classname')).rpartition('.')[2]}.{case.get('name')}": state_of(case) for case in cases}
    return {test: state for test, state in found.items() if tests is None or test in set(tests)}


def _complete(source: Path) -> Path:
    folder = FOLDER / "kafka_python_suite"
    shutil.copytree(source / "test", folder / "test", dirs_exist_ok=True)
    (folder / "test" / "__init__.py").touch()  # Python has a package of that name
    (folder / "test" / "service.py").write_text(_SERVICE)
    return folder


SUITE = Suite("kafka-python", run)
