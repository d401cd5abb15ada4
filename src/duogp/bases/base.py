"""The contract of a basis: one row of the table in the README.

A basis splits its work at x. `factors` holds everything that does not see x (Cholesky factors and their
products); `features` whitens x with them; q(u) turns features into marginals; `penalties` says what the
posterior costs; `linear_form` freezes it all for prediction. Adding a basis is writing these four.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from duogp.bases.frozen import LinearForm
from duogp.bases.marginals import Features, Marginals, Mismatch, Penalties, Reading, Recorded, RowMismatch
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import Factor, Numerics
from duogp.variational import Q


class Basis(nn.Module, ABC):
    """A posterior process over f. Parameters lead with [replicate, latent]."""

    kernel: Kernel  # the prior's kernel
    q: Q
    #: set to have `evaluate` leave what it saw in `recorded`
    keep_record = False
    recorded: Recorded | None = None
    #: whether the basis has an Ω, weighed by β₂
    has_omega = False
    #: whether q's mean weighs the features that S belongs to, so that (m, S) is one Gaussian
    mean_shares_features = True

    @abstractmethod
    def factors(self, numerics: Numerics) -> Any:
        """Everything that does not depend on x, differentiable."""

    @abstractmethod
    def features(self, x: Tensor, factors: Any) -> Features:
        """Whitened features of x [R, 1, n, d] and the residual variance."""

    @abstractmethod
    def kl(self, factors: Any, q: Q) -> Tensor:
        """KL(q ‖ p), or the penalty of a point q: [R, latent]."""

    @abstractmethod
    def linear_form(self, factors: Any) -> LinearForm:
        """The frozen posterior."""

    def q_of(self, factors: Any) -> Q:
        """q at the factors of the moment: a ridge q(u) has a covariance that depends on them."""
        return self.q

    def prior_root(self, factors: Any) -> Tensor | None:
        """V with VᵀV = P⁻¹ for the prior N(0, P) of the whitened variable; None where P = I."""
        return None

    def prior_mean(self, factors: Any) -> Tensor | None:
        """Where the prior of the whitened variable is centred, for the optimal q; None at zero."""
        return None

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """Draw what the next step needs to draw (outside the captured step); one generator a replicate."""

    def num_variational_parameters(self) -> int:
        """Variational parameters of one latent function."""
        return self.q.num_parameters()

    def mismatch(
        self, x: Tensor, features: Features, factors: Any, numerics: Numerics
    ) -> tuple[Features, Mismatch | RowMismatch] | None:
        """What Ω of these rows is made of, and the features as Ω wants them; None without an Ω."""
        return None

    def omega_scale(self, rows: int, num_data: Tensor) -> Tensor | float:
        """What Ω of a batch of so many rows is multiplied by."""
        return 1.0

    def marginals(self, x: Tensor, factors: Any) -> Marginals:
        return self.marginals_of(self.features(x, factors), self.q_of(factors))

    def marginals_of(self, features: Features, q: Q) -> Marginals:
        mean = q.mean_of(features.mean)
        return Marginals(
            mean=mean if features.offset is None else mean + features.offset,
            residual=features.residual,
            explained=q.variance_of(features.explained),
        )

    def evaluate(
        self,
        x: Tensor,
        factors: Any | None,
        numerics: Numerics,
        *,
        with_omega: bool = False,
        reading: Reading = "parts",
    ) -> tuple[Marginals, Penalties]:
        """Marginals and penalties of one batch, sharing features; ``factors`` None: those of the moment.

        ``reading``: what of the variance will be looked at; a basis may spare itself the rest.
        """
        factors = self.factors(numerics) if factors is None else factors
        features, q = self.features(x, factors), self.q_of(factors)
        omega = None
        if with_omega and (found := self.mismatch(x, features, factors, numerics)) is not None:
            features, mismatch = found
            omega = mismatch.omega(q, numerics).sum(-1)
        marginals = self.marginals_of(features, q)
        if self.keep_record and torch.is_grad_enabled():
            marginals.explained.retain_grad()
            self.recorded = Recorded(x, factors, features, marginals.explained)
        return marginals, Penalties(self.kl(factors, q).sum(-1), omega)

    def initialise(self, generators: Sequence[torch.Generator], mean_scale: float = 1e-3) -> None:
        """Put q next to the prior; one generator for each replicate."""
        self.q.perturb_mean(mean_scale, generators)

    #: whether the points are the training rows themselves, and the posterior keeps all of them
    points_are_rows = False

    @property
    def num_points(self) -> int | tuple[int, int]:
        """Inducing points; of a basis that is grown in two blocks those of the mean and of the covariance."""
        return self.q.size

    def whitening_factor(self, numerics: Numerics) -> Factor | None:
        """L with u = f(Z) = L v, v the whitened variable; None where q is not over one block of points."""
        return None


def with_density_offset(penalty: Tensor, q: Q, half_log_det: Tensor) -> Tensor:
    """−log p(u) instead of −log p(v) for a point q that asks for it (MATH §4)."""
    return penalty + q.log_density_offset(half_log_det) if q.unwhitened else penalty
