"""The contract of a basis: four methods and a few traits.

`factors` gives all that does not depend on x (Cholesky factors and their products), `features` whitens x with
them, `kl` is the penalty, `frozen` the posterior for prediction. Marginals, training steps, closed forms and
samples follow from these four and are written once. Hand-written steps (`duogp.fused`) are faster ways to the
same numbers; a basis does not know of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from torch import Tensor, nn

from duogp.bases.frozen import FrozenPosterior
from duogp.bases.marginals import Features, Marginals, Mismatch, Penalties, Recorded, RowMismatch
from duogp.kernels.base import Kernel
from duogp.numerics.factorisation import Factor, Numerics
from duogp.variational import Q

if TYPE_CHECKING:
    from duogp.bases.recipes import Parts

#: Methods that the optimal q(u) depends on.
FORMULAS = ("factors", "features", "kl", "q_of", "prior_root", "mean_prior_root", "prior_mean", "mismatch")


class Basis(nn.Module, ABC):
    """A posterior process over f. Parameters lead with [replicate, latent].

    Traits are class attributes; the planner reads them and never asks for a class. A basis that declares
    nothing is trained by stochastic gradients.
    """

    kernel: Kernel  # the prior's kernel
    inducing: Tensor  # the points that carry S, [R, latent or 1, M, d]
    q: Q
    #: settings of a fit that `build` reads from ``parts.options``
    options: tuple[str, ...] = ()
    #: a second set of points: "none", "optional" (else a copy of the first), "block" (chosen with the first)
    extra_points: Literal["none", "optional", "block"] = "none"
    #: number of parameters of the mean: "M", "E" (points of the second set) or "M + E"
    mean_size = "M"
    #: whether q has a covariance on the second block too
    has_second_covariance = False
    #: whether layers of a deep GP may be built of it
    can_be_layer = True
    #: whether the optimal q(u) under Gaussian noise is that of `inference.closed_form`: the mean is linear
    #: in q.mean, the explained variance quadratic in L_S, the KL that of `prior_root` and `mean_prior_root`
    has_closed_form = False
    #: whether natural gradients on q(u) are exact: the penalty is KL(q(u) ‖ p(u)), perhaps plus a constant
    has_natural_gradient = True
    #: whether there is an Ω, weighed by β₂
    has_omega = False
    #: whether mean and explained variance are made of the same features, so that (m, S) is one Gaussian
    mean_shares_features = True
    #: whether the points are the training rows themselves, and training maximises the evidence
    points_are_rows = False
    #: defaults of training: Adam's rate on the collapsed bound, closed-form steps of the coupled basis to
    #: start from, at most
    closed_form_rate = 0.05
    warm_start_steps = 0
    #: whether long trainings on a CPU gain by compiling the step (measured)
    pays_to_compile = False
    #: whether a part of the mean has plain coefficients a beside the whitened ones
    has_mean_coefficients = False
    #: whether all of the mean is k(x, α) a, with points and plain coefficients of its own
    mean_is_kernel_expansion = False
    #: whether `evaluate` leaves its intermediate values in `recorded`
    keep_record = False
    recorded: Recorded | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass with other formulas has the closed form of its base only if it says so itself."""
        super().__init_subclass__(**options)
        if any(name in vars(cls) for name in FORMULAS) and "has_closed_form" not in vars(cls):
            cls.has_closed_form = False

    @classmethod
    def build(cls, parts: Parts) -> Basis:
        """The basis of a fit from points, kernels and q(u); override it where the constructor differs."""
        return cls(parts.new_kernel(), parts.inducing, parts.new_q())

    # -- the four methods ------------------------------------------------------------------------------------

    @abstractmethod
    def factors(self, numerics: Numerics) -> Any:
        """All that does not depend on x, differentiable: a tensor or nested named tuples of tensors."""

    @abstractmethod
    def features(self, x: Tensor, factors: Any) -> Features:
        """Whitened features of x [R, 1, n, d] and the residual variance."""

    @abstractmethod
    def kl(self, factors: Any, q: Q) -> Tensor:
        """KL(q ‖ p), or the penalty of a point q: [R, latent]."""

    @abstractmethod
    def frozen(self, factors: Any) -> FrozenPosterior:
        """The posterior with all that does not depend on x computed."""

    # -- what some bases add ---------------------------------------------------------------------------------

    def q_of(self, factors: Any) -> Q:
        """q at these factors; another object than `q` where its covariance depends on them (ridge)."""
        return self.q

    def prior_root(self, factors: Any) -> Tensor | None:
        """V [R, latent, M, M] with VᵀV = P⁻¹ for the prior N(0, P) of the variable that m and S describe.

        None where P = I, as for whitened variables; L⁻¹ for u itself, whose prior is N(0, K).
        """
        return None

    def mean_prior_root(self, factors: Any) -> Tensor | None:
        """V [R, latent, M, M] with ½‖V m‖² the penalty of q's mean m, where that is not `prior_root`."""
        return self.prior_root(factors)

    def prior_mean(self, factors: Any) -> Tensor | None:
        """Mean of the prior of the whitened variable, [R, latent, M], for the optimal q; None at zero."""
        return None

    def mismatch(
        self, x: Tensor, features: Features, factors: Any, numerics: Numerics
    ) -> tuple[Features, Mismatch | RowMismatch] | None:
        """The features with Ω's nugget, and the difference of conditional means; None without an Ω.

        Of rows x [R, 1, n, d]; the difference D is [R, latent, n, M].
        """
        return None

    def omega_scale(self, rows: int, num_data: Tensor) -> Tensor | float:
        """Factor from Ω of a batch of ``rows`` to Ω of the objective: [R] as ``num_data``, or one number."""
        return 1.0

    def collapsed_omega_scale(self, chunks: int) -> float:
        """Factor of Ω in the collapsed bound, where it is summed over so many chunks of rows."""
        return 1.0

    def draw(self, generators: Sequence[torch.Generator]) -> None:
        """Draw the random numbers of the next step (outside the captured step); one generator a replicate."""

    def draw_state(self) -> dict[str, Tensor]:
        """What `draw` remembers between steps and no buffer holds, for checkpoints; each [R, ...] or []."""
        return {}

    def restore_draws(self, state: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> None:
        """Go on from a `draw_state`, its tensors [R, ...] or [], with these generators, one a replicate."""

    def use_all_columns(self) -> None:
        """Replace random estimates of quadratic forms by their exact values, for steps on all rows."""

    def initialise(self, generators: Sequence[torch.Generator], mean_scale: float = 1e-3) -> None:
        """Put q next to the prior; one generator for each replicate."""
        self.q.perturb_mean(mean_scale, generators)

    def start_at_prior(self, numerics: Numerics) -> None:
        """Set S to the prior's covariance, where q does not start there by itself."""

    def start_from(self, source: Basis) -> None:
        """Take over points and q(u) of a coupled basis, as far as they fit."""
        own = self.inducing
        if own.shape == source.inducing.shape:
            own.data.copy_(source.inducing)
        first, _ = self.q.parts()[0]  # a second block starts at its prior
        q = source.q
        if first.size == q.size and (self.mean_shares_features or first.mean.shape == q.mean.shape):
            mean = torch.zeros_like(first.mean)
            mean[..., : q.size] = q.mean
            first.set_(mean, q.root())

    def mean_rules(self) -> tuple[str, ...]:
        """Names of the steps of `inference.mean_rules` for a mean that S does not belong to."""
        return ()

    def kernels(self) -> dict[str, Kernel]:
        """Kernels by role: "covariance" (the prior's) and, where the mean has one of its own, "mean"."""
        return {"covariance": self.kernel}

    def hyperparameters(self) -> dict[str, Tensor]:
        """Further quantities of interest, [R, latent], by name, beside those of the kernels and the noise."""
        return {}

    @property
    def num_points(self) -> int | tuple[int, int]:
        """Inducing points; of a basis that is grown in two blocks those of the mean and of the covariance."""
        return self.q.size

    def whitening_factor(self, numerics: Numerics) -> Factor | None:
        """L with u = f(Z) = L v, v the whitened variable; None where q is not over one block of points."""
        return None

    def num_variational_parameters(self) -> int:
        """Variational parameters of one latent function."""
        return self.q.num_parameters()

    # -- what follows ----------------------------------------------------------------------------------------

    @final
    def marginals(self, x: Tensor, factors: Any) -> Marginals:
        """q(f(x)) at x [R, 1, n, d], without the prior mean."""
        return self.marginals_of(self.features(x, factors), self.q_of(factors))

    @final
    def marginals_of(self, features: Features, q: Q) -> Marginals:
        """mean ψᵀm (+ offset), residual as given, explained φᵀSφ."""
        mean = q.mean_of(features.mean)
        return Marginals(
            mean=mean if features.offset is None else mean + features.offset,
            residual=features.residual,
            explained=q.variance_of(features.explained),
        )

    @final
    def evaluate(
        self, x: Tensor, factors: Any, numerics: Numerics, *, with_omega: bool = False
    ) -> tuple[Marginals, Penalties]:
        """Marginals and penalties of one batch x [R, 1, n, d], which share factors and features."""
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


def with_density_offset(penalty: Tensor, q: Q, half_log_det: Tensor) -> Tensor:
    """−log p(u) instead of −log p(v) for a point q that asks for it (MATH §4); each tensor [R, latent]."""
    return penalty + q.log_density_offset(half_log_det) if q.unwhitened else penalty
