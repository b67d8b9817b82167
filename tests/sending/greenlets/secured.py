"""A program that a library of greenlets has patched, and all that a producer does over a network beside plain sending.

`python secured.py gevent|eventlet ARGUMENTS`, where ARGUMENTS is a JSON object: `producers` has the settings
of each producer by name, and `registry` a Schema Registry's URL. It prints the name of each part that worked.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import sys
import warnings
from typing import Any

PATIENCE = 60
faulthandler.dump_traceback_later(PATIENCE * 2, exit=True)

warnings.simplefilter("ignore")  # eventlet says of itself that it is deprecated
library, text = sys.argv[1:]
if library == "gevent":
    importlib.import_module("gevent.monkey").patch_all()
    spawn: Any = importlib.import_module("gevent").spawn
    sleep: Any = importlib.import_module("gevent").sleep
else:
    importlib.import_module("eventlet").monkey_patch()
    spawn, sleep = importlib.import_module("eventlet").spawn, importlib.import_module("eventlet").sleep

import pyarrow as pa  # noqa: E402

from kafkabuf import KafkaProducer  # noqa: E402
from kafkabuf.process import threads  # noqa: E402

arguments = json.loads(text)
ticks = 0


def tick() -> None:
    global ticks
    while True:
        ticks += 1
        sleep(0.001)


def works(name: str, settings: dict[str, Any]) -> None:
    seen = ticks
    with KafkaProducer(settings) as producer:
        assert producer.send("t", b"v").result(PATIENCE).offset >= 0
    assert ticks > seen, "the hub stood still"
    print(name, flush=True)


def transaction(settings: dict[str, Any]) -> None:
    with KafkaProducer(settings | {"transactional.id": f"greenlets-{library}"}) as producer:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send("t", b"v")
            end()
    print("transaction", flush=True)


def table(settings: dict[str, Any]) -> None:
    with KafkaProducer(settings) as producer:
        report = producer.send_arrow(pa.table({"value": [b"a", b"b"]}), topic="t")
        assert len(report.result(PATIENCE).offset) == 2
    print("arrow", flush=True)


def registered(settings: dict[str, Any], url: str) -> None:
    schema = '{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}'
    registry = {"schema.registry.url": url}
    from kafkabuf.formats import Avro

    seen = ticks
    with KafkaProducer(settings | registry | {"value.serializer": Avro(schema)}) as producer:
        producer.send("t", {"a": 1}).result(PATIENCE)
    assert ticks > seen
    print("registry", flush=True)


assert threads.are_patched()
spawn(tick)
sleep(0)
for name, settings in arguments["producers"].items():
    works(name, settings)
plain = next(iter(arguments["producers"].values()))
transaction(plain)
table(plain)
registered(plain, arguments["registry"])
