"""Benchmark files from a folder or an HTTP server into the data folder, each checked before it is kept."""

from __future__ import annotations

import os
import secrets
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, urlsplit

from duogp.data.benchmark import ENVIRONMENT, data_root
from duogp.data.registry import Entry, problem
from duogp.disk import TEMPORARY

#: A file may be so much larger than the registered one (other compression), and a download wait so long.
SLACK, SECONDS = 4, 60.0
BLOCK = 1 << 20


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder for benchmark files: the one given, or that of DUOGP_DATA."""
    if given is not None:
        return Path(given)
    root = data_root()
    if root is None:
        raise ValueError(f"where to? Give --to FOLDER, or set {ENVIRONMENT}: export {ENVIRONMENT}=<folder>")
    return root


def is_address(source: str) -> bool:
    """Whether a source is an HTTP address; other schemes are errors."""
    scheme = urlsplit(source).scheme
    if scheme in ("http", "https"):
        return True
    if "://" in source:
        raise ValueError(f"files come from a folder, http:// or https://, got {source!r}")
    return False


def fetch(entry: Entry, source: str | os.PathLike[str], folder: Path) -> Path:
    """Copy the file of an entry from ``source``, laid out as the data folder is, and check it.

    The file gets its name when its checksum is right; a wrong one is an error and leaves no trace.
    """
    place = folder / entry.path
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{place.name}")
    try:
        if is_address(os.fspath(source)):
            address = f"{os.fspath(source).rstrip('/')}/{quote(entry.path)}"
            _download(address, temporary, SLACK * entry.size + BLOCK)
            where = address
        else:
            where = str(Path(source) / entry.path)
            _copy(Path(source), entry, temporary)
        wrong = problem(temporary, entry)
        if wrong is not None:
            raise ValueError(f"{where} {wrong}; nothing is kept")
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)
    return place


def _copy(source: Path, entry: Entry, target: Path) -> None:
    path = source / entry.path
    if not source.is_dir():
        raise FileNotFoundError(f"there is no folder {str(source)!r}")
    if not path.is_file():
        found = sum(1 for _ in source.glob("*/*"))
        what = f"it holds {found:,} other files" if found else "it is empty"
        raise FileNotFoundError(f"{str(source)!r} has no {entry.path}: {what}")
    shutil.copyfile(path, target)


def _download(address: str, target: Path, most: int) -> None:
    request = urllib.request.Request(address, headers={"User-Agent": "duogp"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer, target.open("xb") as file:
            size = 0
            while block := answer.read(BLOCK):
                size += len(block)
                if size > most:
                    raise ValueError(f"{address} is larger than {most:,} bytes: it is not the file expected")
                file.write(block)
    except urllib.error.HTTPError as error:
        raise FileNotFoundError(f"{address}: the server answers {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise ConnectionError(f"{address} cannot be reached: {error.reason}") from None
