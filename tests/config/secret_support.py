"""Everything that an exception shows of a secret, or has of it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator


def whole_chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes and contexts, also those that `from None` hides from tracebacks."""
    found, left = set[int](), [error]
    while left:
        each = left.pop()
        if id(each) not in found:
            found.add(id(each))
            yield each
            left += [other for other in (each.__cause__, each.__context__) if other is not None]


def shown_by(error: BaseException) -> str:
    """All text of an exception and of its chain: arguments, attributes (UnicodeEncodeError.object), tracebacks."""
    parts = ["".join(traceback.format_exception(error))]
    for each in whole_chain(error):
        parts += [str(each), repr(each), repr(each.args), repr(vars(each)), repr(getattr(each, "object", ""))]
    return "".join(parts)
