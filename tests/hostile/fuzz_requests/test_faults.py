"""The fuzzer of requests notices each kind of fault that a test plants in the broker, and keeps what shows it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.broker import apis
from kafkabuf.broker.apis.dispatch import APIS
from kafkabuf.broker.log.upkeep.manager import LogManager
from kafkabuf.errors import KafkaStorageError
from kafkabuf.protocol import messages
from tests.hostile.fuzz_requests import cases as fuzz_cases
from tests.hostile.fuzz_requests import progress as fuzz_progress
from tests.hostile.fuzz_requests import runs as fuzz_runs
from tests.hostile.fuzz_requests import target as fuzz_target
from tests.hostile.fuzz_requests import wire as fuzz_wire
from tests.hostile.fuzz_requests import worlds as fuzz_worlds
from tests.hostile.fuzz_requests.cases import Cases
from tests.hostile.fuzz_requests.faults import Fault, Summary, table
from tests.hostile.fuzz_requests.runs import Options, Supervisor
from tests.hostile.fuzz_requests.target import MAX_REQUEST, Case, Target, api_of, corpus
from tests.hostile.fuzz_requests.worlds import SOUND, TOPIC, FuzzError, few_descriptors

MIB = 1 << 20
Plant = Callable[..., Any]
log = logging.getLogger("kafkabuf.broker")
_kept: list[Any] = []


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted faults are as slow as the limit of a quiet machine finds, and need memory that the process lacks."""
    monkeypatch.setattr(fuzz_target, "SLOWER", 1)
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def target() -> Iterator[Target]:
    fuzzed = Target()
    fuzzed.begin()
    yield fuzzed
    fuzzed.close()


@pytest.fixture
def folder() -> Iterator[Target]:
    fuzzed = Target("folder")
    fuzzed.begin()
    yield fuzzed
    with contextlib.suppress(KafkaStorageError):
        fuzzed.close()


def plant(monkeypatch: pytest.MonkeyPatch, handler: Plant) -> Case:
    """Answer ListGroups with a handler; returns such a request."""
    apis.load()
    monkeypatch.setitem(APIS, messages.LIST_GROUPS, replace(APIS[messages.LIST_GROUPS], handler=handler))
    return Case(next(frame for frame in corpus() if api_of(frame) == (messages.LIST_GROUPS, 0)))


def request(key: int, version: int, expect: str = "", **values: Any) -> Case:
    entity = messages.build_request(key, version, **values)
    return Case(messages.encode_request(key, version, 1, "t", entity), expect)


def create(name: str, partitions: int = 1) -> Case:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    return request(messages.CREATE_TOPICS, 7, topics=[topic], timeout=1000)


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


# ---- faults while a request is served


def is_slow(*_: Any) -> Any:
    compute(0.15)
    return {"groups": []}


def sleeps(*_: Any) -> Any:
    time.sleep(0.15)
    return {"groups": []}


def is_slow_later(*_: Any) -> Any:
    async def work() -> Any:
        await asyncio.sleep(0)
        return is_slow()

    return asyncio.ensure_future(work())


def is_hungry(*_: Any) -> Any:
    return {"groups": [], "error_code": len(b"x" * (100 * MIB)) and 0}


def gives_a_large_response(*_: Any) -> Any:
    return {"groups": [{"group_id": "x" * 32_000, "protocol_type": ""}] * 3_000}


def forges_a_line(*_: Any) -> Any:
    # The filter of the broker's logger is not that of a logger below it.
    logging.getLogger(f"{log.name}.planted").info("group %s", "a\nERROR: b")
    return {"groups": []}


def logs_an_error(*_: Any) -> Any:
    log.error("it broke")
    return {"groups": []}


def answers_with_unknown_server_error(*_: Any) -> Any:
    return {"error_code": -1, "groups": []}


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (is_slow, "wait"),
        (sleeps, "wait"),
        (is_slow_later, "wait"),
        (is_hungry, "memory"),
        (gives_a_large_response, "memory"),
        (forges_a_line, "log"),
        (logs_an_error, "log"),
        (answers_with_unknown_server_error, "error code"),
    ],
)
def test_fault_of_a_request_is_noticed(
    target: Target, monkeypatch: pytest.MonkeyPatch, handler: Plant, kind: str
) -> None:
    target.serve(plant(monkeypatch, lambda *_: {"groups": []}))
    with pytest.raises(FuzzError) as found:
        target.serve(plant(monkeypatch, handler))
    assert found.value.kind == kind


def test_exception_of_a_handler_is_raised(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError):
        target.serve(plant(monkeypatch, lambda *_: {"groups": 7}))


