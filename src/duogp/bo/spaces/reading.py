"""Search spaces from arguments of a command line and from TOML files."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from duogp.bo.spaces.space import Space
from duogp.bo.spaces.text import FORMS, with_types


def space_of_arguments(parameters: list[str], constraints: list[str] | None = None) -> Space:
    """The space of ``name=real(0,1)`` and so on, as given on a command line."""
    found: dict[str, Any] = {}
    for argument in parameters:
        name, sign, text = argument.partition("=")
        if not sign or not name.strip() or not text.strip():
            raise ValueError(f"--param takes name={FORMS}, got {argument!r}")
        if name.strip() in found:
            raise ValueError(f"--param: {name.strip()!r} is given twice")
        found[name.strip()] = text
    return Space(with_types(found), constraints or ())


def read_space(path: str | os.PathLike[str]) -> Space:
    """The space of a TOML file: a table `parameters` and, before it, a list `constraints`."""
    with open(Path(path).expanduser(), "rb") as file:
        try:
            content = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None
    if unknown := sorted(content.keys() - {"parameters", "constraints"}):
        raise ValueError(
            f"{os.fspath(path)}: unknown {', '.join(unknown)}; expected `parameters` and `constraints`"
        )
    if not isinstance(content.get("parameters"), dict):
        raise ValueError(f"{os.fspath(path)}: there is no table `parameters`")
    return Space(with_types(content["parameters"]), content.get("constraints", ()))
