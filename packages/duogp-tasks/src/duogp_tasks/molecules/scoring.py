"""Scores of molecules, as GuacaMol defines them (Brown, Fiscato, Segler, Vaucher 2019), computed by RDKit.

Ranolazine MPO = ( s₁ s₂ s₃ s₄ )^¼
    s₁ = min(similarity / 0.7, 1)      Tanimoto similarity to ranolazine of atom-pair counts
    s₂ = rising(logP;  7,  1)          Crippen's estimate
    s₃ = rising(TPSA; 95, 20)          topological polar surface area, Å²
    s₄ = bell(number of F; 1, 1)

bell(x; μ, σ) = exp(−(x − μ)² / 2σ²),   rising = bell below μ, 1 above
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

from duogp_tasks.molecules.alphabet import import_rdkit

RANOLAZINE = "COc1ccccc1OCC(O)CN2CCN(CC(=O)Nc3c(C)cccc3C)CC2"


class Ranolazine(NamedTuple):
    """What the score is made of, in the molecule's own units."""

    similarity: float
    log_p: float
    polar_surface: float
    fluorines: int

    @property
    def parts(self) -> tuple[float, float, float, float]:
        """The four scores in [0, 1]."""
        return (
            min(self.similarity / 0.7, 1.0),
            rising(self.log_p, 7.0, 1.0),
            rising(self.polar_surface, 95.0, 20.0),
            bell(self.fluorines, 1.0, 1.0),
        )

    @property
    def score(self) -> float:
        """Their geometric mean."""
        return math.prod(self.parts) ** 0.25


def ranolazine_mpo(smiles: str) -> float:
    """The score in [0, 1]; 0 for the empty string and for what RDKit cannot read."""
    molecule = import_rdkit().MolFromSmiles(smiles) if smiles else None
    return 0.0 if molecule is None or molecule.GetNumAtoms() == 0 else describe(molecule).score


def describe(molecule: Any) -> Ranolazine:
    """Properties of an RDKit molecule."""
    descriptors, structures = import_rdkit("rdkit.Chem.rdMolDescriptors"), import_rdkit("rdkit.DataStructs")
    return Ranolazine(
        similarity=structures.TanimotoSimilarity(_atom_pairs(molecule), _reference()),
        log_p=descriptors.CalcCrippenDescriptors(molecule)[0],
        polar_surface=descriptors.CalcTPSA(molecule),
        fluorines=sum(atom.GetSymbol() == "F" for atom in molecule.GetAtoms()),
    )


def bell(x: float, centre: float, width: float) -> float:
    """1 at the centre, falling to both sides."""
    return math.exp(-0.5 * ((x - centre) / width) ** 2)


def rising(x: float, centre: float, width: float) -> float:
    """1 from the centre on, falling below it."""
    return 1.0 if x >= centre else bell(x, centre, width)


@cache
def _reference() -> Any:
    return _atom_pairs(import_rdkit().MolFromSmiles(RANOLAZINE))


def _atom_pairs(molecule: Any) -> Any:
    """Counts of atom pairs at most ten bonds apart."""
    return import_rdkit("rdkit.Chem.rdMolDescriptors").GetAtomPairFingerprint(molecule, maxLength=10)
