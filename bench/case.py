"""`python -m bench.case CLAIM CASE JOB ...` runs cases once, one after the other, in this process.

The last lines have the figures of each case as JSON.
"""

from __future__ import annotations

import json
import sys

from bench.claim import Job
from bench.claims import load


def main(claim: str, *cases_and_jobs: str) -> None:
    pairs = zip(cases_and_jobs[::2], cases_and_jobs[1::2], strict=True)
    found = [load(claim).case(case).run(Job(**json.loads(job))) for case, job in pairs]
    print(*map(json.dumps, found), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
