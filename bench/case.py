"""`python -m bench.case CLAIM CASE JOB` runs a case once, in this process. The last line has its figures as JSON."""

from __future__ import annotations

import json
import sys

from bench.claim import Job
from bench.claims import load


def main(claim: str, case: str, job: str) -> None:
    print(json.dumps(load(claim).case(case).run(Job(**json.loads(job)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
