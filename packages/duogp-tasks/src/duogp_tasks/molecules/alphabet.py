"""From SMILES to rows of small integers and back, by way of SELFIES.

    SMILES -> canonical SMILES (RDKit) -> SELFIES symbols, e.g. [C][C][=Branch1] -> ids 3, 3, 17

Every sequence of SELFIES symbols is a molecule, so whatever a decoder emits is valid. Ids 0, 1 and 2 are no
symbols: PAD fills a row behind its end, START opens the decoder's input, END closes a molecule. A molecule
has one writing only: that of its canonical SMILES.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAD, START, END = 0, 1, 2
SPECIAL = 3  # the first id of a symbol


@dataclass(frozen=True)
class Alphabet:
    """The symbols a model knows; a symbol's id is its place plus three."""

    symbols: tuple[str, ...]
    ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.symbols) > 256 - SPECIAL:
            raise ValueError(f"symbols: ids must fit into one byte, so at most 253; got {len(self.symbols)}")
        object.__setattr__(self, "ids", {symbol: i + SPECIAL for i, symbol in enumerate(self.symbols)})

    @classmethod
    def of(cls, molecules: Iterable[Sequence[str]]) -> Alphabet:
        """All symbols that occur, in alphabetical order."""
        return cls(tuple(sorted({symbol for molecule in molecules for symbol in molecule})))

    @property
    def size(self) -> int:
        """Ids in use, the special ones included."""
        return SPECIAL + len(self.symbols)

    def encode(self, molecule: Sequence[str]) -> NDArray[np.uint8]:
        """The ids of one molecule, without START and END."""
        unknown = sorted({symbol for symbol in molecule if symbol not in self.ids})
        if unknown:
            raise ValueError(f"molecule: symbols {', '.join(unknown)} are not in the alphabet of the model")
        return np.array([self.ids[symbol] for symbol in molecule], dtype=np.uint8)

    def decode(self, row: Iterable[int]) -> list[str]:
        """The symbols up to the first END; PAD and START are skipped."""
        molecule = []
        for i in row:
            if i == END:
                break
            if i >= SPECIAL:
                molecule.append(self.symbols[int(i) - SPECIAL])
        return molecule


def smiles_to_symbols(smiles: str) -> list[str]:
    """The SELFIES symbols of the canonical SMILES; a ValueError where RDKit or SELFIES cannot read it."""
    selfies = import_selfies()
    canonical = canonical_smiles(smiles)
    if canonical is None:
        raise ValueError(f"smiles: RDKit cannot read {smiles!r}")
    try:
        return list(selfies.split_selfies(selfies.encoder(canonical)))
    except selfies.EncoderError as error:
        raise ValueError(f"smiles: {smiles!r} has no SELFIES ({error})") from error


def symbols_to_smiles(molecule: Sequence[str]) -> str:
    """Canonical SMILES; the empty string where nothing is left or RDKit does not accept the molecule."""
    return canonical_smiles(import_selfies().decoder("".join(molecule))) or ""


def canonical_smiles(smiles: str) -> str | None:
    """RDKit's canonical writing, None where it cannot read the input. It reads "" as the empty molecule."""
    chem = import_rdkit()
    molecule = chem.MolFromSmiles(smiles)
    return None if molecule is None else chem.MolToSmiles(molecule)


def import_rdkit(module: str = "rdkit.Chem") -> Any:
    """A module of RDKit, or an error that names the extra."""
    chem = _optional(module)
    _optional("rdkit.RDLogger").DisableLog("rdApp.*")  # unreadable molecules are handled here
    return chem


def import_selfies() -> Any:
    """The selfies package, or an error that names the extra."""
    return _optional("selfies")


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError("molecules need RDKit and SELFIES: pip install 'duogp-tasks[molecules]'") from error
