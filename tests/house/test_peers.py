"""tools/peers.py and tools/every_peer.py: what the run of other clients' own tests counts."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import subprocess
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import every_peer, peers
from tools.peers import FAILED, PASSED, Outcome, Peer

PEER = Peer("some-client", "", "rigs.some_tests")
INSIDE = "looks into the client"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def no_broker(*, embedded: bool) -> Iterator[str]:
        yield "nowhere:1"

    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.setattr(peers, "broker", no_broker)


@pytest.mark.parametrize(
    ("ours", "status", "failed", "left_out"),
    [
        ({"t.a": PASSED, "t.b": PASSED}, 0, [], {}),
        ({"t.a": PASSED, "t.b": INSIDE}, 0, [], {"t.b": INSIDE}),
        ({"t.a": PASSED}, 0, [], {"t.b": "rigs.some_tests leaves it out"}),
        ({"t.a": PASSED, "t.b": FAILED}, 1, ["t.b"], {}),
        ({"t.a": INSIDE, "t.b": INSIDE}, 1, [], {"t.a": INSIDE, "t.b": INSIDE}),
    ],
)
def test_run_fails_where_a_test_passes_with_the_client_only(
    monkeypatch: pytest.MonkeyPatch, ours: dict[str, str], status: int, failed: list[str], left_out: dict[str, str]
) -> None:
    runs = iter([{"t.a": PASSED, "t.b": PASSED, "t.c": FAILED, "t.d": "no codec"}, ours | {"t.c": FAILED}])
    monkeypatch.setattr(peers, "run_tests", lambda *arguments: next(runs))
    assert peers.compared(PEER, Path(), (), embedded=True, options=[]) == status
    outcome = every_peer.read_outcome(PEER.package)
    assert outcome is not None
    assert (outcome.theirs, outcome.failed, outcome.left_out) == (2, failed, left_out)
    assert outcome.ours == sum(state == PASSED for state in ours.values())


@pytest.mark.parametrize(
    ("case", "state"),
    [
        ("<testcase/>", PASSED),
        ("<testcase><failure/></testcase>", FAILED),
        ("<testcase><error/></testcase>", FAILED),
        ("<testcase><skipped message='no codec'/></testcase>", "no codec"),
    ],
)
def test_state_of_a_test_is_that_of_the_report(case: str, state: str) -> None:
    assert peers.state_of(ET.fromstring(case)) == state


def test_table_names_each_peer_and_the_reason_for_each_test_that_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = Outcome(3, 1, ["t.C.test_c"], {"t.C.test_b": INSIDE})
    every_peer.print_table({"some-client": outcome, "another": None})
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines() if line.startswith(("some-client  ", "another"))] == [
        ["some-client", "3", "1", "1", "1"],
        ["another", "did", "not", "run"],
    ]
    assert f"some-client, left out: {INSIDE}: test_b" in printed
    assert "some-client, fails with kafkabuf only: t.C.test_c" in printed


def test_every_face_has_a_tool() -> None:
    assert {"aiokafka", "kafka-python"} <= {*map(every_peer.peer_of, every_peer.TOOLS)}


# ---- what runs is what the tree names --------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    named = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *named, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_tests_of_a_client_are_those_of_the_commit_though_its_tag_was_moved(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet")
    commits = []
    for text in ("good", "evil"):
        (repository / "test_it.py").write_text(text)
        git(repository, "add", ".")
        git(repository, "commit", "--quiet", "-m", text)
        git(repository, "tag", "--force", "v1.0")
        commits.append(git(repository, "rev-parse", "HEAD"))
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    folder = peers.clone(PEER, str(repository), commits[0])
    assert (folder / "test_it.py").read_text() == "good"
    assert peers.clone(PEER, "nowhere", commits[0]) == folder, "once is enough"
    for name in ("v1.0", "HEAD", commits[0][:12], ""):
        with pytest.raises(AssertionError, match="a commit is needed"):
            peers.clone(PEER, str(repository), name)


@pytest.mark.parametrize("tool", every_peer.TOOLS, ids=lambda path: path.stem)
def test_every_client_is_pinned(tool: Path) -> None:
    peer = importlib.import_module(f"tools.{tool.stem}").PEER
    assert bool(peer.commit) == bool(peer.repository)
    found = peers.locked(peer.package)
    assert found.entry.startswith(f"{peer.package}=={found.release} \\\n    --hash=sha256:")


def test_package_of_another_hash_is_not_installed(tmp_path: Path) -> None:
    wheel, target = tmp_path / "some_client-1.0-py3-none-any.whl", tmp_path / "target"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some_client.py", "")
        archive.writestr(
            "some_client-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-client\nVersion: 1.0\n"
        )
        archive.writestr("some_client-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nTag: py3-none-any\n")
        archive.writestr("some_client-1.0.dist-info/RECORD", "")
    options = "--no-deps", "--no-index", "--find-links", str(tmp_path), "--target", str(target)
    with pytest.raises(subprocess.CalledProcessError):
        peers.pip("install", f"some-client==1.0 --hash=sha256:{'0' * 64}", *options)
    assert not target.exists()
    peers.pip("install", f"some-client==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}", *options)
    assert (target / "some_client.py").exists()
