"""One writer a run directory: ``.NAME.lock`` beside it (``.lock`` in it, where the directory above cannot be written),
with who writes, where and since when.

Which of the two places it is depends on the rights of who writes, so each takes its own lock first and then looks at
the other place: of two that have one each, at least one sees the other and gives up.

The lock is the system's own (flock), which ends with its process, however that ends; the file says whose it is.  A
file without a lock is left by a process that was killed: on this host the next writer takes it over and says so.  On
another host its process may still run where the file system does not tell (NFS, Lustre): then a person removes it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from core.contracts import UserError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # of file systems that have none
_held: dict[Path, int] = {}  # {lock file: descriptor} of this process


def lock_of(path: Path) -> Path:
    """The file that says who writes a run directory, where it is this user who does."""
    return _places(path)[0]


def _places(path: Path) -> tuple[Path, Path]:
    """This user's place for the lock, and the place of those who have other rights on the directory above."""
    path = Path(path).resolve()
    beside, inside = path.with_name(f".{path.name}.lock"), path / ".lock"
    own_inside = path.is_dir() and not os.access(path.parent, os.W_OK)
    return (inside, beside) if own_inside else (beside, inside)


def take(path: Path) -> None:
    """Become the one writer of a run directory until ``release``, or the end of the process.

    Raises UserError if another one writes it, OSError if the place cannot be written.  In the process that has it
    already nothing happens.
    """
    lock, other = _places(path)
    if any(place in _held and _is_own(place, _held[place]) for place in (lock, other)):
        return
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except PermissionError:
            there = lock.exists()
            _look(lock, path)
            if there and not lock.exists():  # another user's, who died
                continue
            raise
        try:
            _claim(descriptor, lock, path, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_own(lock, descriptor):
            break
        os.close(descriptor)  # its owner removed the file between the two steps: another one is there, or none
    me = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "command": " ".join(sys.argv)}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(me).encode(), 0)
    if not _held:
        atexit.register(_release_all)
    _held[lock] = descriptor
    try:
        _look(other, path)
    except BaseException:
        _release(lock)
        raise


def release(path: Path) -> None:
    """Let others write; nothing where this process is not the writer."""
    for lock in _places(path):  # rights may have changed since
        _release(lock)


def holder(path: Path) -> str:
    """Which other process writes a run directory now, for those who wanted to read it; '' where none is seen to."""
    for lock in (place for place in _places(path) if place not in _held):
        with contextlib.suppress(OSError):
            descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if (owner := _owner(descriptor)) and _is_locked(descriptor, owner, fcntl.LOCK_SH):
                    return _named(owner)
            finally:
                os.close(descriptor)
    return ""


def _is_locked(descriptor: int, owner: dict[str, Any], how: int) -> bool:
    """Whether the writer that a lock file names still has it (False where the file system does not tell); where not,
    the system's lock is taken so."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in NO_LOCKS or (_is_here(owner) and _runs(owner))
    return False


def _is_here(owner: dict[str, Any]) -> bool:
    return bool(owner.get("host") == socket.gethostname())


def _release(lock: Path) -> None:
    descriptor = _held.pop(lock, None)
    if descriptor is not None:
        if _is_own(lock, descriptor) and _owner(descriptor).get("pid") == os.getpid():  # not in a fork
            lock.unlink()
        os.close(descriptor)


def _release_all() -> None:
    for lock in list(_held):
        with contextlib.suppress(OSError):
            _release(lock)


def _look(lock: Path, path: Path) -> None:
    """At a lock that is another user's to take: UserError where it is taken, or may be; what a dead one left goes."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError:
        raise UserError(f"{path} may be being written by a user whose lock you may not read; choose another --out, or, "
                        f"if nobody writes there, have {lock} removed") from None  # fmt: skip
    try:
        _claim(descriptor, lock, path, fcntl.LOCK_SH)  # for which reading is enough, also on NFS
        with contextlib.suppress(OSError):
            if _is_own(lock, descriptor):
                lock.unlink()
    finally:
        os.close(descriptor)


def _claim(descriptor: int, lock: Path, path: Path, how: int) -> None:
    """Take the system's lock; UserError where somebody has it, or may have."""
    owner = _owner(descriptor)
    here, who = _is_here(owner), _named(owner)
    if _is_locked(descriptor, owner, how):
        who += ", or by what it started" if here and not _runs(owner) else ""
        raise UserError(f"{path} is being written by {who}; wait for it, end it, or choose another --out")
    if owner and not here:
        raise UserError(f"{path} was being written by {who}, which cannot be seen from here; if it no longer runs, "
                        f"remove {lock}")  # fmt: skip
    if owner:
        print(f"note: {path} was being written by {who}, which no longer runs: going on in its place", file=sys.stderr)


def _is_own(lock: Path, descriptor: int) -> bool:
    """Whether the file of this name is the one that is open."""
    try:
        return os.path.samestat(os.stat(lock), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> dict[str, Any]:
    """What a lock file says; {} of a new one, and of one whose writing was cut."""
    try:
        said = json.loads(os.pread(descriptor, 1 << 16, 0))
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _runs(owner: dict[str, Any]) -> bool:
    try:
        os.kill(int(owner.get("pid", 0)), 0)
    except (ProcessLookupError, ValueError, TypeError):
        return False
    except PermissionError:
        pass
    return True


def _named(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid', 'unknown')} on {owner.get('host', 'an unknown host')}{_age(owner)}"


def _age(owner: dict[str, Any]) -> str:
    since = owner.get("since")
    if not isinstance(since, float):
        return ""
    minutes = max(0.0, time.time() - since) / 60  # a clock may go back
    return f" for {minutes:.0f} min" if minutes < 120 else f" for {minutes / 60:.0f} h"
