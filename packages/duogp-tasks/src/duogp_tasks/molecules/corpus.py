"""A corpus of molecules as one compressed array file: what the training reads (numpy only).

tokens   uint8, all molecules end to end, without START and END
lengths  uint8, one per molecule
split    int8, 0 train, 1 validation, 2 test
symbols  the alphabet
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duogp_tasks.molecules.alphabet import PAD, Alphabet, smiles_to_symbols

TRAIN, VALIDATION, TEST = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Corpus:
    """Molecules as padded rows of ids."""

    alphabet: Alphabet
    rows: NDArray[np.uint8]  # [n, longest], PAD behind the end
    lengths: NDArray[np.int64]  # [n]
    split: NDArray[np.int8]  # [n]

    @property
    def longest(self) -> int:
        return self.rows.shape[1]

    def part(self, which: int) -> NDArray[np.uint8]:
        """The rows of one part of the split."""
        return self.rows[self.split == which]


def prepare(smiles: Path, split: Path, output: Path, workers: int = 2) -> None:
    """Write the corpus of a (gzipped) file of SMILES, one per line, and of a split file with array `split`.

    Molecules without SELFIES are left out. What occurs twice is kept once, in training before validation
    before test, so that no held-out molecule is a training molecule written differently.
    """
    text = gzip.decompress(smiles.read_bytes()) if smiles.suffix == ".gz" else smiles.read_bytes()
    molecules = text.decode().split()
    with np.load(split, allow_pickle=False) as archive:
        parts = archive["split"].astype(np.int8)
    if len(parts) != len(molecules):
        raise ValueError(f"split: {len(parts)} entries for {len(molecules)} molecules")
    with Pool(workers) as pool:
        written = pool.map(_symbols_or_none, molecules, chunksize=500)

    seen: set[str] = set()
    kept: list[int] = []
    for i in np.argsort(parts, kind="stable"):  # training first: it keeps what occurs twice
        symbols = written[i]
        if symbols is None or "".join(symbols) in seen:
            continue
        seen.add("".join(symbols))
        kept.append(int(i))
    kept.sort()
    sequences = [symbols for i in kept if (symbols := written[i]) is not None]
    alphabet = Alphabet.of(sequences)
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        output,
        tokens=np.concatenate([alphabet.encode(symbols) for symbols in sequences]),
        lengths=np.array([len(symbols) for symbols in sequences], dtype=np.uint8),
        split=parts[kept],
        symbols=np.array(alphabet.symbols),
    )


def load(path: Path) -> Corpus:
    """Read what `prepare` wrote."""
    with np.load(path, allow_pickle=False) as archive:
        tokens, lengths = archive["tokens"], archive["lengths"].astype(np.int64)
        split = archive["split"]
        alphabet = Alphabet(tuple(str(symbol) for symbol in archive["symbols"]))
    rows = np.full((len(lengths), int(lengths.max())), PAD, dtype=np.uint8)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = tokens
    return Corpus(alphabet, rows, lengths, split)


def _symbols_or_none(smiles: str) -> list[str] | None:
    try:
        return smiles_to_symbols(smiles)
    except ValueError:
        return None
