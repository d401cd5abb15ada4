"""gpytorch's orthogonal strategy as a model, and a problem where its ELBO is no bound."""

from __future__ import annotations

import gpytorch
import torch
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    OrthogonallyDecoupledVariationalStrategy,
    VariationalStrategy,
)
from torch import Tensor

from duogp.bases import TwoBlock
from duogp.kernels import RBF, Scale
from duogp.likelihoods import GaussianLikelihood
from duogp.means import LinearMean
from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.objectives import elbo
from duogp.variational import CholeskyQ
from helpers.random_models import Problem


class TheirOrthogonal(gpytorch.models.ApproximateGP):
    """The strategy for γ around a whitened one for Z, zero prior mean."""

    def __init__(self, kernel: Scale, z: Tensor, gamma: Tensor) -> None:
        inner = VariationalStrategy(self, z.clone(), CholeskyVariationalDistribution(len(z)), jitter_val=0.0)
        outer = OrthogonallyDecoupledVariationalStrategy(
            inner, gamma.clone(), DeltaVariationalDistribution(len(gamma)), jitter_val=0.0
        )
        super().__init__(outer)
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=z.shape[-1]))
        self.double()
        self.kernel.outputscale = kernel.variance()[0, 0].detach()
        self.kernel.base_kernel.lengthscale = kernel.kernel.lengthscale()[0].detach()
        self.inner = inner
        for strategy in (inner, outer):
            strategy.variational_params_initialized.fill_(1)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(x.new_zeros(x.shape[:-1]), self.kernel(x))

    @torch.no_grad()
    def set_(self, mean: Tensor, root: Tensor, a: Tensor) -> None:
        """Whitened (m, L_S) on Z, coefficients a on γ."""
        distribution = self.inner._variational_distribution
        distribution.variational_mean.copy_(mean)
        distribution.chol_variational_covar.copy_(root)
        self.variational_strategy._variational_distribution.variational_mean.copy_(a)


def orthogonal_at_the_data() -> Problem:
    """X = Z = γ, six points of a line; RBF of variance 1.3 and lengthscale 0.5; s² = 2, y = 6·1."""
    x = torch.linspace(-2, 2, 6, dtype=torch.float64).reshape(1, 6, 1)
    kernel = batched(Scale(RBF(1)), (1, 1)).double()
    kernel.variance.set_(1.3)
    kernel.kernel.lengthscale.set_(0.5)
    likelihood = batched(GaussianLikelihood(1), (1,)).double()
    likelihood.noise.set_(2.0)
    q = CholeskyQ(6, (1, 1), mean_size=12).double()
    basis = TwoBlock(kernel, x.unsqueeze(1).clone(), x.unsqueeze(1).clone(), q, mean_only=True)
    mean = batched(LinearMean(1), (1, 1)).double()
    model = Model(mean, basis, likelihood, elbo, Numerics(1, 1e-9), num_data=6).double()
    return Problem(model, Batch(x, torch.full((1, 1, 6), 6.0, dtype=torch.float64)), x)
