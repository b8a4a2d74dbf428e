"""One writer a run directory, whoever dies."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import lock
from core.artefacts import aside_of, new_run, read_manifest, verify
from core.contracts import UserError

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import os, sys, time
from pathlib import Path
from core import lock
path, user, mask = sys.argv[1:]
os.umask(int(mask, 8))
if int(user) != os.geteuid():
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
lock.take(Path(path))
"""
NOBODY = 65534


def taker(path: Path, more: str = "", user: int | None = None, mask: str = "022") -> list[str]:
    """The command of another process that writes ``path``, of this or of another user, and what it does then."""
    return [sys.executable, "-c", HOLD + more, str(path), str(os.geteuid() if user is None else user), mask]


def holder(path: Path, user: int | None = None, mask: str = "022") -> subprocess.Popen[str]:
    """Such a process, once it has begun."""
    words = taker(path, "print('ready', flush=True)\ntime.sleep(600)", user, mask)
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_a_directory_that_another_process_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r"
    other = holder(path)
    try:
        here = f"process {other.pid} on {socket.gethostname()} for 0 min"
        for overwrite in (False, True):
            with (
                pytest.raises(UserError, match=f"{path} is being written by {here}; wait for it, end it, or choose"),
                new_run(path, "train", {}, overwrite=overwrite),
            ):
                raise AssertionError("the block must not run")
        assert not path.exists()
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    with new_run(path, "train", {}):
        said = capsys.readouterr().err
        assert said == f"note: {path} was being written by {here}, which no longer runs: going on in its place\n"
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_who_reads_what_is_being_written_is_told_to_wait(tmp_path: Path) -> None:
    """Half-written is what a dead writer leaves, not what a live one is at."""
    path = tmp_path / "r"
    path.mkdir()
    other = holder(path)
    try:
        with pytest.raises(UserError, match=f"r is being written by process {other.pid} on .*for 0 min; wait for it$"):
            read_manifest(path)
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert lock.lock_of(path).exists()
    with pytest.raises(UserError, match="is half-written"):
        read_manifest(path)


def test_who_began_a_run_is_not_told_to_wait_for_itself(tmp_path: Path) -> None:
    """A training that stopped keeps its place in its own process, where nobody is left to wait for."""
    path = tmp_path / "r"
    path.mkdir()
    lock.take(path)
    with pytest.raises(UserError, match="is half-written"):
        read_manifest(path)
    lock.release(path)


def test_a_process_that_ends_leaves_no_lock(tmp_path: Path) -> None:
    subprocess.run(taker(tmp_path / "r"), cwd=ROOT, check=True)
    assert not list(tmp_path.iterdir())


