"""Files that a process may be killed over: written whole or not at all, in folders locked by one process."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

#: Beginning of the names of files that are being written.
TEMPORARY = ".writing-"


def write_atomically(path: Path, content: str | bytes) -> None:
    """The whole file or none: a temporary name, the disk, then its own name; a link is replaced."""
    temporary = path.with_name(TEMPORARY + secrets.token_hex(4))
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def append_whole(path: Path, data: bytes) -> None:
    """Add data to a file, on the disk when this returns; where that fails the file stays as it was."""
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                file.truncate(end)
            raise


@contextlib.contextmanager
def clear_errors(path: Path, told: str) -> Iterator[None]:
    """Errors of the file system that name the path, and say what is safe and what to do."""
    try:
        yield
    except OSError as error:
        words = f"{path} could not be written: {error.strerror or error}. {told}"
        raise OSError(error.errno, words) from error


def sync_folder(folder: Path) -> None:
    """The names in a folder on the disk too, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Delete what processes that were killed while they wrote have left; call it with the folder locked."""
    for leftover in folder.glob(TEMPORARY + "*"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def lock(path: Path) -> IO[bytes] | None:
    """A file, locked until it is closed or the process ends; None where another process has it.

    Where the system or the file system has no locks, just the file.
    """
    file = path.open("ab")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            file.close()
            return None
    return file
