"""Fuzzing of the request path: the broker answers any request or closes the connection, at a bounded cost.

python -m tests.hostile.fuzz_requests --seconds 60     half of `make fuzz`: requests that know their schema
python -m tests.hostile.fuzz_requests --requests 1000000 --workers 2
python -m tests.hostile.fuzz_requests --atheris        the other half: libFuzzer looks for bytes that reach new code
python -m tests.hostile.fuzz_requests --input FILE     runs again what the fuzzer left in build/fuzz
python -m tests.hostile.fuzz_requests --renew          rewrites the corpus, after APIs or versions were added

No request of at most 1 MiB may make another client wait for more than 100 ms, cost more than 64 MiB, raise, forge a
line of the log, or leave a topic half made; a valid request is accepted. target.py measures, worlds.py has
the clusters and checks their folders, cases.py makes the requests, scenarios.py those that need others
before them, runs.py runs the processes, and progress.py says which of them hangs.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

# The fuzzer leaves faults here, and libFuzzer the inputs that reach new code.
_FOLDER = Path("build/fuzz")
_SECONDS = 60


def fuzz(seconds: float, requests: int, seed: int, world: str, workers: int) -> int:
    """Returns the exit status: 1 if there is a fault. Ctrl-C ends the run early."""
    from tests.hostile.fuzz_requests import faults as fuzz_faults
    from tests.hostile.fuzz_requests import runs as fuzz_runs
    from tests.hostile.fuzz_requests import worlds as fuzz_worlds

    if not fuzz_worlds.allow_descriptors():
        print("a world with a folder opens 11,000 files: raise the hard limit (ulimit -Hn)")
        return 2
    began = time.monotonic()
    fuzz_runs.warm()
    supervisor = fuzz_runs.Supervisor(fuzz_runs.Options(_FOLDER, seed, world, requests, seconds, workers))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's process in the background ignores it
    with suppress(KeyboardInterrupt):
        supervisor.run()
    print(fuzz_faults.table(supervisor.summary))
    print(f"{fuzz_faults.describe(supervisor.summary)}, {time.monotonic() - began:.0f} s")
    repeated, unconfirmed = supervisor.summary.repeated, supervisor.unconfirmed
    print(f"{len(supervisor.faults)} faults, found again {repeated} times; {unconfirmed} suspicions did not come true")
    return 1 if supervisor.faults else 0


def run_again(path: Path) -> int:
    from tests.hostile.fuzz_requests import faults as fuzz_faults
    from tests.hostile.fuzz_requests import runs as fuzz_runs
    from tests.hostile.fuzz_requests import worlds as fuzz_worlds
    from tests.hostile.fuzz_requests.target import Target

    fuzz_worlds.allow_descriptors()
    if not path.read_bytes().startswith(b'{"world"'):
        Target()(path.read_bytes())  # an input of libFuzzer
        return 0
    fuzz_runs.warm()
    fault = fuzz_faults.Fault.read(path)
    kind, text = fuzz_runs.outcome(fault, fault.cases, path.parent)
    print(f"{kind}: {text}" if kind else "no fault")
    return 1 if kind else 0


def fuzz_with_atheris(seconds: int) -> None:
    """Does not return: libFuzzer ends the process, with an exit status of its own if it has found a fault."""
    import atheris

    with atheris.instrument_imports(include=["kafkabuf.broker", "kafkabuf.protocol"]):
        from tests.hostile.fuzz_requests.target import MAX_REQUEST, Target, corpus

        target = Target()
    folder = _FOLDER / "corpus"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, frame in enumerate(corpus()):
        (folder / f"{number}").write_bytes(frame)
        target(frame)  # the first request of each API and version reads its schema
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_REQUEST}",
        f"-artifact_prefix={_FOLDER}/",
        "-verbosity=0",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(folder)], target)
    atheris.Fuzz()


def renew() -> None:
    """Write the corpus: the longest request below 300 bytes of every API and version in the script."""
    from kafkabuf.broker import EmbeddedCluster
    from kafkabuf.broker.apis.dispatch import APIS
    from tests.broker.raw_client import RawClient, message
    from tests.conformance import script, topics
    from tests.conformance.test_conformance import MODULES
    from tests.hostile.fuzz_requests.target import CORPUS, NAME, api_of

    assert MODULES, "these modules register the steps when they are imported"
    frames: dict[tuple[int, int], bytes] = {}

    class Recorder(RawClient):
        def send_frame(self, frame: bytes) -> None:
            longest = frames.get(api_of(frame), b"")
            if len(longest) < len(frame) < 300:
                frames[api_of(frame)] = frame
            super().send_frame(frame)

    with EmbeddedCluster() as cluster:
        talk = script.Conversation(cluster.bootstrap_servers, NAME, Recorder(cluster.bootstrap_servers))
        topics.prepare(talk)
        wanted = {key: range(api.min_version, api.max_version + 1) for key, api in APIS.items()}
        script.run(talk, {key: [v for v in versions if (key, v) != (0, 2)] for key, versions in wanted.items()})
        Recorder(cluster.bootstrap_servers).produce_v2(talk.topic, message(b"x"))
    CORPUS.write_text("".join(f"{frames[key].hex()}\n" for key in sorted(frames)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz_requests", description="Fuzz the request path.")
    parser.add_argument("--seconds", type=int, help="how long (default 60, or as long as the requests take)")
    parser.add_argument("--requests", type=int, help="how many requests at most")
    parser.add_argument("--workers", type=int, default=1, help="how many processes at once (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the requests (default %(default)s)")
    parser.add_argument("--world", default="", help="only this kind: memory, folder, three or sasl")
    parser.add_argument("--atheris", action="store_true", help="let libFuzzer make the requests")
    parser.add_argument("--input", type=Path, help="only run this input")
    parser.add_argument("--renew", action="store_true", help="only rewrite the corpus")
    arguments = parser.parse_args()
    _FOLDER.mkdir(parents=True, exist_ok=True)
    if arguments.renew:
        renew()
    elif arguments.input:
        return run_again(arguments.input)
    elif arguments.atheris:
        fuzz_with_atheris(arguments.seconds or _SECONDS)
    else:
        seconds = arguments.seconds or (10**9 if arguments.requests else _SECONDS)
        return fuzz(seconds, arguments.requests or 10**12, arguments.seed, arguments.world, arguments.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
