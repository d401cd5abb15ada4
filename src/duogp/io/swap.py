"""A folder that takes the place of another in one operation of the file system, where that has one (Linux).

A reader finds the old folder or the new one; of two writers the later stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path


def put(fresh: Path, target: Path, own: Collection[str]) -> None:
    """Move a complete folder to its place; the former one is removed afterwards, without its other files.

    ``own``: names that belong to a model. Others, such as figures and notes, go on to the new folder.
    They are in both folders when these change places: a process that is killed then has lost none.
    """
    if not target.exists():
        try:
            os.rename(fresh, target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another writer was faster
                raise
    _link_others(target, fresh, own)
    if _exchange(fresh, target):
        _keep_others(fresh, target, own)  # those that are new; what is left of it the caller removes
        return
    former = beside(target, "old")
    os.rename(target, former)
    try:
        os.rename(fresh, target)
    except OSError:
        os.rename(former, target)
        raise
    _keep_others(former, target, own)
    shutil.rmtree(former, ignore_errors=True)


def _others(folder: Path, missing_in: Path, own: Collection[str]) -> Iterator[tuple[Path, Path]]:
    """Files and folders that are none of a model's (figures, notes), and their places in another folder."""
    for other in folder.iterdir():
        if other.name not in own and not (missing_in / other.name).exists():
            yield other, missing_in / other.name


def _link_others(former: Path, fresh: Path, own: Collection[str]) -> None:
    """Give a folder that is not yet in its place the other files of the former one; both have them then."""
    with contextlib.suppress(FileNotFoundError):  # another writer has taken the model's place
        for other, place in _others(former, fresh, own):
            if other.is_dir() and not other.is_symlink():
                shutil.copytree(other, place, symlinks=True, copy_function=_link)
            else:
                _link(other, place)


def _link(source: str | os.PathLike[str], place: str | os.PathLike[str]) -> None:
    """A second name of a file; a copy where the file system has none."""
    try:
        os.link(source, place, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, place, follow_symlinks=False)


def _keep_others(former: Path, target: Path, own: Collection[str]) -> None:
    """Move other files that the new folder lacks to it."""
    for other, place in _others(former, target, own):
        with contextlib.suppress(FileNotFoundError):  # another writer has taken the model's place
            os.rename(other, place)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change their names in one operation; False where the system cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux, or an old one
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return int(call(here, os.fsencode(one), here, os.fsencode(other), exchange)) == 0


def beside(target: Path, what: str) -> Path:
    """A hidden name of its own in the same folder, so that moving it is one operation of the file system."""
    return target.with_name(f".{target.name}.{what}-{secrets.token_hex(4)}")


def write_through(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
