"""Every basis × q × objective × likelihood: the loss is the dense objective.

Marginals and penalties are those of dense Gaussian algebra (`test_conformance.BASES`); the expectations are
written out here once more, on dense grids, or draw by draw with the draws the likelihood holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, distributions
from torch.testing import assert_close

from duogp.likelihoods import (
    BernoulliLikelihood,
    BetaLikelihood,
    GammaLikelihood,
    GaussianLikelihood,
    HeteroscedasticGaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
    RobustMaxLikelihood,
    SoftmaxLikelihood,
    StudentTLikelihood,
)
from duogp.models.model import Batch, Model
from duogp.numerics.parameters import batched
from helpers import dense
from helpers.conformance import BASES, Row
from helpers.random_models import OBJECTIVES, learned, random_problem

REPLICATES, ROWS, INDUCING = 2, 5, 3
THREE = ("elbo", "vfitc", "predictive")
QS = ("full", "diagonal", "point")
CLASSES = 3


class Marginal(NamedTuple):
    """f ~ N(g, inside), g ~ N(mean, outside): what the objectives differ in is how variance is split."""

    mean: Tensor
    inside: Tensor
    outside: Tensor


def split(objective: str, mean: Tensor, r: Tensor, e: Tensor) -> Marginal:
    """Every objective is E_g log E_f p(y|f)."""
    zero = torch.zeros_like(r)
    return {
        "elbo": Marginal(mean, zero, r + e),
        "vfitc": Marginal(mean, r, e),
        "predictive": Marginal(mean, r + e, zero),
    }[objective]


# -- one latent per output, on a grid -------------------------------------------------------------------

GRID = torch.linspace(-8, 8, 121, dtype=torch.float64)
WEIGHTS = torch.softmax(-0.5 * GRID**2, 0)


def nodes(variance: Tensor) -> tuple[Tensor, Tensor]:
    """Standard normal nodes and weights; one node where no variance of the batch needs more."""
    if bool((variance == 0).all()):
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    return GRID, WEIGHTS


def on_grid(log_p: Callable[[Tensor, Tensor], Tensor], y: Tensor, f: Marginal) -> Tensor:
    """E_g log E_f p(y|f), outputs independent: [R, outputs, n] → [R, n]."""
    (z_in, w_in), (z_out, w_out) = nodes(f.inside), nodes(f.outside)
    g = f.mean[..., None] + f.outside.sqrt()[..., None] * z_out
    values = g[..., None] + f.inside.sqrt()[..., None, None] * z_in
    inner = torch.logsumexp(log_p(y[..., None, None], values) + w_in.log(), -1)
    return (inner @ w_out).sum(-2)


def parameter(value: Tensor) -> Tensor:
    """[R, outputs] beside [R, outputs, n, outer, inner]."""
    return value[..., None, None, None]


def gaussian(p: Likelihood, y: Tensor, f: Tensor) -> Tensor:
    return distributions.Normal(f, parameter(p.noise()).sqrt()).log_prob(y)


def student_t(p: Likelihood, y: Tensor, f: Tensor) -> Tensor:
    return distributions.StudentT(parameter(p.dof()), f, parameter(p.scale())).log_prob(y)


def probit(p: Likelihood, y: Tensor, f: Tensor) -> Tensor:
    return torch.where(y == 1, 0.5 * torch.erfc(-f / math.sqrt(2)), 0.5 * torch.erfc(f / math.sqrt(2))).log()


def logit(p: Likelihood, y: Tensor, f: Tensor) -> Tensor:
    return distributions.Bernoulli(logits=f).log_prob(y.expand_as(f))


def poisson(p: Likelihood, y: Tensor, f: Tensor) -> Tensor:
    return distributions.Poisson(f.exp()).log_prob(y)


def gamma(p: Likelihood, y: Tensor, f: Tensor) -> Tensor:
    shape = parameter(p.shape())
    return distributions.Gamma(shape, shape * torch.exp(-f)).log_prob(y)


def beta(p: Likelihood, y: Tensor, f: Tensor) -> Tensor:
    s = parameter(p.precision())
    return distributions.Beta(s * f.sigmoid(), s * (-f).sigmoid()).log_prob(y)


# -- several latents ------------------------------------------------------------------------------------


def heteroscedastic(p: Likelihood, y: Tensor, f: Marginal) -> Tensor:
    """f in closed form inside the log; g inside, and both outside, on grids."""
    (mean_f, mean_g), (in_f, in_g), (out_f, out_g) = (t.split(1, -2) for t in f)
    z, w = GRID[::4], torch.softmax(-0.5 * GRID[::4] ** 2, 0)
    noise = parameter(p.noise())
    # axes: outer f, outer g, inner g
    f_u = (mean_f[..., None] + out_f.sqrt()[..., None] * z)[..., :, None, None]
    g_u = (mean_g[..., None] + out_g.sqrt()[..., None] * z)[..., None, :, None]
    g = g_u + in_g.sqrt()[..., None, None, None] * z
    variance = in_f[..., None, None, None] + noise[..., None] * g.exp()
    log_p = distributions.Normal(f_u, variance.sqrt()).log_prob(y[..., None, None, None])
    return (torch.logsumexp(log_p + w.log(), -1) @ w @ w).squeeze(-2)


def draws_of(module: torch.nn.Module, s: int) -> Tensor:
    """Draw s of every replicate, class and row: [R, C, n]; row i has column i."""
    return module()[:, s, :, :ROWS].double()


def softmax(p: Likelihood, y: Tensor, f: Marginal) -> Tensor:
    """Draw by draw, row by row; a variance of zero needs no draws."""
    total = torch.zeros(REPLICATES, ROWS, dtype=torch.float64)
    outer, inner = (range(m().shape[1]) for m in (p.outer, p.inner))
    if bool((f.inside == 0).all()):
        inner = range(1)
    if bool((f.outside == 0).all()):
        outer = range(1)
    for i in outer:
        g = f.mean + f.outside.sqrt() * draws_of(p.outer, i)
        share = torch.zeros_like(total)
        for j in inner:
            z = g + f.inside.sqrt() * draws_of(p.inner, j)
            probability = z.exp() / z.exp().sum(1, keepdim=True)
            for r in range(REPLICATES):
                for row in range(ROWS):
                    share[r, row] += probability[r, int(y[r, 0, row]), row] / len(inner)
        total += share.log() / len(outer)
    return total


def argmax_probability(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """P(f_y is the largest), around f_y on a dense grid: [R, n]."""
    z = torch.linspace(-8, 8, 401, dtype=torch.float64)
    w = torch.softmax(-0.5 * z**2, 0)
    own = torch.nn.functional.one_hot(y[:, 0].long(), CLASSES).mT.bool()  # [R, C, n]
    mean_y, sd_y = ((own * t).sum(1, keepdim=True)[..., None] for t in (mean, variance.sqrt()))
    cdf = torch.special.ndtr((mean_y + sd_y * z - mean[..., None]) / variance.sqrt()[..., None])
    return torch.where(own[..., None], 1.0, cdf).prod(1) @ w


def robust_max(p: Likelihood, y: Tensor, f: Marginal) -> Tensor:
    """The ELBO and the predictive from π_y; VFITC with the outer draws, one by one."""
    epsilon = p.epsilon[:, None]
    miss = epsilon / (CLASSES - 1)
    if bool((f.inside == 0).all()):
        pi = argmax_probability(y, f.mean, f.outside)
        return pi * (1 - epsilon).log() + (1 - pi) * miss.log()
    total = torch.zeros(REPLICATES, ROWS, dtype=torch.float64)
    outer = range(p.outer().shape[1])
    for i in outer:
        g = f.mean + f.outside.sqrt() * draws_of(p.outer, i)
        pi = argmax_probability(y, g, f.inside)
        total = total + (pi * (1 - epsilon) + (1 - pi) * miss).log() / len(outer)
    return total


# -- the table ------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A likelihood that sees two latent functions (CLASSES of them for classes), and its brute force."""

    likelihood: Callable[[], Likelihood]
    brute: Callable[[Likelihood, Tensor, Marginal], Tensor]
    target: Callable[[Tensor], Tensor]  # from uniform numbers
    outputs: int = 2
    latents: int = 2


