"""Random models on the device of the test: no parameter trivial, points well apart, jitter 0, float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from duogp.bases import Basis
from duogp.kernels import RBF, Kernel, Scale
from duogp.likelihoods import GaussianLikelihood
from duogp.means import LinearMean
from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import Positive, batched
from duogp.objectives import GammaRobust, elbo, predictive, vfitc
from duogp.variational import CholeskyQ, DiagonalQ, PointQ, Q
from helpers.devices import placed

DIMS = 2

QS: dict[str, Callable[..., Q]] = {
    "full": CholeskyQ,
    "diagonal": DiagonalQ,
    "point": PointQ,
    "point-unwhitened": partial(PointQ, unwhitened=True),
}

OBJECTIVES = {
    "elbo": elbo,
    "vfitc": vfitc,
    "predictive": predictive,
    "gamma-robust": GammaRobust(1.3),
    "gamma-robust-gpytorch": GammaRobust(1.05, gpytorch_sign=True),
}


class Parts(NamedTuple):
    """What a basis is made of; `z` and `extra` are well apart from each other and from the data."""

    batch_shape: tuple[int, int]
    z: Tensor  # [R, 1, M, d]
    extra: Tensor  # [R, 1, M + 1, d]
    q_of: Callable[..., Q]

    def kernel(self) -> Kernel:
        return batched(Scale(RBF(DIMS)), self.batch_shape)

    def q(self, size: int | None = None, mean_size: int | None = None) -> Q:
        return self.q_of(self.z.shape[-2] if size is None else size, self.batch_shape, mean_size=mean_size)


class Problem(NamedTuple):
    model: Model
    batch: Batch
    x_new: Tensor  # rows nobody trained on


def separated_points(count: int, replicates: int, generator: torch.Generator) -> Tensor:
    """[R, count, 2]: sites of the smallest square grid that holds them, perturbed, in random order."""
    side = torch.arange(math.ceil(math.sqrt(count)), dtype=torch.float64) * 0.8 - 1.6
    grid = torch.cartesian_prod(side, side)
    out = []
    for _ in range(replicates):
        sites = grid[torch.randperm(len(grid), generator=generator)[:count]]
        out.append(sites + 0.3 * (torch.rand(sites.shape, generator=generator, dtype=torch.float64) - 0.5))
    return torch.stack(out)


def random_problem(
    build: Callable[[Parts], Basis],
    q: str = "full",
    objective: str = "elbo",
    *,
    seed: int = 0,
    replicates: int = 1,
    latents: int = 1,
    n: int = 8,
    inducing: int = 4,
    jitter: float = 0.0,
    beta1: float = 0.7,
    beta2: float = 0.3,
    num_data: int | None = None,
    row_noise: bool = False,
    weights: bool = False,
) -> Problem:
    g = torch.Generator().manual_seed(1000 + seed)
    points = separated_points(n + 2 * inducing + 1 + 5, replicates, g)
    x, z, extra, x_new = points.split([n, inducing, inducing + 1, 5], dim=1)
    shape = (replicates, latents)
    basis = build(Parts(shape, z.unsqueeze(1), extra.unsqueeze(1), QS[q]))
    model = Model(
        mean=batched(LinearMean(DIMS), shape),
        basis=basis,
        likelihood=batched(GaussianLikelihood(latents), (replicates,)),
        objective=OBJECTIVES[objective],
        numerics=Numerics(replicates, jitter, torch.float64),
        num_data=n if num_data is None else num_data,
        beta1=beta1,
        beta2=beta2,
    ).double()
    randomise(model, g)
    y = torch.randn(replicates, latents, n, generator=g, dtype=torch.float64) + x[:, None, :, 0].sin()
    noise = 0.1 + torch.rand(replicates, latents, n, generator=g, dtype=torch.float64) if row_noise else None
    weight = 0.5 + torch.rand(replicates, n, generator=g, dtype=torch.float64) if weights else None
    batch = Batch(*(None if part is None else placed(part) for part in (x, y, noise, weight)))
    return Problem(placed(model), batch, placed(x_new))


TYPICAL = {"lengthscale": 0.9, "variance": 1.3, "noise": 0.4}


@torch.no_grad()
def randomise(model: Model, generator: torch.Generator) -> None:
    def normal(like: Tensor, scale: float) -> Tensor:
        return scale * torch.randn(like.shape, generator=generator, dtype=torch.float64)

    for name, part in model.named_modules():
        if isinstance(part, Positive):
            part.set_(TYPICAL[name.rsplit(".", 1)[-1]] * normal(part.raw, 0.15).exp())
    for parameter in model.mean.parameters():
        parameter.copy_(normal(parameter, 0.3))
    for q, _ in model.basis.q.parts():
        if q.learns_mean:
            q.mean.copy_(normal(q.mean, 0.8))
        if isinstance(q, CholeskyQ):
            q.raw_root.copy_(0.7 * torch.eye(q.size) + normal(q.raw_root, 0.2))
            q.raw_root.diagonal(dim1=-2, dim2=-1)[..., :1].neg_()  # as good as positive
        elif isinstance(q, DiagonalQ):
            q.std.copy_(0.7 * normal(q.std, 0.3).exp())


def learned(part: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters that training moves (the mean of a shrunk q is zero by definition)."""
    return ((name, p) for name, p in part.named_parameters() if p.requires_grad)
