"""`python -m bench.scale` prints the two tables of docs/scale.md, in a minute or two."""

from __future__ import annotations

from collections.abc import Sequence

from bench.scale import jobs, transactions


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]


def main() -> None:
    print(*markdown(jobs.COLUMNS, jobs.rows()), "", sep="\n")
    print(*markdown(transactions.COLUMNS, transactions.rows(jobs.SIZES)), sep="\n")


if __name__ == "__main__":
    main()
