"""Numbers for people: bytes and counts as text."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def nbytes(amount: float) -> str:
    """Bytes with three digits and a decimal unit."""
    unit = 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}"


def counted(amount: int, noun: str) -> str:
    """As in 1 record and 1,000 records."""
    return f"{amount:,} {noun}{'s' * (amount != 1)}"


def span(seconds: float) -> str:
    """A time in its largest unit, as 3 min."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
