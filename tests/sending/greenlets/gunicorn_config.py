"""The configuration of gunicorn: each worker tells when it takes signals.

Until then gunicorn loses them: a worker that gets SIGTERM earlier is killed at the end of the graceful time-out.
"""

from __future__ import annotations

from typing import Any


def post_worker_init(worker: Any) -> None:
    worker.log.info("worker takes signals")
