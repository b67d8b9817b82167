"""CI runs every make target that the README and CONTRIBUTING name, whole or in a short form."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md")
# What stands for a target that takes too long for CI, or that needs what its machines lack: tests of its tool,
# or another target that does the same work.
SHORT_FORMS = {
    "bench-accept": "bench-gate",
    "bench-arrow": "tests/house/bench/test_claims.py",
    "bench-send": "tests/house/bench/test_claims.py",
    "docs": "docs-check",
    "format": "lint",
    "lock": "tests/house/test_setup.py",
    "sbom": "tests/house/test_wheel.py",
    "test-all": "test",
    "test-kerberos": "tests/house/test_kdc.py",
    "test-peers": "tests/house/test_peers.py",
    "test-pythons": "tests/house/test_pythons.py",
    "wheel": "test-spark-wheels",
    "wheels": "tests/house/test_wheel.py",
}


def named_targets() -> set[str]:
    pages = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    return set(re.findall(r"(?:^|`)make ([a-z-]+)", pages, re.MULTILINE))


def targets_of_ci() -> set[str]:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    return set(re.findall(r"^ *(?:check|make) ([a-z-]+)", script, re.MULTILINE))


@pytest.mark.parametrize("target", sorted(named_targets()))
def test_target_that_a_page_names_exists_and_runs_in_ci(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    short_form = SHORT_FORMS.get(target, target)
    if short_form.endswith(".py"):
        assert (ROOT / short_form).is_file()
    else:
        assert short_form in targets_of_ci()


def test_no_target_has_a_short_form_without_need() -> None:
    assert SHORT_FORMS.keys() <= named_targets() - targets_of_ci()
