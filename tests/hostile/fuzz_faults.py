"""What a run of the fuzzer of requests finds: faults, with the files that show them again, and a summary."""

from __future__ import annotations

import base64
import json
import re
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from kafkabuf.protocol.messages import api_name
from tests.hostile.fuzz_target import Case

# Faults that are measured; the machine may have been busy.
MEASURED = {"wait", "memory"}


@dataclass
class Fault:
    """A broken promise. The last of `cases` breaks it, or with `finish` the end of the generation does."""

    world: str
    kind: str
    text: str
    cases: list[Case]
    finish: str = ""

    @property
    def api(self) -> str:
        return "end" if self.finish else _name(self.cases[-1].api_key)

    @property
    def signature(self) -> tuple[str, str, str, str]:
        """Faults with one signature have one cause, most likely."""
        origin = "" if self.finish else self.cases[-1].origin
        raised = re.sub(r"[\d'\"]+.*", "", self.text) if self.kind not in MEASURED else ""
        return self.kind, self.api, origin, raised

    def write(self, path: Path) -> None:
        head = {"world": self.world, "kind": self.kind, "text": self.text, "finish": self.finish}
        lines = [json.dumps(head)]
        for case in self.cases:
            lines.append(json.dumps({**asdict(case), "frame": base64.b64encode(zlib.compress(case.frame)).decode()}))
        path.write_text("\n".join(lines) + "\n")

    @classmethod
    def read(cls, path: Path) -> Fault:
        head, *lines = (json.loads(line) for line in path.read_text().splitlines())
        cases = [Case(**{**line, "frame": zlib.decompress(base64.b64decode(line["frame"]))}) for line in lines]
        return cls(**head, cases=cases)


class Largest(NamedTuple):
    """The largest value of a measurement, and the request that it belongs to."""

    value: float = 0.0
    request: str = "none"


@dataclass
class Summary:
    """`apis`: by name the number of requests, the seconds that others waited in all, and the longest wait. `repeated`:
    the requests with a fault that is known."""

    requests: int = 0
    repeated: int = 0
    wait: Largest = field(default_factory=Largest)
    memory: Largest = field(default_factory=Largest)
    apis: dict[str, tuple[int, float, float]] = field(default_factory=dict)

    def add(self, case: Case, wait: float, memory: int) -> None:
        name = _name(case.api_key)
        request = f"{name}, {len(case.frame)} bytes, {case.origin}"
        self.requests += 1
        self.wait = max(self.wait, Largest(wait, request))
        self.memory = max(self.memory, Largest(memory, request))
        count, total, longest = self.apis.get(name, (0, 0.0, 0.0))
        self.apis[name] = count + 1, total + wait, max(longest, wait)

    def join(self, more: Summary) -> None:
        self.requests += more.requests
        self.repeated += more.repeated
        self.wait, self.memory = max(self.wait, more.wait), max(self.memory, more.memory)
        for name, (count, total, longest) in more.apis.items():
            before = self.apis.get(name, (0, 0.0, 0.0))
            self.apis[name] = before[0] + count, before[1] + total, max(before[2], longest)


def _name(api_key: int) -> str:
    with suppress(Exception):
        return (api_name(api_key) or "unknown").title().replace("_", "")
    return "unknown"


def describe(summary: Summary) -> str:
    wait, memory = summary.wait, summary.memory
    return (
        f"{summary.requests} requests; another client waited for {wait.value * 1000:.0f} ms at most ({wait.request}); "
        f"{memory.value / (1 << 20):.0f} MiB at most ({memory.request})"
    )


def slowest(summary: Summary) -> str:
    worst = sorted(summary.apis.items(), key=lambda item: -item[1][2])[:5]
    parts = [
        f"{name} {longest * 1000:.0f} ms ({total / count * 1000:.2f} ms on average)"
        for name, (count, total, longest) in worst
    ]
    return f"the slowest APIs: {', '.join(parts)}"
