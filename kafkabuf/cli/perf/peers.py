"""The same load through other clients, for `kafkabuf perf --compare`.

Each client gets the same acks, batch.size, linger.ms, compression, time-outs and memory, and tells of each record what
became of it in the cheapest way that it has. The benches open their peers with the same settings (bench/clients.py).
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from kafkabuf.cli.connection import servers_of
from kafkabuf.cli.long_input import handled
from kafkabuf.cli.perf.load import Load, Result, Sending, Tally
from kafkabuf.errors import ConfigError, KafkaError
from kafkabuf.process import threads

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig

_NO_TRANSACTIONS = "--transaction-size compares with no other client: leave --compare out"
# "1000 records sent, 5000.0 records/sec (0.48 MB/sec), 2.10 ms avg latency, 40.00 ms max latency, 1 ms 50th, ..."
_JAVA = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec .*?([\d.]+) ms avg latency, ([\d.]+) ms max latency, "
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th"
)


def confluent_settings(config: ProducerConfig) -> dict[str, Any]:
    """The settings of a Producer of confluent-kafka, under librdkafka's names."""
    return {
        "bootstrap.servers": _servers(config),
        "acks": config.acks,
        "batch.size": config.batch_size,
        "linger.ms": config.linger_ms,
        "compression.type": str(config.compression_type),
        "queue.buffering.max.kbytes": max(config.buffer_memory >> 10, 1),
        "queue.buffering.max.messages": 10_000_000,
        "enable.idempotence": config.enable_idempotence,
        "message.timeout.ms": config.delivery_timeout_ms,
    }


def kafka_python_settings(config: ProducerConfig) -> dict[str, Any]:
    """The arguments of a KafkaProducer of kafka-python."""
    return {
        **_common_settings(config),
        "bootstrap_servers": _servers(config).split(","),
        "batch_size": config.batch_size,
        "delivery_timeout_ms": config.delivery_timeout_ms,
        "max_block_ms": config.max_block_ms,
    }


def aiokafka_settings(config: ProducerConfig) -> dict[str, Any]:
    """The arguments of an AIOKafkaProducer."""
    return {
        **_common_settings(config),
        "bootstrap_servers": _servers(config),
        "max_batch_size": config.batch_size,
    }


def _common_settings(config: ProducerConfig) -> dict[str, Any]:
    compression = str(config.compression_type)
    return {
        "acks": "all" if config.acks == -1 else config.acks,
        "linger_ms": config.linger_ms,
        "compression_type": None if compression == "none" else compression,
        "enable_idempotence": config.enable_idempotence,
        "request_timeout_ms": config.request_timeout_ms,
    }


def _servers(config: ProducerConfig) -> str:
    if config.security_protocol != "PLAINTEXT":
        raise ConfigError(
            "--compare knows no security settings of the other clients: compare over a PLAINTEXT listener"
        )
    return servers_of(config)


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise ConfigError(f"--compare needs the package {package} here: pip install {package}") from None


class _Peer:
    def sleep(self, seconds: float) -> None:
        threads.sleep(seconds)

    def begin(self) -> None:
        raise ConfigError(_NO_TRANSACTIONS)

    def commit(self) -> None:
        raise ConfigError(_NO_TRANSACTIONS)


class _Confluent(_Peer):
    def __init__(self, config: ProducerConfig, load: Load, tally: Tally) -> None:
        confluent_kafka = _import("confluent_kafka", "confluent-kafka")
        self._topic, self._tally = load.topic, tally
        self._untimed = partial(self._delivered, None)
        self._producer = confluent_kafka.Producer(confluent_settings(config))

    def send(self, values: Sequence[bytes], sent: float) -> None:
        self._produce(values[0], partial(self._delivered, sent))
        for value in values[1:]:
            self._produce(value, self._untimed)
        self._producer.poll(0)

    def _produce(self, value: bytes, on_delivery: Callable[[Any, Any], None]) -> None:
        while True:
            try:
                return self._producer.produce(self._topic, value, on_delivery=on_delivery)  # type: ignore[no-any-return]
            except BufferError:
                self._producer.poll(0.01)

    def _delivered(self, sent: float | None, error: Any, message: Any) -> None:
        if error is None:
            self._tally.on_record(sent)
        else:
            self._tally.fail(1, error)

    def flush(self) -> None:
        self._producer.flush()

    def give_up(self) -> None:
        self._producer.purge()


class _KafkaPython(_Peer):
    def __init__(self, config: ProducerConfig, load: Load, tally: Tally) -> None:
        kafka = _import("kafka", "kafka-python")
        self._topic, self._tally = load.topic, tally
        self.producer = kafka.KafkaProducer(**kafka_python_settings(config))

    def send(self, values: Sequence[bytes], sent: float) -> None:
        for number, value in enumerate(values):
            future = self.producer.send(self._topic, value)
            future.add_callback(self._delivered, None if number else sent)
            future.add_errback(self._failed)

    def _delivered(self, sent: float | None, metadata: Any) -> None:
        self._tally.on_record(sent)

    def _failed(self, error: Any) -> None:
        self._tally.fail(1, error)

    def flush(self) -> None:
        self.producer.flush()

    def give_up(self) -> None:
        # close(0) raises a time-out before it closes anything.
        self.producer._sender.force_close()


