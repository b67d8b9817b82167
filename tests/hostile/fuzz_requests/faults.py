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
from tests.hostile.fuzz_requests.target import Case

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


class Total(NamedTuple):
    """Some of the requests. `waited`: the seconds that others waited in all."""

    requests: int = 0
    waited: float = 0.0
    wait: Largest = Largest()
    memory: Largest = Largest()

    def joined(self, more: Total) -> Total:
        return Total(
            self.requests + more.requests,
            self.waited + more.waited,
            max(self.wait, more.wait),
            max(self.memory, more.memory),
        )


@dataclass
class Summary:
    """`parts`: by ("world", its kind), ("origin", its name) and ("API", its name). `repeated`: the requests with a
    fault that is known."""

    requests: int = 0
    repeated: int = 0
    wait: Largest = field(default_factory=Largest)
    memory: Largest = field(default_factory=Largest)
    parts: dict[tuple[str, str], Total] = field(default_factory=dict)

    def add(self, world: str, case: Case, wait: float, memory: int) -> None:
        name = _name(case.api_key)
        request = f"{name}, {len(case.frame)} bytes, {case.origin}"
        one = Total(1, wait, Largest(wait, request), Largest(memory, request))
        self.requests += 1
        self.wait, self.memory = max(self.wait, one.wait), max(self.memory, one.memory)
        for part in (("world", world), ("origin", case.origin), ("API", name)):
            self._join(part, one)

    def join(self, more: Summary) -> None:
        self.requests += more.requests
        self.repeated += more.repeated
        self.wait, self.memory = max(self.wait, more.wait), max(self.memory, more.memory)
        for part, total in more.parts.items():
            self._join(part, total)

    def _join(self, part: tuple[str, str], total: Total) -> None:
        before = self.parts.get(part)
        self.parts[part] = total if before is None else before.joined(total)


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


def table(summary: Summary) -> str:
    """Of each world, origin and API: the requests, the longest wait and the largest memory."""
    lines = [f"{'':33}{'requests':>10}{'mean ms':>9}{'longest':>9}{'MiB':>5}"]
    for (what, name), total in sorted(
        summary.parts.items(), key=lambda item: (item[0][0] == "API", item[0][0], -item[1].requests)
    ):
        mean, longest = total.waited / total.requests * 1000, total.wait.value * 1000
        mib = max(total.memory.value, 0) / (1 << 20)
        lines.append(f"{what:7}{name:26}{total.requests:>10}{mean:>9.2f}{longest:>9.1f}{mib:>5.0f}")
    return "\n".join(lines)
