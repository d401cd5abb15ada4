"""The negative ELBO is convex in the means and the factor of S (Salimbeni et al. 2018, appendix B)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import Separate, Subspace
from duogp.models.model import Batch, Model
from duogp.variational import CholeskyQ
from helpers.decoupled import LIKELIHOODS, normal, objective, of_q, problem
from helpers.dense import t
from helpers.devices import placed
from helpers.two_block import twin

pytestmark = pytest.mark.usefixtures("device")

DRAWS = 40
STEPS = torch.linspace(0, 1, 9, dtype=torch.float64)


def random_end(model: Model, generator: torch.Generator) -> dict[str, Tensor]:
    """Variational parameters of any size; the factors of S are triangular with a positive diagonal."""
    end = {}
    for name, p in of_q(model):
        scale = placed(10 ** (torch.rand(p.shape[0], generator=generator, dtype=torch.float64) - 0.5))
        end[name] = normal(p, generator) * scale.view(-1, *[1] * (p.dim() - 1))
        if name.endswith("raw_root"):
            end[name] = end[name].tril()
            end[name].diagonal(dim1=-2, dim2=-1).abs_().clamp_min_(1e-2)
    return end


@torch.no_grad()
def along(model: Model, batch: Batch, start: dict[str, Tensor], end: dict[str, Tensor]) -> Tensor:
    """The negative objective at points of the segment between two q: [points, R]."""
    values = []
    for step in STEPS.tolist():
        for name, p in of_q(model):
            p.copy_((1 - step) * start[name] + step * end[name])
        values.append(-objective(model, batch))
    return torch.stack(values)


def curvature(values: Tensor) -> Tensor:
    """Second differences: [points − 2, R]."""
    return values[:-2] - 2 * values[1:-1] + values[2:]


def least_curvature(start: dict[str, Tensor], end: dict[str, Tensor]) -> Tensor:
    """h²‖ΔL‖², the second difference of ½ tr S, whitened: KL alone bends as much: [R]."""
    change = sum((end[n] - start[n]).square().flatten(1).sum(1) for n in start if n.endswith("raw_root"))
    return float(STEPS[1] - STEPS[0]) ** 2 * change


def bulge(values: Tensor) -> Tensor:
    """What the midpoint has above the mean of the ends; never positive for a convex function: [R]."""
    return values[len(values) // 2] - 0.5 * (values[0] + values[-1])


CONVEX = ["coupled", "orthogonal", "orthogonal-a", "hybrid", "solve", "separate"]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", CONVEX)
def test_the_negative_elbo_is_convex_in_the_means_and_the_factor_of_s(name: str, likelihood: str) -> None:
    """Log-concave likelihoods: convex in (a_γ, a_β, L), S = LLᵀ, diag L > 0, and in any affine image of them.

    Strongly, because the KL is. Quadrature keeps it exactly: Σ w F(μ + √v z) with symmetric nodes is convex
    in (μ, √v), and √v in L.
    """
    model, batch, _ = problem(name, likelihood, replicates=DRAWS)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        assert_convex(model, batch, random_end(model, generator), random_end(model, generator))


def assert_convex(model: Model, batch: Batch, start: dict[str, Tensor], end: dict[str, Tensor]) -> None:
    values, least = along(model, batch, start, end), least_curvature(start, end)
    assert values.isfinite().all() and (least > 0).all()
    rounding = 1e-13 * values.abs().max(0).values
    assert (curvature(values) > least - rounding).all()
    assert (bulge(values) < 0).all()


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
@pytest.mark.parametrize("name", ["coupled", "orthogonal", "orthogonal-a"])
def test_so_is_the_negative_vfitc_objective(name: str, likelihood: str) -> None:
    """E_{f|u} p(y|f) is log-concave in E[f|u]: a log-concave density convolved with a Gaussian (§11 A4)."""
    model, batch, _ = problem(name, likelihood, objective="vfitc", replicates=DRAWS)
    generator = torch.Generator().manual_seed(2)
    assert_convex(model, batch, random_end(model, generator), random_end(model, generator))


def test_the_inverse_form_of_the_covariance_is_not_convex() -> None:
    """Σ⁻¹ = I + Ψ_β B Ψ_βᵀ, B = LLᵀ: segments bulge by nats, although diag L keeps its sign along them.

    The mean is not to blame: with L held, the objective is convex in a. And between the same two posteriors
    the segment in the S form does not bulge.
    """
    model, batch, _ = problem("subspace", replicates=DRAWS)
    model.likelihood.noise.set_(0.05)
    generator = torch.Generator().manual_seed(3)
    start, end = random_end(model, generator), random_end(model, generator)
    values = along(model, batch, start, end | {"q.a0": start["q.a0"]})
    assert (curvature(values).min(0).values < -0.1).double().mean() > 0.5
    assert bulge(values).max() > 3

    same_covariance = end | {"q.raw_root": start["q.raw_root"]}
    assert curvature(along(model, batch, start, same_covariance)).min() > 1e-3

    s_form = twin(model, separate_like(model.basis))
    ends = []
    for place in (start, end):
        with torch.no_grad():
            for name, p in of_q(model):
                p.copy_(place[name])
            factors = model.factors()
            root = torch.linalg.cholesky(model.basis.q_of(factors).covariance())
            m = t(factors.a, s_form.factors().mean.L.mT)  # a = L_α⁻ᵀ m
        ends.append({"q.mean": m, "q.raw_root": root})
    inverse_form, values = along(model, batch, start, end), along(s_form, batch, *ends)
    assert_close(values[[0, -1]], inverse_form[[0, -1]], rtol=1e-8, atol=1e-8)
    assert_convex(s_form, batch, *ends)


def separate_like(basis: Subspace) -> Separate:
    alpha, beta = (p.detach().clone() for p in (basis.mean_inducing, basis.inducing))
    q = CholeskyQ(beta.shape[-2], basis.q.a0.shape[:-1], mean_size=alpha.shape[-2])
    return Separate(basis.kernel, alpha, beta, placed(q.double()))


def test_the_predictive_objective_is_not_convex_either() -> None:
    """log E p(y|f) is no expectation of a concave function: even the coupled basis has bulging segments."""
    model, batch, _ = problem("coupled", objective="predictive", replicates=DRAWS)
    model.likelihood.noise.set_(0.05)
    generator = torch.Generator().manual_seed(4)
    values = along(model, batch, random_end(model, generator), random_end(model, generator))
    assert curvature(values).min() < -0.1


def test_convexity_is_strict_only_where_no_mean_point_is_an_inducing_point() -> None:
    """γ₀ = β₀: C_γγ has a zero row, the orthogonal basis no use for a_γ₀; the hybrid one bends along it."""
    for name, bends in (("orthogonal-a", False), ("hybrid", True)):
        model, batch, _ = problem(name)
        with torch.no_grad():
            model.basis.mean_inducing[..., 0, :] = model.basis.inducing[..., 0, :]
        start = {n: p.detach().clone() for n, p in of_q(model)}
        moved = start["a"].clone()
        moved[..., 0] += 5.0
        values = along(model, batch, start, start | {"a": moved})
        assert (curvature(values).min() > 1e-3) == bends
        assert (values.std(0).max() < 1e-8) != bends
