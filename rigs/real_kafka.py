"""One node of real Apache Kafka for tests, demos and benchmarks.

Broker and KRaft controller are one JVM on free loopback ports. stop() removes the temporary folder of its data.

    with RealKafka("4.1.2") as kafka:
        kafka.bootstrap_servers, kafka.create_topic("t"), kafka.dump_log("t")

`python -m rigs.real_kafka --version 4.1.2` runs a node in the foreground, or while the command at the end of its line
runs (`{}` in the command becomes the bootstrap address). `--fetch` only fills the cache of jars.
"""

from __future__ import annotations

import argparse
import atexit
import base64
import contextlib
import ctypes
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from rigs.jars import java, resolve_kafka, resolve_kafka_tools, resolve_registry, resolve_spark_kafka_jars
from rigs.ports import free_ports

__all__ = ["KAFKA_3_9", "KAFKA_4", "KAFKA_4_4", "RealKafka", "RealKafkaError", "resolve_spark_kafka_jars"]

KAFKA_4 = "4.1.2"
KAFKA_4_4 = "4.4.0"  # the first that a client tells which cluster and node it means (KIP-1242)
APICURIO = "2.6.13.Final"  # the last release line that runs on Java 17, and whose POMs Ivy finds
KAFKA_3_9 = "3.9.2"  # the last release line that takes magic 0 and 1 (Produce v0 to v2, KIP-896)

_HOST = "127.0.0.1"
_CLUSTER_ID = base64.urlsafe_b64encode(b"kafkabuf.metadata.snapshot").rstrip(b"=").decode()  # a Kafka Uuid: 16 bytes
_READY_TIMEOUT = 90.0
_STOP_TIMEOUT = 20.0
_ADMIN_TIMEOUT = 30.0
# Short-lived tools start quickly rather than run fast.
TOOL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

# Most servers of tests live for seconds: the optimizing compiler would cost more than it gains.
TEST_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# A small node: internal topics of one partition, no delay for further group members, no 128 MiB for the log cleaner.
_DEFAULTS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "2097152",
    # Kafka would remove records of 2013 after thirty seconds, in the middle of a test.
    "log.retention.ms": "-1",
    "controlled.shutdown.enable": "false",
}


class RealKafkaError(RuntimeError):
    """The server did not start, or died, or a tool of Kafka's failed. The message has the end of its log."""


