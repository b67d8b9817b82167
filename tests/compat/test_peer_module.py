"""The other client's module, which an error needs: a thread of ours imports it once."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from kafkabuf.compat.shared import errors as _errors
from kafkabuf.compat.shared.errors import peer_module


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module `peer_of_a_test`, which is not loaded."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_errors, "_loading", _errors._loading.__wrapped__)
    monkeypatch.delitem(sys.modules, "peer_of_a_test", raising=False)
    return tmp_path / "peer_of_a_test.py"


def test_peer_is_imported_by_another_thread(peer: Path) -> None:
    peer.write_text("import threading\nthread = threading.current_thread()\n")
    module = peer_module("peer_of_a_test")
    assert module is not None
    assert module.thread is not threading.current_thread()


def test_peer_that_is_not_installed_is_none() -> None:
    assert peer_module("there_is_no_such_client") is None
    assert peer_module("there_is_no_such_client") is None


def test_peer_is_imported_where_no_thread_can_start(peer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    peer.write_text("value = 3\n")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    module = peer_module("peer_of_a_test")
    assert module is not None
    assert module.value == 3


def test_peer_that_breaks_raises_its_own_error(peer: Path) -> None:
    peer.write_text("raise ValueError('broken')\n")
    with pytest.raises(ValueError, match="broken"):
        peer_module("peer_of_a_test")
