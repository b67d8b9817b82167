"""The API pages have each public name and no private one; `make docs` compares them with the package."""

from __future__ import annotations

import importlib

from tools.site import reference


def every_public_place() -> set[str]:
    found: set[str] = set()
    for module in map(importlib.import_module, reference.PUBLIC):
        for name in reference.public_names(module):
            known = reference.places(module, name)
            found |= known
            if name in reference.WHOLE:
                methods = reference.documented_methods(getattr(module, name))
                found |= {f"{place}.{method}" for place in known for method in methods}
    return found


def test_pages_with_every_public_name_are_complete() -> None:
    assert [*reference.faults(every_public_place())] == []


def test_missing_class_and_method_are_named() -> None:
    anchors = every_public_place()
    anchors -= {"kafkabuf.KafkaProducer.send", "kafkabuf.producer.KafkaProducer.send"}
    anchors -= {"kafkabuf.formats.Avro", "kafkabuf.formats.avro.format.Avro"}
    assert [*reference.faults(anchors)] == [
        "the API pages lack kafkabuf.KafkaProducer.send",
        "the API pages lack kafkabuf.formats.Avro",
    ]


def test_private_name_is_named() -> None:
    assert [*reference.faults(every_public_place() | {"kafkabuf.producer.KafkaProducer._open"})] == [
        "the API pages have the private name kafkabuf.producer.KafkaProducer._open"
    ]
