"""How much of a randomised test a run does, as the variable KAFKABUF_EFFORT says: quick, normal (the default) or whole.

`make quick` does an eighth of the seeds and examples, `make test` a quarter of them, `make test-all` all of them. A
seed is the same in each.
"""

from __future__ import annotations

import os

EFFORT = os.environ.get("KAFKABUF_EFFORT", "normal")
_DIVISOR = {"quick": 8, "normal": 4, "whole": 1}[EFFORT]


def effort(whole: int) -> int:
    """The number of seeds, stretches of seeds or examples for this run; at least 1."""
    return max(1, whole // _DIVISOR)