def test_measurement_is_repeated_before_it_counts(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def is_slow_twice(*_: Any) -> Any:
        calls.append(1)
        return is_slow() if len(calls) < 3 else {"groups": []}

    target(plant(monkeypatch, is_slow_twice).frame)
    assert len(calls) == 3


def test_work_in_slices_makes_nobody_wait(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second client is served between the slices."""

    def works_in_slices(*_: Any) -> Any:
        async def work() -> Any:
            for _ in range(20):
                compute(0.01)
                await asyncio.sleep(0)
            return {"groups": []}

        return asyncio.ensure_future(work())

    assert 0.01 < target.serve(plant(monkeypatch, works_in_slices)).wait < 0.1


def test_second_client_without_a_response_is_noticed(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops_answering(node: Any, *_: Any) -> Any:
        node.silent = True
        return {"groups": []}

    with pytest.raises(FuzzError, match="the second client got no response"):
        target.serve(plant(monkeypatch, stops_answering))


def test_flood_of_the_log_is_noticed(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(*_: Any) -> Any:
        log.warning("odd")
        return {"groups": []}

    case = plant(monkeypatch, warns)
    for _ in range(100):
        target.serve(case)
    with pytest.raises(FuzzError, match="a client floods the log"):
        target.finish(random.Random(1))


def test_wrong_answer_to_a_request_of_known_worth_is_noticed(target: Target) -> None:
    produce = {"topic_data": [{"name": SOUND, "partition_data": [{"index": 0, "records": b"no batch"}]}]}
    with pytest.raises(FuzzError, match="a valid request got"):
        target.serve(request(messages.PRODUCE, 9, "accepted", acks=1, timeout=1000, **produce))
    with pytest.raises(FuzzError, match="a request that must be refused was accepted"):
        target.serve(request(messages.API_VERSIONS, 0, "refused"))


# ---- faults of topics and their folders


def test_half_made_topic_is_noticed(target: Target) -> None:
    target.serve(create("half", partitions=2))
    target.world.cluster.catalogue.topic("half").partition(1).replicas.clear()
    with pytest.raises(FuzzError, match="topic half lacks replicas"):
        target.serve(create("other"))


def test_folder_that_outlives_its_topic_is_noticed(folder: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogManager, "deleting", lambda self, topic: iter(()))
    folder.serve(create("a"))
    with pytest.raises(FuzzError, match="a-0 belongs to no topic"):
        folder.serve(request(messages.DELETE_TOPICS, 5, topic_names=["a"], timeout=1000))


def test_records_that_a_restart_loses_are_noticed(folder: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder.world.root
    assert root is not None

    def forget(manager: LogManager) -> None:
        close(manager)
        for path in root.glob(f"data/node-1/{TOPIC}-0/*.log"):
            os.truncate(path, 5_000_000)

    close = LogManager.close
    monkeypatch.setattr(fuzz_worlds, "_PLANTS", [lambda root: None])
    monkeypatch.setattr(LogManager, "close", forget)
    with pytest.raises(FuzzError, match=f"{TOPIC}-0 had .* and after the restart"):
        folder.finish(random.Random(1))


def test_lack_of_descriptors_is_no_fault_of_a_later_request_that_is_not_logged(folder: Target) -> None:
    partitions = bytes.fromhex("0025000300000001000466757a7a000204662d740000001e0000000003e80000")  # TOPIC has 30 then
    folder.serve(Case(partitions, descriptors=8))
    unknown_version = bytes.fromhex("001200ff2f00000f310003726177000209662d742d6e6f6e6502000000000500")
    folder.serve(Case(unknown_version))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_so_many_files_can_be_opened_and_no_more(count: int) -> None:
    opened = []
    with few_descriptors(count):
        try:
            for _ in range(count + 1):
                opened.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        finally:
            for file in opened:
                os.close(file)
    assert len(opened) == count


# ---- runs


def draw_seldom(monkeypatch: pytest.MonkeyPatch, frame: bytes, *, times: int = 1) -> None:
    """The 50th request of each generation is `frame`, and so are the next ones; all others are harmless."""

    def draw(cases: Cases) -> Case:
        cases.drawn = getattr(cases, "drawn", 0) + 1  # type: ignore[attr-defined]
        return Case(frame if 50 <= cases.drawn < 50 + times else corpus()[0])  # type: ignore[attr-defined]

    monkeypatch.setattr(Cases, "_draw", draw)
    monkeypatch.setattr(fuzz_cases, "_SCENARIOS", 0.0)  # a scenario may be longer than the run


def run(tmp_path: Path, requests: int = 90) -> tuple[Supervisor, list[str]]:
    said: list[str] = []
    supervisor = Supervisor(Options(tmp_path, world="memory", requests=requests, say=said.append))
    supervisor.run()
    return supervisor, said


def crashes(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(*_: Any) -> Any:
    time.sleep(1000)


def grows(*_: Any) -> Any:
    while True:
        _kept.append(b"x" * (8 * MIB))
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("handler", "kind"),
    [(is_slow, "wait"), (is_hungry, "memory"), (crashes, "crash"), (hangs, "hang"), (grows, "memory")],
)
def test_fuzzer_finds_a_planted_fault_and_keeps_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: Plant, kind: str
) -> None:
    """The file shows the fault again. A fault costs the run nothing but its worker."""
    frame = plant(monkeypatch, handler).frame
    draw_seldom(monkeypatch, frame)
    monkeypatch.setattr(fuzz_progress, "TURN_SECONDS", 1.0 if kind == "hang" else 30.0)
    monkeypatch.setattr(fuzz_runs, "_HUGE", 200 * MIB)
    if kind != "wait":
        monkeypatch.setattr(fuzz_target, "MAX_WAIT", 60.0)  # on a busy machine the other faults take long, too
    supervisor, said = run(tmp_path)
    assert [(fault.kind, fault.api) for fault in supervisor.faults.values()] == [(kind, "ListGroups")]
    (path,) = tmp_path.iterdir()
    assert any(text.startswith(f"{path}: ") for text in said)
    kept = Fault.read(path)
    assert [case.frame for case in kept.cases] == [frame]
    assert fuzz_runs.outcome(kept, kept.cases, tmp_path)[0] == kind


def test_memory_that_the_parent_freed_hides_no_hungry_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [b"x" * 100_000 for _ in range(3 * 1_200)]
    top = b"x" * 100_000
    del blocks
    draw_seldom(monkeypatch, plant(monkeypatch, is_hungry).frame)
    monkeypatch.setattr(fuzz_target, "MAX_WAIT", 60.0)  # on a busy machine the request takes long, too
    supervisor, _ = run(tmp_path)
    assert [(fault.kind, fault.api) for fault in supervisor.faults.values()] == [("memory", "ListGroups")]
    assert top


def test_two_workers_share_the_requests_and_a_fault_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has generations of its own, and here both meet the fault."""
    draw_seldom(monkeypatch, plant(monkeypatch, crashes).frame)
    supervisor = Supervisor(Options(tmp_path, world="memory", requests=140, workers=2, say=lambda text: None))
    supervisor.run()
    assert supervisor.summary.requests == 140
    assert [(fault.kind, fault.api) for fault in supervisor.faults.values()] == [("crash", "ListGroups")]
    assert list(supervisor.paths.values()) == list(tmp_path.iterdir())


def test_worker_that_ends_by_a_fault_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_seldom(monkeypatch, plant(monkeypatch, crashes).frame)
    (tmp_path / "worlds").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "worlds"))
    supervisor = Supervisor(Options(tmp_path, world="folder", requests=90, say=lambda text: None))
    supervisor.run()
    assert [fault.kind for fault in supervisor.faults.values()] == ["crash"]
    assert not list((tmp_path / "worlds").iterdir())


