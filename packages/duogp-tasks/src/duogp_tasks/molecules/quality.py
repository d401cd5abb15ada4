"""Acceptance measurements of the autoencoder, from SMILES to SMILES: reconstruction and prior samples."""

from __future__ import annotations

import numpy as np

from duogp_tasks.molecules.alphabet import symbols_to_smiles
from duogp_tasks.molecules.autoencoder import MoleculeAutoencoder
from duogp_tasks.molecules.corpus import TEST, Corpus


def acceptance(
    autoencoder: MoleculeAutoencoder, corpus: Corpus, test: int = 5000, samples: int = 1000, seed: int = 0
) -> dict[str, float]:
    """Shares of test molecules that come back exactly and of prior samples that are valid and distinct.

    A molecule comes back if the canonical SMILES, stereochemistry included, are equal. A sample z ~ N(0, I)
    is valid if it decodes to a molecule that is not empty and passes RDKit's sanitisation.
    """
    smiles = [symbols_to_smiles(corpus.alphabet.decode(row)) for row in corpus.part(TEST)[:test]]
    back = autoencoder.decode(autoencoder.encode(smiles))
    z = np.random.default_rng(seed).standard_normal((samples, autoencoder.latent))
    drawn = autoencoder.decode(z)
    valid = [molecule for molecule in drawn if molecule]
    return {
        "test_molecules": len(smiles),
        "reconstructed": float(np.mean([a == b for a, b in zip(smiles, back, strict=True)])),
        "prior_samples": samples,
        "prior_valid": len(valid) / samples,
        "prior_distinct": len(set(valid)) / samples,
    }
