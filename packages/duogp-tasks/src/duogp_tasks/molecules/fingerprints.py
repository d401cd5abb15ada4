"""Fingerprints: what a model of molecules can see of them, whatever the score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from duogp_tasks.molecules.alphabet import import_rdkit

#: Columns that circular substructures are hashed to, and their radius in bonds (as in ECFP4).
COLUMNS, RADIUS = 2048, 2


def morgan_counts(smiles: Sequence[str], columns: int = COLUMNS, radius: int = RADIUS) -> NDArray[np.float64]:
    """How often each circular substructure occurs: [n, columns]; zeros for what RDKit cannot read."""
    chem, generators = import_rdkit(), import_rdkit("rdkit.Chem.rdFingerprintGenerator")
    generator = generators.GetMorganGenerator(radius=radius, fpSize=columns)
    counts = np.zeros((len(smiles), columns))
    for row, text in zip(counts, smiles, strict=True):
        if (molecule := chem.MolFromSmiles(text)) is not None:
            row[:] = generator.GetCountFingerprintAsNumPy(molecule)
    return counts
