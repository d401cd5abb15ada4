"""Small `DuoGPModel`s and their data."""

from __future__ import annotations

import torch

from duogp.bo import DuoGPModel

QUICK = {"num_inducing": 12, "steps": 15, "warm_start": 0, "validation_fraction": 0.0}


def data(n: int = 30, outputs: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    columns = [torch.sin((4 + i) * X[:, 0]) + X[:, 1] ** 2 * (1 + i) for i in range(outputs)]
    Y = torch.stack(columns, -1)
    return X, Y + 0.05 * torch.randn(n, outputs, generator=generator, dtype=torch.float64)


def fitted(method: str = "dcsvgp", outputs: int = 1, **settings: object) -> DuoGPModel:
    quick = {k: v for k, v in QUICK.items() if not (method == "exact" and k == "num_inducing")}
    return DuoGPModel.fit(*data(outputs=outputs), method, **quick | settings)