def test_a_writer_on_another_host(tmp_path: Path) -> None:
    path = tmp_path / "r"
    said = {"pid": 1, "host": "elsewhere", "since": time.time() - 3 * 3600}
    lock.lock_of(path).write_text(json.dumps(said))
    want = f"process 1 on elsewhere for 3 h, .*if it no longer runs, remove {lock.lock_of(path)}"
    with pytest.raises(UserError, match=want):
        lock.take(path)
    lock.lock_of(path).unlink()
    lock.take(path)
    lock.release(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": "x"}'])
def test_a_lock_that_was_cut_while_it_was_written(text: str, tmp_path: Path) -> None:
    owner = lock.lock_of(tmp_path / "r")
    owner.write_text(text)
    if text == '{"pid": "x"}':
        with pytest.raises(UserError, match="an unknown host"):
            lock.take(tmp_path / "r")
        return
    lock.take(tmp_path / "r")
    assert json.loads(owner.read_text())["pid"] == os.getpid()
    lock.take(tmp_path / "r")  # by the process that has it
    lock.release(tmp_path / "r")
    lock.release(tmp_path / "r")
    assert not owner.exists()


def test_a_clock_that_went_back(tmp_path: Path) -> None:
    """An owner of the future has an age of nothing."""
    said = {"pid": 1, "host": "elsewhere", "since": time.time() + 1e6}
    lock.lock_of(tmp_path / "r").write_text(json.dumps(said))
    with pytest.raises(UserError, match="on elsewhere for 0 min"):
        lock.take(tmp_path / "r")


def test_the_same_command_begins_anew_where_it_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another configuration, another stage or a whole run is left alone."""
    path, config = tmp_path / "r", {"seed": 1, "overwrite": False}
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom core.artefacts import new_run\n"
        "with new_run(Path(sys.argv[1]), 'train', {'seed': 1, 'overwrite': False}) as run:\n"
        "    (run.path / 'half').write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT)
    for stage, other in (("train", {**config, "seed": 2}), ("record", config)):
        with pytest.raises(UserError, match="already holds data"), new_run(path, stage, other):
            raise AssertionError("the block must not run")
        assert (path / "half").exists()
    for others in ("[]", "{}", "{", '{"config": {"seed": 1}}'):  # a file of that name that no stage wrote
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / "config.json").write_text(others)
        with pytest.raises(UserError, match="already holds data"), new_run(tmp_path / "mine", "train", config):
            raise AssertionError("the block must not run")
    with new_run(path, "train", {**config, "resume": False}) as run:  # how a command begins is not what it makes
        assert not (run.path / "half").exists()
    assert "left half-written by this command: it is made anew" in capsys.readouterr().err
    with pytest.raises(UserError, match="already holds data"), new_run(path, "train", config):
        raise AssertionError("the block must not run")


def test_what_a_killed_overwrite_leaves_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with new_run(path, "train", {"seed": 1}):
        pass
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom core.artefacts import new_run\n"
        "with new_run(Path(sys.argv[1]), 'train', {}, overwrite=True):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT)
    back = (
        f"the earlier run is whole in {aside_of(path)}, and comes back by: rm -rf {path} && mv {aside_of(path)} {path}"
    )
    with pytest.raises(UserError, match=f"half-written .*{back}"):
        read_manifest(path)
    with pytest.raises(UserError, match=f"already holds data; .*{back}"), new_run(path, "train", {}):
        raise AssertionError("the block must not run")
    subprocess.run(f"rm -rf {path} && mv {aside_of(path)} {path}", shell=True, check=True)
    assert read_manifest(path)["seed"] == 1


def test_a_link_is_the_directory_that_it_leads_to(tmp_path: Path) -> None:
    """Else an overwrite moved the link away, under a lock beside something else, and could not be overwritten again."""
    (tmp_path / "disk").mkdir()
    link, there = tmp_path / "runs" / "link", tmp_path / "disk" / "real"
    link.parent.mkdir()
    link.symlink_to(there)  # to nothing yet
    for text in ("first", "second", "third"):
        with new_run(link, "train", {}, overwrite=text != "first") as run:
            (run.path / "a").write_text(text)
            assert lock.lock_of(link).exists()
        assert link.is_symlink() and (there / "a").read_text() == text and verify(link) == []
    assert sorted(p.name for p in tmp_path.rglob(".*")) == []
    assert aside_of(link) == aside_of(there)


def test_where_the_directory_above_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mounted disk that is written itself: the lock is in it, and no part of what it holds."""
    path = tmp_path / "mounted"
    path.mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with new_run(path, "train", {}):
        assert (path / ".lock").exists() and not list(tmp_path.glob(".*"))
    assert sorted(p.name for p in path.iterdir()) == ["config.json", "manifest.json"]


# Two users


@pytest.fixture
def shared() -> Iterator[Path]:
    """A run directory that all may write, in one that only root may; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as above:
        os.chmod(above, 0o755)
        path = Path(above).resolve() / "r"
        path.mkdir()
        path.chmod(0o777)
        yield path


def refused(path: Path, user: int) -> str:
    """What a user is told who wants to write where another one does."""
    found = subprocess.run(taker(path, user=user), cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 1, "two write one directory"
    return found.stderr.splitlines()[-1]


ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@ROOT_ALONE
@pytest.mark.parametrize("users", [(0, NOBODY), (NOBODY, 0)])
def test_users_of_other_rights_see_each_other_s_lock(users: tuple[int, int], shared: Path) -> None:
    """One locks beside the directory, the other, who may not write there, in it."""
    first, second = users
    other = holder(shared, first)
    own = shared.with_name(".r.lock") if first == 0 else shared / ".lock"
    before = own.read_bytes()
    try:
        said = refused(shared, second)
        assert re.search(
            f"{shared} is being written by process {other.pid} on {socket.gethostname()} for [0-9]+ min", said
        )
        assert own.read_bytes() == before
    finally:
        other.kill()
        other.communicate()
    took_over = subprocess.run(taker(shared, user=second), cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"process {other.pid} on {socket.gethostname()}" in took_over.stderr
    # What nobody may not remove stays, as a file that no one has locked.
    assert [*shared.parent.rglob(".*lock")] == ([own] if first == 0 else [])
    lock.take(shared)
    lock.release(shared)
    assert not [*shared.parent.rglob(".*lock")]


@ROOT_ALONE
def test_a_lock_that_may_not_be_read_is_named(shared: Path) -> None:
    other = holder(shared, 0, mask="077")
    try:
        named = f"may not read; choose another --out, or, if nobody writes there, have {shared.with_name('.r.lock')} "
        assert named in refused(shared, NOBODY)
        assert not (shared / ".lock").exists()
    finally:
        other.kill()
        other.communicate()


@ROOT_ALONE
def test_users_who_lock_in_the_same_place(shared: Path) -> None:
    """The file is the other's, so that opening it to write is refused; it says who has it none the less."""
    shared.parent.chmod(0o777)
    other = holder(shared, 0)
    try:
        assert f"is being written by process {other.pid} on " in refused(shared, NOBODY)
    finally:
        other.kill()
        other.communicate()
    took_over = subprocess.run(taker(shared, user=NOBODY), cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"process {other.pid} on {socket.gethostname()}" in took_over.stderr
    assert not [*shared.parent.rglob(".*lock")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_rights_that_change_while_a_directory_is_written(tmp_path: Path) -> None:
    """As two users of other rights, one after the other."""
    path = tmp_path / "r"
    path.mkdir()
    tmp_path.chmod(0o500)
    other = holder(path)
    tmp_path.chmod(0o700)
    try:
        with pytest.raises(UserError, match=f"is being written by process {other.pid} on "):
            lock.take(path)
        assert (path / ".lock").exists() and not list(tmp_path.glob(".*"))
    finally:
        other.kill()
        other.communicate()


def test_the_process_that_has_the_lock_keeps_it_where_its_rights_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r"
    path.mkdir()
    lock.take(path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    lock.take(path)
    assert not (path / ".lock").exists()
    lock.release(path)
    assert not [*tmp_path.rglob(".*")]
