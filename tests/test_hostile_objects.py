"""What tests/hostile_objects.py tries never ends the process."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

from kafkabuf.append._bulk import Segment
from kafkabuf.batches._batch import Batch, RecordFuture
from tests.producer_support import Rig


def test_objects_made_without_init_and_arguments_that_are_none_raise() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.hostile_objects"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", [Batch, RecordFuture, Segment])
def test_what_only_we_make_is_made_by_nobody_else(kind: Any) -> None:
    for make in (lambda: kind.__new__(kind), lambda: object.__new__(kind), lambda: copy.copy(Rig().send())):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError):
        pickle.dumps(Rig().send())
