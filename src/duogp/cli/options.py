"""Options that several commands share, and their text as Python values."""

import atexit
import csv
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

#: Beginnings of files that are no CSV.
MAGIC = {b"PAR1": ".parquet", b"ARROW1": ".arrow", b"\x1f\x8b": ".csv.gz"}

ModelFolder = Annotated[str, typer.Argument(help="Folder of a model that `duogp fit` wrote.")]
DataFile = Annotated[
    str,
    typer.Argument(
        help="CSV, TSV (also gzipped), Parquet, Arrow or Feather; 'data/*.parquet'; - is standard input."
    ),
]
Encoding = Annotated[str | None, typer.Option(help="Of a CSV file: latin-1, cp1252, … (default: utf-8).")]
Decimal = Annotated[str | None, typer.Option(help="Decimal mark of a CSV file: . or , (default: as found).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 (default: cuda if there).")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Seed = Annotated[int, typer.Option(help="Seed of all that is random.")]


def spooled(path: str) -> str:
    """The path of a table; standard input ("-") becomes a temporary file, which goes with the process."""
    if path != "-":
        return path
    folder = tempfile.mkdtemp(prefix="duogp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = sys.stdin.buffer
    head = source.read(8)
    ending = next((ending for mark, ending in MAGIC.items() if head.startswith(mark)), ".csv")
    target = Path(folder) / f"standard-input{ending}"
    with target.open("wb") as file:
        file.write(head)
        shutil.copyfileobj(source, file)
    return str(target)


def files_in(path: str) -> list[str]:
    """The files that a pattern such as "data/*.parquet" stands for; a path is itself."""
    if Path(path).exists() or not any(mark in path for mark in "*?["):
        return [path]
    from duogp.data.arrow_source import files_of

    return files_of(path)


def names_of(text: str | None) -> list[str]:
    """Names in a text: "a, b" is ["a", "b"]; a name with a comma stands in quotes."""
    if text is None or not text.strip():
        return []
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True)) if name.strip()]


def probabilities_of(text: str | None, name: str) -> list[float]:
    """Probabilities in a text: "0.05,0.5" is [0.05, 0.5], without repetitions."""
    parts = [part for part in (text or "").split(",") if part.strip()]
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if text is not None and not values:
        raise ValueError(f"{name} must be numbers between 0 and 1 with commas between, got {text!r}")
    for part, value in zip(parts, values, strict=True):
        if not 0 < value < 1:
            hint = f"; did you mean {value / 100:g}?" if 1 <= value < 100 else ""
            raise ValueError(f"{name} must lie strictly between 0 and 1, got {part.strip()}{hint}")
    return list(dict.fromkeys(values))


def settings_of(pairs: list[str] | None) -> dict[str, Any]:
    """["beta2=0.1", "ard=false", "schedule=cosine"] as keywords."""
    out: dict[str, Any] = {}
    for pair in pairs or []:
        name, sign, text = pair.partition("=")
        if not sign or not name.strip() or not text.strip():
            raise ValueError(f"--set takes name=value, got {pair!r}; for example --set learning_rate=0.01")
        out[name.strip().replace("-", "_")] = _value(text.strip())
    return out


def _value(text: str) -> Any:
    """The JSON value that a text is (in any case, and "none" for null), or the text itself."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