def test_table_counts_the_requests_of_each_world_origin_and_api() -> None:
    summary, more = Summary(), Summary()
    frames = {api_of(frame)[0]: frame for frame in corpus()}
    summary.add("memory", Case(frames[messages.PRODUCE], origin="fields"), 0.004, 3 * MIB)
    more.add("folder", Case(frames[messages.PRODUCE], origin="fields"), 0.002, 5 * MIB)
    more.add("folder", Case(frames[messages.LIST_GROUPS], origin="topics"), 0.001, 0)
    summary.join(more)
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in table(summary).splitlines()[1:]}
    assert rows == {
        ("API", "Produce"): ["2", "3.00", "4.0", "5"],
        ("API", "ListGroups"): ["1", "1.00", "1.0", "0"],
        ("origin", "fields"): ["2", "3.00", "4.0", "5"],
        ("origin", "topics"): ["1", "1.00", "1.0", "0"],
        ("world", "folder"): ["2", "1.50", "2.0", "5"],
        ("world", "memory"): ["1", "4.00", "4.0", "3"],
    }


def test_memory_that_a_worker_got_from_its_parent_is_no_growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent holds more than a worker may grow by, and a request is served when the supervisor looks first."""

    def serves(progress: fuzz_progress.Progress, pipe: Any) -> None:
        progress.begin(0)
        progress.serve(0, Case(corpus()[0]))
        pipe.send("serves")
        time.sleep(1000)

    held = b"x" * (300 * MIB)
    monkeypatch.setattr(fuzz_runs, "_HUGE", 200 * MIB)
    child = fuzz_runs.Child(tmp_path / "running", serves)
    try:
        assert child.pipe.recv() == "serves"
        assert child.overdue() is None
    finally:
        child.kill()
    assert len(held) == 300 * MIB


def test_fault_that_takes_two_requests_keeps_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def fails_at_the_second(*_: Any) -> Any:
        seen.append(1)
        return {"groups": [] if len(seen) < 2 else 7}

    frame = plant(monkeypatch, fails_at_the_second).frame
    draw_seldom(monkeypatch, frame, times=2)
    supervisor, _ = run(tmp_path)
    (fault,) = supervisor.faults.values()
    assert [case.frame for case in fault.cases] == [frame, frame]


def test_passing_slowness_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a machine that was busy: the request is slow in one process."""
    mark = tmp_path / "mark"

    def is_slow_once(*_: Any) -> Any:
        if not mark.exists():
            mark.touch()
            compute(0.15)
        return {"groups": []}

    frame = plant(monkeypatch, is_slow_once).frame
    monkeypatch.setattr(Cases, "_draw", lambda self: Case(frame))
    monkeypatch.setattr(fuzz_cases, "_SCENARIOS", 0.0)
    supervisor, _ = run(tmp_path / "run", 100)
    assert (supervisor.faults, supervisor.unconfirmed) == ({}, 1)


