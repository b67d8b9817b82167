"""`python -m tools.kips_page` writes docs/kips.md from tools/kips.tsv: which of Kafka's KIPs kafkabuf has.

A line of the table is a KIP: its number, what it is in a few words, the version of Kafka that it came with, its state
in the producer and in the embedded broker, a note and the evidence. A state is one of STATES; "-" means that the KIP
does not concern this side. The note says what is missing, or why. Evidence is a setting, a path, or a path and a test
(`path::test`). Spaces separate several.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_name("kips.tsv")
PAGE = ROOT / "docs" / "kips.md"
STATES = ("has", "partly", "no", "-")
HEAD = """\
# KIPs

<!-- `python -m tools.kips_page` writes this page. -->

Kafka changes by [Kafka Improvement
Proposals](https://cwiki.apache.org/confluence/display/KAFKA/Kafka+Improvement+Proposals) (KIPs): this table says which
of those up to Kafka 4.4 the producer and the [embedded broker](embedded-broker.md) have, with the version of Kafka that
each came with. A dash stands where a KIP does not concern the producer or the broker, and KIPs of consumers, Streams,
Connect, MirrorMaker and tiered storage alone are left out.

| KIP | What it is | Kafka | Producer | Embedded broker | Settings; what is missing, or why |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Kip:
    """A line of the table. The fields are its columns."""

    kip: str
    title: str
    kafka: str
    producer: str
    broker: str
    note: str
    evidence: str

    @property
    def settings(self) -> list[str]:
        return [entry for entry in self.evidence.split() if "/" not in entry]


def read_table(path: Path = TABLE) -> list[Kip]:
    """Raises ValueError for a wrong head, and for a line that has not all columns."""
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    columns = [field.name for field in fields(Kip)]
    if head.split("\t") != columns:
        raise ValueError(f"{path.name}: the first line must have {', '.join(columns)}")
    for number, line in enumerate(lines, 2):
        if line.count("\t") != len(columns) - 1:
            raise ValueError(f"{path.name}:{number}: the line must have {len(columns)} columns: {line!r}")
    return [Kip(*line.split("\t")) for line in lines]


def page() -> str:
    return HEAD + "".join(map(_row, read_table()))


def _row(kip: Kip) -> str:
    settings = ", ".join(f"`{name}`" for name in kip.settings)
    remark = ". ".join(filter(None, (settings, kip.note)))
    return f"| {kip.kip} | {kip.title} | {kip.kafka} | {kip.producer} | {kip.broker} | {remark} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
