"""The workflows run only what a commit names: a tag or a branch of an action can be moved to other code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).parents[2] / ".github" / "workflows").glob("*.yml"))
_USES = re.compile(r"^\s*(?:- )?uses:\s*(.*)$", re.MULTILINE)
_PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_commit_and_names_its_release(workflow: Path) -> None:
    actions = _USES.findall(workflow.read_text())
    assert actions
    assert [action for action in actions if _PINNED.fullmatch(action) is None] == []


def test_an_action_has_one_commit_in_all_workflows() -> None:
    pins: dict[str, set[str]] = {}
    for workflow in WORKFLOWS:
        for action in _USES.findall(workflow.read_text()):
            pins.setdefault(action.partition("@")[0], set()).add(action)
    assert {name: found for name, found in pins.items() if len(found) > 1} == {}
