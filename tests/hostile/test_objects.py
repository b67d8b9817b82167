"""No extension type or function ends the process, whatever tests/hostile/objects.py tries."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import traceback
from typing import Any

import pytest

from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.aio._futures import AIORecordFuture
from kafkabuf.append._bulk import Portion
from kafkabuf.append.report import BulkReport
from kafkabuf.batches._batch import Batch, RecordFuture
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.compat import kafka_python
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import ConfigError
from kafkabuf.formats.registry import SchemaRegistry
from kafkabuf.producer import KafkaProducer
from kafkabuf.testing import MockProducer
from rigs.producer import Rig
from tests.hostile.objects import SKIPPED_NAMES, extensions, types_of


def test_uninitialized_objects_and_odd_arguments_never_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.hostile.objects"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_methods_refuse_a_self_of_another_type() -> None:
    """A Cython function does not check the type of `self`: it would read another object's bytes as its fields."""
    tried = 0
    for kind in types_of(extensions()):
        for name, method in vars(kind).items():
            if name in SKIPPED_NAMES or not callable(method) or isinstance(method, type):
                continue
            for other in ("x", object(), Rig()):
                with pytest.raises(TypeError):
                    method(other, *[None] * 3)
            tried += 1
    assert tried > 100


SEALED = [kind for kind in types_of(extensions()) if "__new__" not in vars(kind)]


@pytest.mark.parametrize("kind", SEALED, ids=lambda kind: kind.__name__)
def test_sealed_types_cannot_be_constructed(kind: Any) -> None:
    for make in (kind, lambda: kind.__new__(kind), lambda: object.__new__(kind), lambda: copy.copy(Rig().send())):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError):
        pickle.dumps(Rig().send())


def test_types_of_futures_and_batches_are_sealed() -> None:
    assert {AIORecordFuture, Batch, RecordFuture, Portion} <= set(SEALED)


@pytest.mark.parametrize(
    "kind",
    [
        ProducerConfig, SchemaRegistry, EmbeddedCluster, KafkaProducer, AIOKafkaProducer, kafka_python.KafkaProducer,
        MockProducer, BulkReport,
    ],
)  # fmt: skip
def test_object_whose_constructor_raised_has_a_repr(kind: Any) -> None:
    assert kind.__name__ in repr(kind.__new__(kind))


def test_traceback_with_local_variables_shows_the_constructors_error() -> None:
    with pytest.raises(ConfigError) as caught:
        KafkaProducer({"bootstrap.servers": "localhost:9092", "schema.registry.basic.auth.user.info": "alice:pass"})
    shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "schema.registry.url is missing" in shown
    assert "<SchemaRegistry, not made yet>" in shown