class _AIOKafka(_Peer):
    """The chunks run in one event loop, which also runs while the load waits for its time."""

    def __init__(self, config: ProducerConfig, load: Load, tally: Tally) -> None:
        self._aiokafka = _import("aiokafka", "aiokafka")
        self._topic, self._tally = load.topic, tally
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Any] | None = None
        self._signal = 0
        self.handlers: dict[int, Any] = {}
        self._producer = self._run(self._opened(config))

    async def _opened(self, config: ProducerConfig) -> Any:
        producer = self._aiokafka.AIOKafkaProducer(**aiokafka_settings(config))
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """What a handler raises in the loop would end whichever of aiokafka's tasks is at work: ours is cancelled, and
        the handler called behind the loop."""
        if self._task is None:
            self.handlers[number](number, frame)
        else:
            self._signal = number
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        self._task = self._loop.create_task(work)
        result = None
        try:
            result = self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            if not self._signal:
                raise
        finally:
            self._task = None
        if number := self._signal:
            self._signal = 0
            self.handlers[number](number, None)
        return result

    def send(self, values: Sequence[bytes], sent: float) -> None:
        self._run(self._send(values, sent))

    async def _send(self, values: Sequence[bytes], sent: float) -> None:
        for number, value in enumerate(values):
            future = await self._producer.send(self._topic, value)
            future.add_done_callback(partial(self._delivered, None if number else sent))

    def _delivered(self, sent: float | None, future: asyncio.Future[Any]) -> None:
        if (error := future.exception()) is None:
            self._tally.on_record(sent)
        else:
            self._tally.fail(1, error)

    def sleep(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))

    def flush(self) -> None:
        self._run(self._producer.flush())
        self.sleep(0)  # the loop runs the last callbacks

    def give_up(self) -> None:
        # stop() waits for all records, unless the task that sends them has ended.
        self._cancel_all()

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self.sleep(0)

    def close(self) -> None:
        self._run(self._producer.stop())
        self._cancel_all()
        self._loop.close()


@contextmanager
def _confluent(config: ProducerConfig, load: Load, tally: Tally) -> Iterator[Sending]:
    sending = _Confluent(config, load, tally)
    yield sending
    sending.flush()


@contextmanager
def _aiokafka(config: ProducerConfig, load: Load, tally: Tally) -> Iterator[Sending]:
    with closing(_AIOKafka(config, load, tally)) as sending, handled(sending.on_signal) as sending.handlers:
        yield sending


@contextmanager
def _kafka_python(config: ProducerConfig, load: Load, tally: Tally) -> Iterator[Sending]:
    sending = _KafkaPython(config, load, tally)
    try:
        yield sending
    finally:
        sending.producer.close(timeout=5)


# Clients that one process can drive. Java runs its own tool.
PEERS: dict[str, Callable[[ProducerConfig, Load, Tally], Any]] = {
    "aiokafka": _aiokafka,
    "confluent": _confluent,
    "kafka-python": _kafka_python,
}


def run_java(config: ProducerConfig, load: Load) -> Result:
    """Kafka's own kafka-producer-perf-test, of the Kafka in the environment variable KAFKA_HOME.

    Its clock runs from its first record, with the JVM cold.
    """
    home = os.environ.get("KAFKA_HOME")
    tool = Path(home or "") / "bin" / "kafka-producer-perf-test.sh"
    if home is None or not tool.exists():
        raise ConfigError(
            "--compare java needs an Apache Kafka: name its folder in the environment variable KAFKA_HOME"
        )
    with tempfile.NamedTemporaryFile(suffix=".txt") as payload:
        payload.write(_payload(load))
        payload.flush()
        done = subprocess.run(
            [tool, *_java_arguments(config, load, payload.name)], capture_output=True, text=True, check=False
        )
    reports = [match for line in done.stdout.splitlines() if (match := _JAVA.match(line))]
    if done.returncode or not reports:
        raise KafkaError(f"{tool.name} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    records, rate, *latencies = map(float, reports[-1].groups())
    names = ("mean", "max", "p50", "p95", "p99", "p99.9")
    return Result(
        "java", int(records), load.records - int(records), None, records / rate, load.value_size, None,
        {name: value / 1000 for name, value in zip(names, latencies, strict=True)},
    )  # fmt: skip


def _payload(load: Load) -> bytes:
    """The tool splits text, and would send others than these bytes."""
    text = b"\n".join(load.values)
    try:
        text.decode()
    except UnicodeDecodeError:
        raise ConfigError("--compare java needs a --payload-file of UTF-8") from None
    return text


def _java_arguments(config: ProducerConfig, load: Load, payload: str) -> list[str]:
    properties = {
        "bootstrap.servers": _servers(config),
        "acks": config.acks,
        "batch.size": config.batch_size,
        "linger.ms": config.linger_ms,
        "compression.type": config.compression_type,
        "buffer.memory": config.buffer_memory,
        "enable.idempotence": str(config.enable_idempotence).lower(),
        "delivery.timeout.ms": config.delivery_timeout_ms,
        "request.timeout.ms": config.request_timeout_ms,
        "max.block.ms": config.max_block_ms,
    }
    settings = [f"{name}={value}" for name, value in properties.items()]
    amount = ["--num-records", str(load.records), "--throughput", str(load.throughput or -1)]
    return ["--topic", load.topic, *amount, "--payload-file", payload, "--producer-props", *settings]
