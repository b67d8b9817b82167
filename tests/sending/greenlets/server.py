"""A web application that sends a record for each request, for gunicorn. It opens its producer before the fork."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from kafkabuf import KafkaProducer

producer = KafkaProducer(bootstrap_servers=os.environ["SERVERS"])


def app(environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    offset = producer.send("t", b"request").result(60).offset
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(offset).encode()]