def one_latent(log_p: Callable[[Likelihood, Tensor, Tensor], Tensor]) -> Callable:
    return lambda p, y, f: on_grid(lambda y, f: log_p(p, y, f), y, f)


def real(u: Tensor) -> Tensor:
    return 4 * u - 2


def binary(u: Tensor) -> Tensor:
    return (2 * u).floor()


def numbers(u: Tensor) -> Tensor:
    return (CLASSES * u).floor()


CASES = {
    "gaussian": Case(lambda: GaussianLikelihood(2, 0.4), one_latent(gaussian), real),
    "student-t": Case(lambda: StudentTLikelihood(2), one_latent(student_t), real),
    "heteroscedastic": Case(
        lambda: HeteroscedasticGaussianLikelihood(1, 0.3, nodes=32, outer_nodes=24),
        heteroscedastic,
        real,
        outputs=1,
    ),
    "probit": Case(lambda: BernoulliLikelihood("probit"), one_latent(probit), binary),
    "logit": Case(lambda: BernoulliLikelihood("logit"), one_latent(logit), binary),
    "poisson": Case(lambda: PoissonLikelihood(), one_latent(poisson), lambda u: (6 * u).floor()),
    "gamma": Case(lambda: GammaLikelihood(2), one_latent(gamma), lambda u: 0.2 + 2 * u),
    "beta": Case(lambda: BetaLikelihood(2), one_latent(beta), lambda u: 0.05 + 0.9 * u),
    "robust-max": Case(
        lambda: RobustMaxLikelihood(CLASSES, 0.02, samples=4), robust_max, numbers, 1, CLASSES
    ),
    "softmax": Case(
        lambda: SoftmaxLikelihood(CLASSES, samples=4, inner_samples=6), softmax, numbers, 1, CLASSES
    ),
}


