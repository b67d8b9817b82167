"""A pytest plugin, `-p tests.hostile.sanitized`, that selects the tests that `make sanitize` runs.

These are all tests but those that start a JVM (markers `kafka` and `spark`), because little of our code runs in the
process of such a test, and those of `REASONS`. With `--core` only the tests of the Cython core remain, which are quick.
tests/needs.py finds both from the code of the tests.
"""

from __future__ import annotations

import pytest

from tests.needs import ROOT, is_of_the_core, starts_a_jvm

# Files and tests that cannot run under sanitizers, with the reason of each.
REASONS = {
    "house/test_bootstrap.py": "is about the virtual environment: none of our code runs",
    "house/bench/test_claims.py": "measures, and would measure the sanitizers too",
    "house/bench/test_kernels.py": "is for valgrind, which cannot run a sanitized process",
    "house/bench/test_gate.py": "is for valgrind, which cannot run a sanitized process",
    "cli/test_memory.py": "bounds memory, of which sanitizers take more",
    "broker/records/test_bombs.py::test_well_formed_bomb_is_refused_in_little_memory_and_time": "bounds both",
    "house/test_layering.py": "reads sources: none of our code runs",
    "broker/front/test_hostile.py::test_any_request_with_too_many_items_is_refused": "bounds memory and time",
    "broker/front/test_hostile.py::test_compression_bomb_is_refused": "bounds memory, of which sanitizers take more",
    "sending/test_lifetime.py::test_collecting_a_producer_does_not_wait_for_its_broker": "times a collection",
    "memory/test_pool.py::test_memory_that_is_not_needed_is_never_touched": "the sanitizers touch one more page",
    "test_opening.py::test_first_record_touches_little_of_the_memory": "bounds memory, of which sanitizers take more",
    "broker/test_footprint.py": "bounds memory and time",
    "metrics/test_telemetry_hostile.py::test_100000_names_hold_the_senders_thread_for_a_moment": "bounds time",
    "sending/greenlets/test_greenlets.py": "switches greenlets, which copy stacks across ASAN's borders",
    "sending/greenlets/test_secured.py": "switches greenlets, which copy stacks across ASAN's borders",
    "pages/test_examples.py::test_program_of_a_page_runs[docs/recipes.md]": "switches greenlets",
    "spark/test_notes.py::test_process_is_found_without_proc": "starts `ps`, which hangs under a preloaded sanitizer",
    "cli/test_kills.py::test_input_of_each_format_arrives_whole_behind_many_kills": "takes half an hour for a format",
    "house/test_targets.py": "reads files that the sanitized copy of the tree lacks",
    "house/test_wheel.py": "reads files that the sanitized copy of the tree lacks",
    "hostile/test_no_memory.py::test_sweep_finds_what_it_looks_for": "plants an abort, which the sanitizers report",
    "spool/test_every_instruction.py": "steps through each instruction, of which the sanitizers add many",
    "hostile/fuzz_requests/test_progress.py": "is about the fuzzer, which `make sanitize` runs beside the tests",
    "hostile/fuzz_requests/test_fuzz_requests.py": "bounds memory and time; `make sanitize` runs the fuzzer beside it",
    "hostile/fuzz_requests/test_faults.py": "is about the fuzzer, which `make sanitize` runs beside the tests",
    "hostile/fuzz_api/test_fuzz_api.py": "is about the fuzzer, which `make sanitize` runs beside the tests",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core", action="store_true", help="only the Cython core's own tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    core = config.getoption("--core")
    kept = [
        item
        for item in items
        if not is_excluded(item) and not starts_a_jvm(item) and (not core or is_of_the_core(item))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def is_excluded(item: pytest.Item) -> bool:
    file = item.path.relative_to(ROOT / "tests").as_posix()
    whole_test, one_case = f"{file}::{item.name.partition('[')[0]}", f"{file}::{item.name}"
    return not REASONS.keys().isdisjoint((file, whole_test, one_case))
