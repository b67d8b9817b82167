"""Fuzzing of the request path.

python -m tests.hostile.fuzz_requests --seconds 60    `make fuzz` runs this: atheris, or our own mutator without atheris
python -m tests.hostile.fuzz_requests --input FILE    runs one input again, as the fuzzer left it
python -m tests.hostile.fuzz_requests --renew         rewrites the corpus, after APIs or versions were added
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import shutil
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

# The fuzzer leaves inputs that fail here, and libFuzzer keeps the inputs that reach new code.
_FOLDER = Path("build/fuzz")
_LONGEST = 40_000
_NUMBERS = (-(2**31), -1, 0, 1, 0x7F, 0x80, 0x7FFF, 0xFFFF, 2**31 - 1)


def fuzz_with_atheris(seconds: int) -> None:
    """Does not return: libFuzzer ends the process, with an exit status of its own if it has found a fault."""
    import atheris

    with atheris.instrument_imports(include=["kafkabuf.broker", "kafkabuf.protocol"]):
        from tests.hostile.fuzz_target import Target, corpus

        target = Target()
    folder = _FOLDER / "corpus"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, frame in enumerate(corpus()):
        (folder / f"{number}").write_bytes(frame)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={_LONGEST}",
        f"-artifact_prefix={_FOLDER}/",
        "-verbosity=0",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(folder)], target)
    atheris.Fuzz()


def fuzz_with_own_mutator(seconds: float, seed: int) -> int:
    """Serve mutated requests of the corpus; returns their number. A request that fails is written to a file."""
    from tests.hostile.fuzz_target import Target, corpus

    target, frames, generator = Target(), corpus(), random.Random(seed)
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        frame = mutated(generator, frames)
        count += 1
        try:
            target(frame)
        except BaseException:
            (_FOLDER / f"crash-{seed}-{count}").write_bytes(frame)
            raise
    target.close()
    return count


def mutated(generator: random.Random, frames: list[bytes]) -> bytes:
    """A request of the corpus with one to four mutations."""
    frame = bytearray(generator.choice(frames))
    for _ in range(generator.randint(1, 4)):
        generator.choice(_MUTATIONS)(generator, frame, frames)
    return bytes(frame[:_LONGEST])


def _change(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    if frame:
        frame[generator.randrange(len(frame))] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))


def _number(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    at = generator.randrange(len(frame) + 1)
    frame[at : at + 4] = struct.pack(">i", generator.choice(_NUMBERS) if generator.random() < 0.9 else len(frame) - at)


def _varint(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    at = generator.randrange(len(frame) + 1)
    frame[at : at + 1] = bytes([0xFF]) * generator.randint(1, 6) + bytes([generator.randrange(128)])


def _cut(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    at = generator.randrange(len(frame) + 1)
    del frame[at : at + generator.choice((1, 2, 4, len(frame)))]


def _splice(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    other = generator.choice(frames)
    at, start = generator.randrange(len(frame) + 1), generator.randrange(len(other))
    frame[at : at + generator.randint(0, 16)] = other[start : start + generator.randint(1, 64)]


def _api(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    """Give the body the API key and version of another request."""
    frame[:4] = generator.choice(frames)[:4]


_MUTATIONS: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (
    _change,
    _number,
    _varint,
    _cut,
    _splice,
    _api,
)


def renew() -> None:
    """Write the corpus: the longest request below 300 bytes of every API and version in the script."""
    from kafkabuf.broker import EmbeddedCluster
    from kafkabuf.broker.apis.dispatch import APIS
    from tests.broker.raw_client import RawClient, message
    from tests.conformance import script, topics
    from tests.conformance.test_conformance import MODULES
    from tests.hostile.fuzz_target import CORPUS, NAME, api_of

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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz_requests", description="Fuzz the request path.")
    parser.add_argument("--seconds", type=int, default=60, help="how long (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of our own mutator (default %(default)s)")
    parser.add_argument("--own", action="store_true", help="use our own mutator even if atheris is installed")
    parser.add_argument("--input", type=Path, help="only run this input")
    parser.add_argument("--renew", action="store_true", help="only rewrite the corpus")
    arguments = parser.parse_args()
    _FOLDER.mkdir(parents=True, exist_ok=True)
    if arguments.renew:
        renew()
    elif arguments.input:
        from tests.hostile.fuzz_target import Target

        Target()(arguments.input.read_bytes())
    elif arguments.own or importlib.util.find_spec("atheris") is None:
        count = fuzz_with_own_mutator(arguments.seconds, arguments.seed)
        print(f"our own mutator (without atheris): {count} requests in {arguments.seconds} s, no fault found")
    else:
        fuzz_with_atheris(arguments.seconds)


if __name__ == "__main__":
    main()
