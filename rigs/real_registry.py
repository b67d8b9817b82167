"""A real Schema Registry for tests: Apicurio Registry in a JVM, which keeps its schemas in memory.

It serves the REST API of Confluent's registry at `url`. It knows no guids.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from rigs.jars import java, resolve_registry
from rigs.ports import free_ports
from rigs.real_kafka import APICURIO, TOOL_JVM, die_with_parent

_READY_TIMEOUT = 90.0
_STOP_TIMEOUT = 20.0
_HOST = "127.0.0.1"


class RealRegistryError(RuntimeError):
    """The registry did not start. The message has the end of its log."""


class RealRegistry:
    """A registry of its own on a free loopback port: `with RealRegistry() as registry: registry.url`."""

    def __init__(self, version: str = APICURIO) -> None:
        self.version = version
        self.url = ""
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RealRegistry:
        app = resolve_registry(self.version)
        runner = next(app.glob("*-runner.jar"))
        (port,) = free_ports(1)
        self._folder = Path(tempfile.mkdtemp(prefix="kafkabuf-registry-"))
        options = [f"-Dquarkus.http.host={_HOST}", f"-Dquarkus.http.port={port}"]
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [java(), *TOOL_JVM, *options, "-jar", str(runner)],
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=die_with_parent if threading.current_thread() is threading.main_thread() else None,
                )
            self.url = f"http://{_HOST}:{port}/apis/ccompat/v7"
            self._await_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        assert self._folder is not None
        return self._folder / "server.log"

    def _await_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _READY_TIMEOUT
        while True:
            with contextlib.suppress(urllib.error.URLError, OSError):
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as response:
                    if response.status == 200:
                        return
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])
                raise RealRegistryError(f"Apicurio Registry {self.version} did not start. The end of its log:\n{tail}")
            time.sleep(0.05)