class RealKafka:
    """One node of Apache Kafka `version`.

    `options` are server properties that override the defaults; `heap` and `jvm_options` are the JVM's. `program`: the
    class, or the Java file, that starts the node. Start it in the main thread if possible: the kernel then ends the JVM
    with this process, however this process ends.
    """

    ready_timeout = _READY_TIMEOUT

    def __init__(
        self,
        version: str = KAFKA_4,
        *,
        options: Mapping[str, str] | None = None,
        heap: str = "512m",
        jvm_options: Sequence[str] = ("-XX:+UseSerialGC",),
        program: str = "kafka.Kafka",
    ) -> None:
        self.version = version
        self.bootstrap_servers = ""  # once prepared
        self._options = dict(options or {})
        self._jvm = [f"-Xmx{heap}", *jvm_options]
        self._program = program
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RealKafka:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise RealKafkaError("The server is not started: use it in a `with`, or call start().")
        return self._folder

    @property
    def log_dir(self) -> Path:
        """The folder of the partitions' folders, which are called TOPIC-PARTITION."""
        return self.folder / "data"

    @property
    def server_log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> None:
        """Start the node and wait until its Metadata lists it. Raises RealKafkaError and JarsUnavailableError."""
        resolve_kafka(self.version)
        try:
            self.prepare(*free_ports(2))
            self.launch()
            self.await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Terminate the server, or kill it after a time-out; then remove its files. A second call does nothing."""
        atexit.unregister(self.stop)
        self.shut_down()
        self._process = None
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until every partition has a leader that serves it."""
        try:
            create_topic(self._admin(), name, partitions, config)
        except RealKafkaError as error:
            raise RealKafkaError(f"{error}\n{self.server_log_tail()}") from None

    def dump_log(self, topic: str, partition: int = 0) -> str:
        """The output of Kafka's DumpLogSegments for a partition: a line for each batch and each record."""
        segments = sorted((self.log_dir / f"{topic}-{partition}").glob("*.log"))
        if not segments:
            raise RealKafkaError(f"{self.log_dir} has no segment of {topic}-{partition}.")
        files = ",".join(str(segment) for segment in segments)
        options = ["--deep-iteration", "--print-data-log", "--files", files]
        return self._run_tool("kafka.tools.DumpLogSegments", *options)

    def server_log_tail(self, lines: int = 40) -> str:
        text = self.server_log.read_text(errors="replace") if self.server_log.is_file() else ""
        return "\n".join(text.splitlines()[-lines:])

    def shut_down(self) -> None:
        """End the server in order, or kill it after a time-out. `launch` starts it again, as after `kill`."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """kill -9 the server: it closes nothing in order. `launch` starts it again on the same port with its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send the server's process a signal, such as SIGSTOP or SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def prepare(self, port: int, controller_port: int) -> None:
        """Make the properties file, and a formatted data folder."""
        self._folder = Path(tempfile.mkdtemp(prefix="kafkabuf-kafka-"))
        atexit.register(self.stop)
        self.bootstrap_servers = f"{_HOST}:{port}"
        properties = self._properties_file
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._properties(port, controller_port).items()))
        self._run_tool("kafka.tools.StorageTool", "format", f"--cluster-id={_CLUSTER_ID}", "--config", str(properties))

    @property
    def _properties_file(self) -> Path:
        return self.folder / "server.properties"

    def launch(self) -> None:
        """Start the server's process in the folder that `prepare` made."""
        classpath = f"{resolve_kafka(self.version)}/*"
        command = [java(), *self._jvm, *logging("warn"), "-cp", classpath, self._program, str(self._properties_file)]
        with self.server_log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent if threading.current_thread() is threading.main_thread() else None,
            )

    def _properties(self, port: int, controller_port: int) -> dict[str, str]:
        return {
            **_DEFAULTS,
            "listeners": f"CLIENT://{_HOST}:{port},CONTROLLER://{_HOST}:{controller_port}",
            "advertised.listeners": f"CLIENT://{_HOST}:{port}",
            "controller.quorum.voters": f"1@{_HOST}:{controller_port}",
            "log.dirs": str(self.log_dir),
            **self._options,
        }

    def await_ready(self, brokers: int = 1) -> None:
        """Wait until the node knows of so many brokers."""
        deadline = time.monotonic() + self.ready_timeout
        admin = self._admin()
        while True:
            assert self._process is not None
            if (status := self._process.poll()) is not None:
                raise RealKafkaError(
                    f"Apache Kafka {self.version} ended with status {status} while starting. The end of its log:\n"
                    f"{self.server_log_tail()}"
                )
            try:
                if len(admin.list_topics(timeout=1.0).brokers) >= brokers:
                    return
            except KafkaException:
                pass  # the server does not listen or serve yet: ask again until the deadline
            if time.monotonic() > deadline:
                raise RealKafkaError(
                    f"Apache Kafka {self.version} does not answer on {self.bootstrap_servers} after "
                    f"{self.ready_timeout} s. The end of its log:\n{self.server_log_tail()}"
                )

    def _admin(self) -> AdminClient:
        return admin_client(self.bootstrap_servers)

    def _run_tool(self, main_class: str, *arguments: str) -> str:
        classpath = f"{resolve_kafka(self.version)}/*"
        command = [java(), *TOOL_JVM, *logging("error"), "-cp", classpath, main_class, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RealKafkaError(f"{main_class} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


def admin_client(bootstrap_servers: str) -> AdminClient:
    # Connections are refused while a server starts; librdkafka would report each on standard error.
    settings = {"log_level": 0, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}
    return AdminClient({"bootstrap.servers": bootstrap_servers, **settings})


def create_topic(
    admin: AdminClient, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, replicas: int = 1
) -> None:
    """Create a topic and wait for its leaders. Raises RealKafkaError if a partition stays without a leader."""
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {}))
    admin.create_topics([topic])[name].result(_ADMIN_TIMEOUT)
    deadline = time.monotonic() + _ADMIN_TIMEOUT
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(name, partition): latest for partition in range(partitions)}
    while True:
        listed = admin.list_topics(name, timeout=_ADMIN_TIMEOUT).topics[name].partitions
        if len(listed) == partitions and all(partition.leader >= 0 for partition in listed.values()):
            # A broker names itself leader a moment before it leads, and refuses requests until then.
            with contextlib.suppress(KafkaException):
                for offset in admin.list_offsets(wanted).values():
                    offset.result(_ADMIN_TIMEOUT)
                return
        if time.monotonic() > deadline:
            raise RealKafkaError(f"Topic {name} has no leaders after {_ADMIN_TIMEOUT} s.")
        time.sleep(0.02)


def logging(level: str) -> list[str]:
    """The JVM's options for a log of that level on standard error."""
    # At INFO, the shutdown of a server that failed to start would log forty lines behind the error.
    prefix = "-Dorg.slf4j.simpleLogger."
    return [f"{prefix}defaultLogLevel={level}", f"{prefix}showDateTime=true", f"{prefix}dateTimeFormat=HH:mm:ss.SSS"]


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Runs in the child between fork and exec, so that a killed test run leaves no JVM behind."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rigs.real_kafka", description="Run a real Apache Kafka.")
    parser.add_argument("--version", default=KAFKA_4, help="which release (default %(default)s)")
    parser.add_argument("--heap", default="1g", help="the JVM's -Xmx (default %(default)s)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a server property")
    parser.add_argument("--fetch", action="store_true", help="only fill the cache with all jars the tests need")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="run this, {} being the bootstrap address, then stop")
    arguments = parser.parse_args()
    if arguments.fetch:
        for version in (KAFKA_4, KAFKA_3_9, KAFKA_4_4):
            resolve_kafka(version)
        resolve_kafka_tools(KAFKA_4)
        resolve_spark_kafka_jars()
        resolve_registry(APICURIO)
        return
    options = dict(option.split("=", 1) for option in arguments.option)
    # SIGTERM leaves the `with`, which removes the data.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with RealKafka(arguments.version, options=options, heap=arguments.heap) as kafka:
        if arguments.command:
            command = [word.replace("{}", kafka.bootstrap_servers) for word in arguments.command]
            sys.exit(subprocess.run(command).returncode)
        print(kafka.bootstrap_servers, flush=True)
        print(f"Apache Kafka {kafka.version} is running, data in {kafka.log_dir}. Ctrl-C ends it.", file=sys.stderr)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
