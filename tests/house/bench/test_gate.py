"""The performance gate judges made-up counts. Each run of the gate itself shows that it sees real ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench import callgrind, gate
from bench.callgrind import CallgrindError, Count, parse
from bench.gate import Baseline, Reading, Verdict, judge, verdicts
from bench.kernels import ALL, KERNELS, REFERENCE, SOUND, TRIALS

BEFORE = Reading(own=1000.0, ratio=2.0)
BASELINE = Baseline({"compiler": "GCC 12"}, "this build", {"send": BEFORE})
# The counts of the trials for one unit of a kernel, where nothing is wrong.
HEALTHY = dict.fromkeys(ALL, Count(1000.0, 2000.0)) | {
    REFERENCE: Count(0.0, 1000.0),
    "a tenth more records": Count(1100.0, 2200.0),
    "a Python call more": Count(1000.0, 2400.0),
}


# ---- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "ratio", "verdict"),
    [
        (1029.0, 2.09, Verdict.SAME),
        (971.0, 1.91, Verdict.SAME),
        (1031.0, 2.0, Verdict.SLOWER),
        (1000.0, 2.11, Verdict.SLOWER),
        (500.0, 2.11, Verdict.SLOWER),  # work moved into Python
        (1031.0, 1.0, Verdict.SLOWER),
        (969.0, 2.0, Verdict.FASTER),
        (1000.0, 1.89, Verdict.FASTER),
    ],
)
def test_change_beyond_its_band_is_a_loss_or_a_gain(own: float, ratio: float, verdict: Verdict) -> None:
    assert judge(BEFORE, Reading(own, ratio)) is verdict


def test_own_work_where_the_baseline_has_none_is_a_loss() -> None:
    assert judge(Reading(0.0, 2.0), Reading(1.0, 2.0)) is Verdict.SLOWER
    assert judge(Reading(0.0, 2.0), Reading(0.0, 2.0)) is Verdict.SAME


def test_ratio_has_a_wider_band_under_another_interpreter() -> None:
    now = replace(BASELINE, kernels={"send": Reading(1000.0, 2.15)})
    assert verdicts(BASELINE, now) == {"send": Verdict.SLOWER}
    assert verdicts(BASELINE, replace(now, interpreter="another build")) == {"send": Verdict.SAME}
    moved = Baseline(BASELINE.environment, "another build", {"send": Reading(1000.0, 2.25)})
    assert verdicts(BASELINE, moved) == {"send": Verdict.SLOWER}
    ours = Baseline(BASELINE.environment, "another build", {"send": Reading(1031.0, 2.0)})
    assert verdicts(BASELINE, ours) == {"send": Verdict.SLOWER}


def test_new_kernel_and_missing_kernel_fail_the_gate() -> None:
    judged = verdicts(BASELINE, replace(BASELINE, kernels={"drain": BEFORE}))
    assert judged == {"drain": Verdict.NEW, "send": Verdict.GONE}
    assert all(verdict.fails for verdict in judged.values())


@pytest.mark.parametrize("trial", TRIALS)
def test_wrong_trial_is_a_blind_spot(trial: str) -> None:
    healthy = gate.readings(HEALTHY)
    assert gate.blind_spots(healthy) == []
    blind = Reading(1050.0, 2.0) if trial == "the same again" else healthy[SOUND]
    (spot,) = gate.blind_spots(healthy | {trial: blind})
    assert spot.startswith(trial)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "baseline.json"
    monkeypatch.setattr(gate, "BASELINE", path)
    return path


def _run(monkeypatch: pytest.MonkeyPatch, counts: dict[str, Count], *arguments: str) -> Result:
    monkeypatch.setattr(gate, "count_kernels", lambda: counts)
    return CliRunner().invoke(gate.main, arguments)


def test_loss_fails_the_command_until_it_is_accepted(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(monkeypatch, HEALTHY, "--accept").exit_code == 0
    assert _run(monkeypatch, HEALTHY).exit_code == 0
    slower = HEALTHY | {"encode: magic 2": Count(1040.0, 2000.0)}
    refused = _run(monkeypatch, slower)
    assert refused.exit_code == 1
    assert "SLOWER" in refused.output
    assert "without a baseline: encode: magic 2. Find out why" in refused.output
    accepted = _run(monkeypatch, slower, "--accept")
    assert accepted.exit_code == 0
    assert "+4.0%" in accepted.output  # the command shows what changed
    assert _run(monkeypatch, slower).exit_code == 0
    assert list(gate.load(baseline).kernels) == [name for name in KERNELS if name != REFERENCE]


def test_counts_of_another_compiler_are_not_compared(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(monkeypatch, HEALTHY, "--accept")
    accepted = gate.load(baseline)
    gate.save(baseline, replace(accepted, environment=accepted.environment | {"compiler": "GCC 99"}))
    refused = _run(monkeypatch, HEALTHY)
    assert refused.exit_code == 1
    assert "compiler: the baseline has 'GCC 99', here it is" in refused.output
    assert "make bench-accept" in refused.output


def test_gate_with_a_blind_spot_accepts_no_baseline(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blind = _run(monkeypatch, HEALTHY | {"a Python call more": HEALTHY[SOUND]}, "--accept")
    assert blind.exit_code == 1
    assert not baseline.exists()


def test_missing_valgrind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CallgrindError, match=r"valgrind is not installed\. Debian, Ubuntu: apt install valgrind"):
        callgrind.count_kernels()


def test_committed_baseline_has_every_kernel() -> None:
    assert gate.load(gate.BASELINE).kernels.keys() == KERNELS.keys() - {REFERENCE}


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_instructions_are_counted_once_and_as_the_callees() -> None:
    # The profile names `_a.so` in full at its first call, and by number where its own costs stand.
    profile = """\
desc: Trigger: Client Request: send: value
summary: 1111
ob=(1) /usr/lib/libpython.so
fn=(1) eval
0 1000
cob=(2) /tree/kafkabuf/_a.so
cfn=(2) send
calls=7 0
0 111
fn=(3) another
* 1
ob=(2)
fn=(2)
+3 10
cob=(1)
cfn=(1)
calls=1 0
-2 50
ob=(3) /tree/kafkabuf_other/_b.so
fn=(4) elsewhere
0 100
totals: 1111
"""
    assert parse(profile, "/tree/kafkabuf/") == ("send: value", 10, 1111)


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (b"\0GCC: (Debian 12.2.0-14+deb12u1) 12.2.0\0", "GCC 12"),
        (b"\0GCC: (GNU) 14.1.1 20240701\0", "GCC 14"),
        (b"\0GCC: (Debian 12.2.0-14) 12.2.0\0Debian clang version 16.0.6\0", "clang 16"),
        (b"\0", "unknown"),
    ],
)
def test_compiler_of_an_extension_is_recognised(section: bytes, name: str) -> None:
    assert gate.compiler(section) == name


@pytest.mark.parametrize("kernel", ALL)
def test_kernel_runs_twice(kernel: str) -> None:
    run = ALL[kernel].make()
    run(20)
    run(20)


def test_kernels_that_do_not_end_are_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callgrind, "TIME_OUT", 0.01)
    with pytest.raises(CallgrindError, match=r"did not end under callgrind within .* run `python -m bench\.kernels`"):
        callgrind._run([sys.executable, "-c", "import time; time.sleep(600)"], {})
