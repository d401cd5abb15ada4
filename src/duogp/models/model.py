"""A model: prior mean + basis + likelihood, and the loss that trains them.

Shapes: a batch is x [R, n, d], y [R, outputs, n]; inside, everything leads with [replicate, latent].
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from duogp.bases.base import Basis
from duogp.bases.frozen import FrozenPosterior
from duogp.bases.marginals import Marginals, Moments, Penalties, Reads, TotalMarginals, VarianceSum
from duogp.fused import table as fused
from duogp.fused.direct import DirectStep
from duogp.kernels.deep_kernel import Deep
from duogp.likelihoods.base import Likelihood
from duogp.models.direct import backward
from duogp.models.mixing import LinearMixing
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import Positive, log_prior
from duogp.objectives import DataTerm, Objective, as_objective

F = TypeVar("F", Marginals, TotalMarginals, Marginals | TotalMarginals, Moments)


class Batch(NamedTuple):
    """Rows of every replicate."""

    x: Tensor  # [R, n, d]
    y: Tensor  # [R, outputs, n]
    noise: Tensor | None = None  # fixed noise variance of the rows, [R, outputs, n]
    weight: Tensor | None = None  # [R, n]

    def split(self, size: int) -> list[Batch]:
        """Consecutive pieces of at most so many rows."""
        pieces = (slice(i, i + size) for i in range(0, self.x.shape[-2], size))
        return [
            Batch(self.x[:, s], self.y[..., s], *(None if t is None else t[..., s] for t in self[2:]))
            for s in pieces
        ]


class Model(nn.Module):
    """R replicates of one model, trained as one: prior mean, basis, mixing, likelihood and objective."""

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
        objective: Objective | DataTerm,
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
        self.objective = as_objective(objective)
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
        #: hyperparameters that have a prior, see `prior`
        self.with_priors = [m for m in self.modules() if isinstance(m, Positive) and m.prior is not None]

    @property
    def replicates(self) -> int:
        return self.beta1.shape[0]

    @property
    def likelihood_outputs(self) -> int:
        return int(getattr(self.likelihood, "outputs", 1))

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """Draw the random numbers of the next step, outside the captured step; one generator a replicate."""
        self.basis.draw(generators)
        self.likelihood.draw(generators)

    def factors(self) -> Any:
        return self.basis.factors(self.numerics)

    def marginals(self, x: Tensor, factors: Any | None = None) -> Marginals:
        """q(f(x)) with the prior mean, mixed: what the likelihood sees. x [R, n, d]."""
        x = x.unsqueeze(-3)
        f = self.basis.marginals(x, self.factors() if factors is None else factors)
        return self.complete(f, x)

    def complete(self, f: F, x: Tensor) -> F:
        """A basis' moments with the prior mean, mixed; x [R, 1, n, d]."""
        f = f._replace(mean=f.mean + self.mean(x))
        return f if self.mixing is None else self.mixing(f)

    # -- the loss --------------------------------------------------------------------------------------------

    def forward(self, batch: Batch) -> Tensor:
        """The loss [R], for `torch.func.functional_call`."""
        return self.loss(batch)

    def loss(self, batch: Batch) -> Tensor:
        """The negative objective per datum, [R]: −(1/B) Σ data + (1/N)(β₁KL + β₂Ω − log prior)."""
        if self.training:
            for kernel in self._observers:
                kernel.observe(batch.x.unsqueeze(-3))
        return self._per_datum(batch, *self.sum_terms(batch))

    def direct(self, batch: Batch) -> DirectStep | None:
        """A step without a tape for batches like this one, where there is one: see `backward`."""
        other = type(self) is not Model  # with formulas of its own
        if other or self._observers or any(t.requires_grad for t in batch if t is not None):
            return None
        x, reads = batch.x.unsqueeze(-3), self._reads(batch)
        return fused.find_direct(self.basis, x, reads=reads, with_omega=self.uses_omega)

    def backward(self, batch: Batch, direct: DirectStep | None = None) -> Tensor:
        """The loss [R], detached; gradients are added to ``.grad``. ``direct``: that of `direct`, if any."""
        if direct is None:
            loss = self.loss(batch)
            loss.sum().backward()
            return loss.detach()
        return backward(self, batch, direct)

    def loss_of(self, batch: Batch, f: Moments, penalties: Penalties) -> Tensor:
        """The loss [R] from moments that are complete, and penalties."""
        regulariser = self.regulariser(self.basis, penalties, batch.x.shape[-2])
        return self._per_datum(batch, self._sum_of_data(batch, f), regulariser)

    def _per_datum(self, batch: Batch, data: Tensor, regulariser: Tensor) -> Tensor:
        if self._has_priors:
            regulariser = regulariser - self.prior()
        return regulariser / self.num_data - data / batch.x.shape[-2]

    def terms(self, batch: Batch, factors: Any | None = None) -> tuple[Tensor, Tensor]:
        """Data term of each row [R, n] and the weighed regulariser [R]."""
        f, regulariser = self._moments(batch, factors, self.objective.reads)
        return self._data(batch, f), regulariser

    def sum_terms(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Data term summed over rows [R] and the weighed regulariser [R]: all that a training step needs."""
        f, regulariser = self._moments(batch, None, self._reads(batch))
        return self._sum_of_data(batch, f), regulariser

    def _reads(self, batch: Batch) -> Reads:
        return "sum" if self._reads_sum(batch) else self.objective.reads

    def _sum_of_data(self, batch: Batch, f: Moments) -> Tensor:
        if isinstance(f, VarianceSum):
            return self.objective.sum_over_rows(self.likelihood.bind(), f, batch.y)
        return self._data(batch, f).sum(-1)

    def _moments(self, batch: Batch, factors: Any | None, reads: Reads) -> tuple[Moments, Tensor]:
        x = batch.x.unsqueeze(-3)
        f, penalties = fused.evaluate(
            self.basis, x, factors, self.numerics, reads=reads, with_omega=self.uses_omega
        )
        return self.complete(f, x), self.regulariser(self.basis, penalties, x.shape[-2])

    def _data(self, batch: Batch, f: Any) -> Tensor:
        data = self.objective(self.likelihood.bind(batch.noise), f, batch.y)
        return data if batch.weight is None else data * batch.weight

    def regulariser(self, basis: Basis, penalties: Penalties, rows: int) -> Tensor:
        """β₁KL + β₂Ω of a basis, [R], for a batch of so many rows."""
        out = self.beta1 * penalties.kl
        if penalties.omega is None:
            return out
        return out + self.beta2 * basis.omega_scale(rows, self.num_data) * penalties.omega

    def _reads_sum(self, batch: Batch) -> bool:
        """Whether only the sum of the variances is read: E log N(y|f, s²) charges v/2s² for every row."""
        shared = batch.noise is None and batch.weight is None and self.mixing is None
        return shared and self.objective.is_expected_log and self.likelihood.linear_in_variance

    def prior(self) -> Tensor | float:
        """log p(hyperparameters), [R]; 0.0 without priors."""
        return log_prior(self, batch_dims=1) if self._has_priors else 0.0

    def log_predictive(self, batch: Batch, factors: Any | None = None) -> Tensor:
        """log p(y | x, data) of every row, [R, n]."""
        f = self.marginals(batch.x, factors)
        return self.likelihood.bind(batch.noise).log_predictive(batch.y, f.mean, f.variance)

    def frozen(self, dtype: torch.dtype = torch.float64, factors: Any | None = None) -> FrozenPosterior:
        """The frozen posterior, factorised in the given precision (without the prior mean).

        ``factors``: those of the model where they are known; they are of use in their own precision.
        """
        if factors is not None and self.numerics.dtype == dtype:
            return self.basis.frozen(factors)
        with self.numerics.in_precision(dtype):
            return self.basis.frozen(self.factors())


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
