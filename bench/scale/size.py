"""What the tables of coordinators and of a broker's death need to know of a job. `jobs.py` has the jobs."""

from __future__ import annotations

from typing import Protocol


class Size(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def workers(self) -> int: ...
    @property
    def brokers(self) -> int: ...
    @property
    def partitions(self) -> int: ...
