"""A model: prior mean + basis + likelihood, and the loss that trains them.

Shapes: a batch is x [R, n, d], y [R, outputs, n]; inside, everything leads with [replicate, latent].
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from duogp.bases.base import Basis
from duogp.bases.frozen import LinearForm
from duogp.bases.marginals import Marginals, Reading
from duogp.kernels.deep_kernel import Deep
from duogp.likelihoods.base import Likelihood
from duogp.likelihoods.gaussian import GaussianLikelihood
from duogp.models.mixing import LinearMixing
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import log_prior
from duogp.objectives import Objective, elbo, reads_parts


class Batch(NamedTuple):
    """Rows of every replicate."""

    x: Tensor  # [R, n, d]
    y: Tensor  # [R, outputs, n]
    noise: Tensor | None = None  # fixed noise variance of the rows, [R, outputs, n]
    weight: Tensor | None = None  # [R, n]


class Model(nn.Module):
    """R replicates of one model, trained as one. The loss is per datum: −(1/B) Σ data + (1/N)(β₁KL + β₂Ω)."""

    beta1: Tensor
    beta2: Tensor
    num_data: Tensor
    #: buffers that lead with [replicate], of this and of any part
    replicate_buffers = ("beta1", "beta2", "num_data")

    def __init__(
        self,
        mean: nn.Module,
        basis: Basis,
        likelihood: Likelihood,
        objective: Objective,
        numerics: Numerics,
        num_data: int,
        beta1: Tensor | float = 1.0,
        beta2: Tensor | float = 0.0,
        mixing: LinearMixing | None = None,
    ) -> None:
        super().__init__()
        self.mean = mean
        self.basis = basis
        self.likelihood = likelihood
        self.mixing = mixing  # from latent functions to what the likelihood sees; None: they are the same
        self.objective = objective
        self.numerics = numerics
        replicates = numerics.jitter.shape[0]
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            values = torch.as_tensor(beta, dtype=torch.float64).expand(replicates).clone()
            self.register_buffer(name, values)
        self.register_buffer("num_data", torch.full((replicates,), float(num_data), dtype=torch.float64))
        # Decided once, on the host: Ω costs nothing when no replicate asks for it.
        self.uses_omega = basis.has_omega and bool((self.beta2 != 0).any())
        # Networks that keep running moments of the data look at every batch before it is used.
        self._observers = [part for part in self.modules() if isinstance(part, Deep) and part.observes]
        self._has_priors = any(getattr(m, "prior", None) is not None for m in self.modules())

    @property
    def replicates(self) -> int:
        return self.beta1.shape[0]

    @property
    def likelihood_outputs(self) -> int:
        return int(getattr(self.likelihood, "outputs", 1))

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """Draw what the next step needs to draw, outside the captured step; one generator a replicate."""
        self.basis.draw(generators)
        self.likelihood.draw(generators)

    def factors(self) -> Any:
        return self.basis.factors(self.numerics)

    def marginals(self, x: Tensor, factors: Any | None = None) -> Marginals:
        """q(f(x)) with the prior mean, mixed: what the likelihood sees. x [R, n, d]."""
        x = x.unsqueeze(-3)
        f = self.basis.marginals(x, self.factors() if factors is None else factors)
        return self.complete(f, x)

    def complete(self, f: Marginals, x: Tensor) -> Marginals:
        """A basis' marginals with the prior mean, mixed; x [R, 1, n, d]."""
        f = f._replace(mean=f.mean + self.mean(x))
        return f if self.mixing is None else self.mixing(f)

    def terms(
        self, batch: Batch, factors: Any | None = None, *, for_sum: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Data term of each row [R, n] and the weighed regulariser [R].

        ``for_sum``: rows may come mixed up with each other, as long as their sum is right.
        """
        x = batch.x.unsqueeze(-3)
        f, penalties = self.basis.evaluate(
            x,
            factors,
            self.numerics,
            with_omega=self.uses_omega,
            reading=self._reading(batch, for_sum),
        )
        data = self.objective(self.likelihood.bind(batch.noise), self.complete(f, x), batch.y)
        if batch.weight is not None:
            data = data * batch.weight
        regulariser = self.beta1 * penalties.kl
        if penalties.omega is not None:
            scale = self.beta2 * self.basis.omega_scale(batch.x.shape[-2], self.num_data)
            regulariser = regulariser + scale * penalties.omega
        return data, regulariser

    def loss(self, batch: Batch) -> Tensor:
        """The negative objective per datum, [R]."""
        if self.training:
            for kernel in self._observers:
                kernel.observe(batch.x.unsqueeze(-3))
        data, regulariser = self.terms(batch, for_sum=True)
        if self._has_priors:
            regulariser = regulariser - self.prior()
        return regulariser / self.num_data - data.mean(-1)

    def _reading(self, batch: Batch, for_sum: bool) -> Reading:
        """What of the variances the objective looks at. To E log N(y | f, s²) all rows add v/2s²."""
        if reads_parts(self.objective):
            return "parts"
        linear = self.objective is elbo and type(self.likelihood) is GaussianLikelihood
        alike = batch.noise is None and batch.weight is None and self.mixing is None
        return "total" if for_sum and linear and alike else "whole"

    def prior(self) -> Tensor | float:
        """log p(hyperparameters), [R]; 0.0 without priors."""
        return log_prior(self, batch_dims=1) if self._has_priors else 0.0

    def log_predictive(self, batch: Batch, factors: Any | None = None) -> Tensor:
        """log p(y | x, data) of every row, [R, n]."""
        f = self.marginals(batch.x, factors)
        return self.likelihood.bind(batch.noise).log_predictive(batch.y, f.mean, f.variance)

    def linear_form(self, dtype: torch.dtype = torch.float64) -> LinearForm:
        """The frozen posterior, factorised in the given precision (without the prior mean)."""
        numerics = self.numerics
        previous, numerics.dtype = numerics.dtype, dtype
        try:
            return self.basis.linear_form(self.factors())
        finally:
            numerics.dtype = previous


def take_replicate(model: Model, index: int) -> Model:
    """One replicate as a model of its own (with a leading dimension of size one)."""
    if model.replicates == 1:
        return model
    out = copy.deepcopy(model)
    for part in out.modules():
        for name, p in part._parameters.items():
            if p is not None:
                part._parameters[name] = nn.Parameter(p.detach()[index : index + 1].clone(), p.requires_grad)
        for name in getattr(part, "replicate_buffers", ()):
            if (b := part._buffers[name]) is not None:
                part._buffers[name] = b[index : index + 1].clone()
    return out