def test_generation_sends_the_same_requests_in_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(target: Target, case: Case) -> tuple[float, int]:
        drawn.append(case)
        return 0.0, 0

    monkeypatch.setattr(Target, "serve", serve)
    runs = []
    for _ in range(2):
        drawn: list[Case] = []
        supervised = fuzz_progress.Progress(tmp_path / "running")
        monkeypatch.setattr(fuzz_runs, "_seeded_ids", lambda seed: monkeypatch.setattr(os, "urandom", ids(seed)))
        options = Options(tmp_path, world="memory")
        options.deadline = time.monotonic() + 60
        fuzz_runs._run_generation(options, 3, 200, supervised, Summary())
        runs.append(drawn)
    assert runs[0] == runs[1]
    assert len(runs[0]) == 200


def ids(seed: str) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


# ---- requests


def test_requests_are_read_and_written_by_their_schema() -> None:
    read = {frame: fuzz_wire.read(frame) for frame in corpus()}
    assert [api_of(frame) for frame, plain in read.items() if plain is None] == [(messages.PRODUCE, 2)]
    for frame, plain in read.items():
        assert plain is None or fuzz_wire.write(plain) == frame


def test_requests_reach_every_limit() -> None:
    """Names, numbers, repeats and sizes at their limits come up in a few hundred requests of each origin."""
    seen = Counter[str]()
    for case in chain.from_iterable(requests_of(origin, count) for origin, count in ORIGINS.items()):
        assert len(case.frame) <= MAX_REQUEST
        seen["a megabyte"] += len(case.frame) > MAX_REQUEST - 300
        seen["few descriptors"] += case.descriptors is not None
        for length in (247, 248, 249):
            seen[f"a name of {length}"] += b"L" * (length - 1) + b"1" in case.frame
        seen["a line break"] += b"a\nb" in case.frame
        seen["valid records"] += case.expect == "accepted"
        seen["19,990 topics"] += b"00019989" in case.frame
        seen["a partition many times"] += case.origin == "lookups" and len(case.frame) > 10_000
        if case.origin == "topics" and (topics := _topics_of(case)):
            number = topics[0].get("num_partitions", topics[0].get("count"))
            seen["2^31-1 partitions"] += number == 2**31 - 1
            seen["20,000 partitions"] += number == 20_000
    assert not {name for name in seen if not seen[name]} | _WANTED - seen.keys()


# How many requests of each origin.
ORIGINS: dict[Plant, int] = {
    Cases.fields: 1_000,
    Cases.records: 200,
    Cases.lookups: 300,
    Cases.arrays: 300,
    Cases.topics: 1_000,
    Cases.many_topics: 20,
    Cases.few_descriptors: 10,
}


def requests_of(origin: Plant, count: int) -> Iterator[Case]:
    """Requests of one origin."""
    cases = Cases(random.Random(1), "memory", {origin: 1})
    return (cases.next() for _ in range(count))


_WANTED = {"2^31-1 partitions", "20,000 partitions"}


def _topics_of(case: Case) -> list[Any]:
    plain = fuzz_wire.read(case.frame)
    return (plain.tree.get("topics") or []) if plain is not None else []
