"""Molecules ⇄ points of a latent space, by the trained autoencoder that comes with the package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from duogp_tasks.molecules.alphabet import Alphabet, smiles_to_symbols, symbols_to_smiles
from duogp_tasks.molecules.model import Architecture, SequenceVAE
from duogp_tasks.molecules.training import with_end

WEIGHTS = Path(__file__).parent / "weights" / "autoencoder.safetensors"
COMMAND = "python benchmarks/train_molecules.py --seconds 480 --output <folder>"


class MoleculeAutoencoder:
    """SMILES to latent vectors and back. Decoding is greedy, so a point always means the same molecule."""

    def __init__(self, model: SequenceVAE, alphabet: Alphabet) -> None:
        self.model = model.eval().requires_grad_(False)
        self.alphabet = alphabet

    @property
    def latent(self) -> int:
        """Dimensions of the latent space."""
        return self.model.architecture.latent

    def encode(self, smiles: Sequence[str], batch: int = 256) -> NDArray[np.float64]:
        """Posterior means [n, latent] of molecules given as SMILES."""
        if isinstance(smiles, str):
            raise TypeError("smiles: expected a sequence of SMILES, got a single string")
        longest = self.model.architecture.longest - 1
        rows = np.zeros((len(smiles), longest), dtype=np.uint8)
        for row, molecule in zip(rows, smiles, strict=True):
            ids = self.alphabet.encode(smiles_to_symbols(molecule))
            if len(ids) > longest:
                raise ValueError(f"smiles: {molecule!r} has {len(ids)} symbols, the model takes {longest}")
            row[: len(ids)] = ids
        parts = torch.as_tensor(with_end(rows), device=self._device).long().split(batch)
        means = [self.model.posterior(part)[0].cpu() for part in parts if len(part)]
        return torch.cat(means).double().numpy() if means else np.zeros((0, self.latent))

    def decode(self, z: ArrayLike, batch: int = 256) -> list[str]:
        """Canonical SMILES of the points z [n, latent]; "" where a point decodes to nothing."""
        points = np.asarray(z, dtype=np.float32)
        if points.ndim != 2 or points.shape[1] != self.latent or not np.isfinite(points).all():
            raise ValueError(f"z: expected finite numbers [n, {self.latent}], got shape {points.shape}")
        molecules: list[str] = []
        for part in torch.as_tensor(points, device=self._device).split(batch):
            if len(part):
                rows = self.model.greedy(part).cpu().numpy()
                molecules += [symbols_to_smiles(self.alphabet.decode(row)) for row in rows]
        return molecules

    def save(self, path: Path) -> None:
        """One safetensors file in float16, with architecture and alphabet in its header."""
        from safetensors.torch import save_file

        state = self.model.state_dict()
        tensors = {name: tensor.detach().half().cpu().contiguous() for name, tensor in state.items()}
        header = {
            "architecture": json.dumps(self.model.architecture.as_dict()),
            "symbols": json.dumps(self.alphabet.symbols),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata=header)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def load(path: Path | None = None, device: str = "cpu") -> MoleculeAutoencoder:
    """The autoencoder in `path`, by default the one that comes with the package. Nothing is downloaded."""
    path = WEIGHTS if path is None else Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no molecule autoencoder at {path}; train one with: {COMMAND}")
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cpu") as archive:
        header = archive.metadata()
        tensors = {name: archive.get_tensor(name).float() for name in archive.keys()}  # noqa: SIM118
    model = SequenceVAE(Architecture(**json.loads(header["architecture"])))
    model.load_state_dict(tensors)
    return MoleculeAutoencoder(model.to(device), Alphabet(tuple(json.loads(header["symbols"]))))