def combinations() -> list[tuple[str, str, str, str]]:
    """(basis, q, objective, likelihood) of every loss that is compared here."""
    return [
        (row.name, q, objective, likelihood)
        for row in BASES
        for q in QS
        if q in row.qs
        for objective in THREE
        for likelihood in CASES
    ]


every_basis_and_q = pytest.mark.parametrize(
    ("row", "q"), [pytest.param(row, q, id=f"{row.name}-{q}") for row in BASES for q in QS if q in row.qs]
)


def generators(seed: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + r) for r in range(REPLICATES)]


def with_likelihood(model: Model, batch: Batch, case: Case, seed: int = 0) -> tuple[Model, Batch]:
    """A Gaussian problem's model and rows with another likelihood and targets for it."""
    g = torch.Generator().manual_seed(seed)
    model.likelihood = batched(case.likelihood(), (REPLICATES,)).double()
    with torch.no_grad():
        for p in model.likelihood.parameters():
            p += 0.4 * (torch.rand(p.shape, generator=g, dtype=torch.float64) - 0.5)
    model.likelihood.draw(generators(seed))
    u = torch.rand(REPLICATES, case.outputs, ROWS, generator=g, dtype=torch.float64)
    return model, batch._replace(y=case.target(u))


def dense_parts(model: Model, batch: Batch, f: dense.Dense) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, residual and explained variance [R, latents, n] by brute force, and the regulariser [R]."""
    mean = f.mean + dense.prior_mean(model, batch.x)
    residual, explained = (t.diagonal(dim1=-2, dim2=-1) for t in (f.residual, f.explained))
    if model.uses_omega:
        residual = residual + torch.as_tensor(f.nugget)[..., None]
    regulariser = model.beta1 * f.penalty.sum(-1)
    if f.omega is not None:
        regulariser = regulariser + model.beta2 * f.omega.sum(-1)
    return mean, residual, explained, regulariser


@every_basis_and_q
def test_loss_is_the_dense_objective_of_every_likelihood(row: Row, q: str) -> None:
    for latents in (2, CLASSES):
        model, batch, _ = random_problem(
            row.build, q, replicates=REPLICATES, latents=latents, n=ROWS, inducing=INDUCING, num_data=29
        )
        with torch.no_grad():
            mean, r, e, regulariser = dense_parts(model, batch, row.dense(model, batch.x))
            assert ((e == 0).all() or (e > 0).all()) and (r > 0).all()
            for name, case in CASES.items():
                if case.latents != latents:
                    continue
                model, rows = with_likelihood(model, batch, case)
                for objective in THREE:
                    model.objective = OBJECTIVES[objective]
                    data = case.brute(model.likelihood, rows.y, split(objective, mean, r, e))
                    expected = -data.mean(-1) + regulariser / model.num_data
                    assert_close(model.loss(rows), expected, rtol=0, atol=2e-6, msg=f"{name} {objective}")


def test_everything_is_combined_with_everything() -> None:
    assert len(combinations()) >= 250
    assert len(set(combinations())) == len(combinations())
    assert {c[3] for c in combinations()} == set(CASES)
    assert all(set(QS) <= set(row.qs) for row in BASES)


@pytest.mark.parametrize("objective", THREE)
@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_differences(name: str, objective: str) -> None:
    """Of the loss with respect to every parameter there is, of the model and of the likelihood."""
    case = CASES[name]
    shape = {"replicates": REPLICATES, "latents": case.latents, "n": ROWS, "inducing": INDUCING}
    model, batch, _ = random_problem(BASES[0].build, objective=objective, **shape)
    model, batch = with_likelihood(model, batch, case)
    model.loss(batch).sum().backward()
    g = torch.Generator().manual_seed(0)
    for parameter_name, p in learned(model):
        direction = torch.randn(p.shape, generator=g, dtype=torch.float64)
        with torch.no_grad():
            value, ends = p.clone(), []
            for step in (1e-4, -1e-4):
                p.copy_(value + step * direction)
                ends.append(model.loss(batch).sum())
            p.copy_(value)
        slope = (ends[0] - ends[1]) / 2e-4
        assert_close((p.grad * direction).sum(), slope, rtol=1e-4, atol=1e-5, msg=parameter_name)


# -- Monte Carlo against the integral it estimates ------------------------------------------------------


def robust_probit(epsilon: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda d, variance: (
        epsilon + (1 - 2 * epsilon) * torch.special.ndtr(d / variance.clamp_min(1e-12).sqrt())
    )


@pytest.mark.parametrize("objective", THREE)
@pytest.mark.parametrize("kind", ["softmax", "robust-max"])
def test_the_estimate_is_of_the_integral(kind: str, objective: str) -> None:
    """Two classes see only d = ±(f_1 − f_0), so a one-dimensional grid says what draws should average to."""
    model, batch, _ = random_problem(
        BASES[0].build, objective=objective, replicates=REPLICATES, latents=2, n=ROWS, inducing=INDUCING
    )
    epsilon = 0.05
    likelihood = {
        "softmax": lambda: SoftmaxLikelihood(2, samples=16, inner_samples=1024),
        "robust-max": lambda: RobustMaxLikelihood(2, epsilon, samples=16),
    }[kind]
    model.likelihood = batched(likelihood(), (REPLICATES,)).double()
    batch = batch._replace(y=(batch.y[:, :1] > 0).double())
    with torch.no_grad():
        f = model.marginals(batch.x)
        sign = 2 * batch.y[:, 0] - 1
        d = split(objective, sign * (f.mean[:, 1] - f.mean[:, 0]), f.residual.sum(1), f.explained.sum(1))
        if kind == "softmax":
            expected = on_grid(
                lambda y, d: torch.nn.functional.logsigmoid(d), batch.y, Marginal(*(t[:, None] for t in d))
            )
        elif objective == "elbo":
            pi = torch.special.ndtr(d.mean / d.outside.sqrt())
            expected = pi * math.log(1 - epsilon) + (1 - pi) * math.log(epsilon)
        else:
            g = d.mean[..., None] + d.outside.sqrt()[..., None] * GRID
            expected = robust_probit(epsilon)(g, d.inside[..., None]).log() @ WEIGHTS
        estimates = []
        for step in range(50):
            model.likelihood.draw(generators(10 * step))
            estimates.append(model.terms(batch)[0])
        values = torch.stack(estimates)
    error = values.std(0) / math.sqrt(len(values))
    assert ((values.mean(0) - expected).abs() <= 4 * error + 1e-3).all()
