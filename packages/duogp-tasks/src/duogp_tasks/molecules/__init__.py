"""Molecules for optimisation: a SELFIES autoencoder trained on ZINC-250k, and scores of RDKit.

autoencoder = load()
z = autoencoder.encode(["CCO"])
autoencoder.decode(z)
"""

from duogp_tasks.molecules.autoencoder import MoleculeAutoencoder, load

__all__ = ["MoleculeAutoencoder", "load"]
