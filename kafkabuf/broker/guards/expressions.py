"""Matches names with a regular expression in bounded time: topics (KIP-848) and transactional ids (KIP-1152).

Python's `re` backtracks: a pattern such as `(a+)+b` would stop the event loop for ever. RE2 follows all ways through
the expression at once, as RE2/J does in Kafka. A character of a name costs it at most as many steps as the program of
the expression has instructions. An expression that could need too many steps is refused.

An expression matches the whole name, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.errors import InvalidRegularExpressionError, MissingExtraError
from kafkabuf.extras import needs

_LONGEST = 4096
# Bytes of a program and of what RE2 remembers of it: some 10,000 instructions.
_MOST_MEMORY = 256 * 1024
# Instructions that one call of `matching` may visit, half a second at worst, and those of a step of the work.
_MOST_VISITS = 200_000_000
_VISITS = 100_000


class Pattern:
    def __init__(self, expression: str) -> None:
        """Raises InvalidRegularExpressionError."""
        if len(expression) > _LONGEST:
            raise InvalidRegularExpressionError(
                f"the expression has {len(expression)} characters, {_LONGEST} are allowed"
            )
        self._compiled = _compiled(expression)

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """The names that match. Raises InvalidRegularExpressionError if that may take too long."""
        return finish(self.matching_in_steps(names))

    def matching_in_steps(self, names: Iterable[str]) -> Work[frozenset[str]]:
        """As `matching`, in steps."""
        size, match = self._compiled.programsize, self._compiled.fullmatch
        visits, pause = 0, _VISITS
        matching = []
        for name in names:
            encoded = name.encode(errors="surrogatepass")
            visits += size * (len(encoded) + 1)
            if visits > _MOST_VISITS:
                raise InvalidRegularExpressionError("it takes too long to match the expression with all names")
            if match(encoded) is not None:
                matching.append(name)
            if visits > pause:
                pause = visits + _VISITS
                yield
        return frozenset(matching)


def _compiled(expression: str) -> Any:
    try:
        with needs("broker", "a regular expression"):
            import re2  # late: only a client with an expression needs it
    except MissingExtraError as error:
        raise InvalidRegularExpressionError(str(error)) from None
    options = re2.Options()
    options.max_mem = _MOST_MEMORY
    options.never_capture = True
    options.log_errors = False  # RE2 would write to stderr
    try:
        return re2.compile(expression.encode(), options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else "not Unicode"
        raise InvalidRegularExpressionError(
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {reason}"
        ) from None
