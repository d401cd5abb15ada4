"""Natural steps: the same in any coordinates (Salimbeni et al. 2018, appendix C.3), and beyond the Gaussian.

MATH §3.2, §11 A4, A5, B10. Exactness of natural steps is in inference/test_natural.py and test_mean_rules.py.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import Conditional, Hybrid, Marginals, TwoBlock
from duogp.inference.natural import NaturalGradient
from duogp.models.model import Batch, Model, take_replicate
from helpers import dense
from helpers.conformance import close, separate
from helpers.decoupled import SEEDS, climb, coefficients, natural_step, of_q, problem
from helpers.dense import inv, k, t
from helpers.devices import eye
from helpers.identities import bound_problem, put_optimum

pytestmark = pytest.mark.usefixtures("device")

# -- natural steps do not depend on the coordinates (appendix C.3) ----------------------------------------


class Unwhitened(NamedTuple):
    """A model as a function of q(u) = N(m, S), u = f(Z):  f = B u + offset + residual."""

    root: Tensor  # R of the library's coordinates, u = R v
    B: Tensor
    offset: Tensor
    residual: Tensor
    prior: Tensor  # K_Z
    centre: Tensor  # of the penalty ½(m − centre)ᵀK⁻¹(m − centre): not zero in hybrid coordinates
    mismatch: Tensor  # T of Ω, zero without one


def unwhitened(model: Model, x: Tensor) -> Unwhitened:
    """Dense formulas of the coupled, conditional, orthogonal and hybrid bases (MATH §1.1, §2.1, §3)."""
    basis, kernel, z, x = model.basis, model.basis.kernel, model.basis.inducing, x.unsqueeze(-3)
    K, K_xz = k(kernel, z, z), k(kernel, x, z)
    B, root = K_xz @ inv(K), torch.linalg.cholesky(K)
    residual = k(kernel, x, x) - B @ K_xz.mT
    offset, centre, T = torch.zeros_like(residual[..., 0]), torch.zeros_like(K[..., 0]), torch.zeros_like(K)
    if isinstance(basis, Conditional):
        Q = k(basis.mean_kernel, z, z)
        A, B = B, k(basis.mean_kernel, x, z) @ inv(Q)
        T = dense.mismatch(B - A, residual)
        root = torch.linalg.cholesky(Q) if basis.whitening == "Q" else root
    elif isinstance(basis, TwoBlock):
        prior = dense.two_block_prior(model, x)
        a = t(basis.q.mean[..., basis.q.size :], inv(torch.linalg.cholesky(prior.v)).mT)
        offset = t(a, prior.k_v)
    elif isinstance(basis, Hybrid):
        gamma, a = basis.mean_inducing, basis.a
        offset, lift = t(a, k(kernel, x, gamma)), t(a, k(kernel, z, gamma))
        if basis.orthogonal:
            offset = offset - t(lift, B)
        else:
            centre = -lift
    residual = residual.diagonal(dim1=-2, dim2=-1)
    return Unwhitened(*(part.detach() for part in (root, B, offset, residual, K, centre, T)))


def moments_of_u(model: Model, root: Tensor) -> tuple[Tensor, Tensor]:
    """m and S of u = R v."""
    q = model.basis.q
    return t(q.mean.detach()[..., : q.size], root), root @ q.covariance().detach() @ root.mT


def step_in_coordinates(
    model: Model, batch: Batch, parts: Unwhitened, A: Tensor, rho: float
) -> tuple[Tensor, Tensor]:
    """u = A w: one natural step on q(w), by the formulas of MATH §1.3 and autograd; its m and S of u."""
    m, S = moments_of_u(model, parts.root)
    w, W = t(m, inv(A)).requires_grad_(), (inv(A) @ S @ inv(A).mT).requires_grad_()
    mean, covariance = t(w, A), A @ W @ A.mT
    f = Marginals(
        t(mean, parts.B) + parts.offset + dense.prior_mean(model, batch.x),
        parts.residual,
        (parts.B @ covariance * parts.B).sum(-1),
    )
    apart, K_inv = mean - parts.centre, inv(parts.prior)
    divergence = 0.5 * ((K_inv * covariance).sum((-2, -1)) + dense.quadratic(apart, K_inv) - W.logdet())
    omega = 0.5 * ((parts.mismatch * covariance).sum((-2, -1)) + dense.quadratic(mean, parts.mismatch))
    value = model.objective(model.likelihood.bind(), f, batch.y).sum()
    value = value - (model.beta1 * divergence.sum(-1) + model.beta2 * omega.sum(-1)).sum()
    g_w, g_W = torch.autograd.grad(value, [w, W])
    g_W = 0.5 * (g_W + g_W.mT)
    w, P = w.detach(), inv(W.detach())
    P_new = P - 2 * rho * g_W  # −2 (t₂ + ρ ∂/∂e₂)
    new = t(t(w, P) + rho * (g_w - 2 * t(w, g_W)), inv(P_new))  # t₁ + ρ (∂/∂m − 2 (∂/∂S) m)
    return t(new, A), A @ inv(P_new) @ A.mT


def symmetric_root(K: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(K)
    return vectors * values.sqrt().unsqueeze(-2) @ vectors.mT


@pytest.mark.parametrize("rho", [0.3, 1.0])
@pytest.mark.parametrize(
    ("goal", "likelihood"), [("elbo", "gaussian"), ("vfitc", "gaussian"), ("elbo", "probit")]
)
@pytest.mark.parametrize(
    "name", ["coupled", "conditional-Q", "conditional-K", "orthogonal", "orthogonal-a", "hybrid"]
)
def test_a_natural_step_is_the_same_in_any_affine_coordinates(
    name: str, goal: str, likelihood: str, rho: float
) -> None:
    """The library's whitened step on q(u) is the one on u itself, on a_β = K⁻¹u, and on K^−½u."""
    model, batch, _ = problem(name, likelihood, objective=goal, beta1=0.7, beta2=0.3, latents=2)
    parts = unwhitened(model, batch.x)
    identity = eye(parts.prior.shape[-1]).expand_as(parts.prior)
    coordinates = {"u": identity, "a": parts.prior, "symmetric": symmetric_root(parts.prior)}
    expected = {n: step_in_coordinates(model, batch, parts, A, rho) for n, A in coordinates.items()}
    before = moments_of_u(model, parts.root)
    natural = natural_step(model, batch, rho)
    assert natural.shrink.item() == 1
    found = moments_of_u(model, parts.root)
    for theirs in expected.values():
        for ours, other in zip(found, theirs, strict=True):
            assert_close(ours, other, rtol=1e-8, atol=1e-8)
    assert (found[0] - before[0]).abs().max() > 1e-2


RULES = {"elbo": {}, "vfitc": {}, "predictive": {"always_positive": True}}


@pytest.mark.parametrize("rho", [0.3, 1.0])
@pytest.mark.parametrize("goal", RULES)
def test_hybrid_and_orthogonal_coordinates_take_the_same_step(goal: str, rho: float) -> None:
    """m_orthogonal = m_hybrid + φ_γ a before and after, a fixed; also by the always-positive rule."""
    one, batch, x = problem("hybrid", objective=goal)
    two = problem("orthogonal-a", objective=goal).model
    two.load_state_dict(one.state_dict())
    lift = one.factors().lift.detach()
    with torch.no_grad():
        two.basis.q.mean += lift
    for model in (one, two):
        natural_step(model, batch, rho, **RULES[goal])
    assert_close(two.basis.q.mean, one.basis.q.mean + lift, rtol=1e-8, atol=1e-8)
    assert_close(two.basis.q.covariance(), one.basis.q.covariance(), rtol=1e-8, atol=1e-8)
    for a, b in zip(one.marginals(x), two.marginals(x), strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rho", [0.3, 1.0])
@pytest.mark.parametrize("goal", RULES)
def test_whitening_by_either_kernel_takes_the_same_step_for_every_objective(goal: str, rho: float) -> None:
    """R v_Q = L_K v_K before and after (test_natural.py has the ELBO at 0.3)."""
    one, batch, x = problem("conditional-Q", objective=goal)
    two = problem("conditional-K", objective=goal).model
    two.load_state_dict(one.state_dict())
    with torch.no_grad():
        factors = one.factors()
        V = factors.covariance.L_inv @ factors.mean.L
        S = V @ one.basis.q.covariance() @ V.mT
        two.basis.q.set_(t(one.basis.q.mean, V), torch.linalg.cholesky(S))
    for model in (one, two):
        natural_step(model, batch, rho, **RULES[goal])
    assert_close(two.basis.q.mean, t(one.basis.q.mean, V), rtol=1e-8, atol=1e-8)
    for a, b in zip(one.marginals(x), two.marginals(x), strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rho", [0.3, 1.0])
@pytest.mark.parametrize("goal", RULES)
@pytest.mark.parametrize("name", ["coupled", "orthogonal"])
def test_the_order_of_inducing_points_does_not_matter_to_a_natural_step(
    name: str, goal: str, rho: float
) -> None:
    """Permuted Z, q rotated by U = L_p⁻¹ΠL (§11 A5): after a step one posterior, q rotated by U again."""
    one, batch, x = problem(name, objective=goal)
    two = problem(name, objective=goal).model
    order = torch.tensor([2, 0, 3, 1])
    q, size = one.basis.q, one.basis.q.size
    with torch.no_grad():
        two.basis.inducing.copy_(one.basis.inducing[..., order, :])
        of_u = [m.factors() if name == "coupled" else m.factors().u for m in (one, two)]
        U = of_u[1].L_inv @ of_u[0].L[..., order, :]
        mean = torch.cat([t(q.mean[..., :size], U), q.mean[..., size:]], -1)
        two.basis.q.set_(mean, torch.linalg.cholesky(U @ q.covariance() @ U.mT))
    for model in (one, two):
        natural_step(model, batch, rho, **RULES[goal])
    assert_close(two.basis.q.mean[..., :size], t(q.mean[..., :size], U), rtol=1e-8, atol=1e-8)
    for a, b in zip(one.marginals(x), two.marginals(x), strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_the_step_of_gamma_is_the_same_whitened_or_not() -> None:
    """§3.2: a_γ ← a_γ − τ C_γγ⁻¹∇, whether by metric C on a or by metric I on m_v = Cᵀa; u moves alike.

    The rule for plain coefficients adds 1e-6 of the prior variance to C, which is all they differ by.
    """
    one, batch, x = problem("orthogonal-a")
    two = problem("orthogonal").model
    two.basis.kernel.load_state_dict(one.basis.kernel.state_dict())
    two.mean.load_state_dict(one.mean.state_dict())
    two.likelihood.load_state_dict(one.likelihood.state_dict())
    with torch.no_grad():
        two.basis.inducing.copy_(one.basis.inducing)
        two.basis.orthogonal_inducing.copy_(one.basis.mean_inducing)
        m_v = t(one.basis.a, two.factors().v.L.mT)
        two.basis.q.set_(torch.cat([one.basis.q.mean, m_v], -1), one.basis.q.root())
    tau = 0.02  # below the stability limit of both, which would cut it
    prior = dense.two_block_prior(two, batch.x.unsqueeze(1))
    (slope,) = torch.autograd.grad(one.loss(batch).sum() * one.num_data.item(), one.basis.a)
    expected = one.basis.a.detach() - tau * t(slope, inv(prior.v))
    for model in (one, two):
        natural_step(model, batch, tau, mean_rule="exact")
    assert_close(coefficients(two), expected.detach(), rtol=1e-8, atol=1e-8)
    assert_close(coefficients(one), expected.detach(), rtol=1e-3, atol=1e-3)
    for a, b in zip(one.marginals(x), two.marginals(x), strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_holding_m_while_the_coefficients_of_the_hybrid_basis_move_is_another_step() -> None:
    """C.2: natural coordinates of the hybrid basis tie a_γ to m. Its rule moves a with m held, metric K_γ:
    a block of the metric, not all of it, so this step does depend on the coordinates."""
    one, batch, x = problem("hybrid")
    two = problem("orthogonal-a").model
    two.load_state_dict(one.state_dict())
    with torch.no_grad():
        two.basis.q.mean += one.factors().lift
    for a, b in zip(one.marginals(x), two.marginals(x), strict=True):
        close(a, b)
    for model in (one, two):
        natural_step(model, batch, 0.02, mean_rule="exact")
    assert_close(one.marginals(x).variance, two.marginals(x).variance, rtol=1e-8, atol=1e-8)
    assert (one.marginals(x).mean - two.marginals(x).mean).abs().max() > 1e-3


# -- natural steps for other likelihoods (§11 A4, B10) ----------------------------------------------------

#: q(u) of every basis with the rule for the rest of its mean; "adam" leaves that where it is
NATURAL = {
    "coupled": ("coupled", "adam"),
    "orthogonal-u": ("orthogonal", "adam"),
    "orthogonal-joint": ("orthogonal", "joint"),
    "orthogonal-a-u": ("orthogonal-a", "adam"),
    "solve-blocks": ("solve", "adam"),
    "solve-joint": ("solve", "joint"),
}


def gradient_left(model: Model, batch: Batch, natural: NaturalGradient) -> Tensor:
    """The largest derivative of Σ data − KL by what natural gradients move: [R]."""
    model.zero_grad()
    (model.loss(batch) * model.num_data).sum().backward()
    largest = []
    for name, p in of_q(model):
        if name == "a":  # waits for Adam
            continue
        grad = p.grad.tril() if name.endswith("raw_root") else p.grad
        if name == "q.mean" and natural.mean_rule is None:
            grad = grad[..., : model.basis.q.size]  # so does the mean of v
        largest.append(grad.abs().flatten(1).max(1).values)
    return torch.stack(largest).max(0).values


LOG_CONCAVE = [("elbo", "probit"), ("vfitc", "probit"), ("elbo", "logit")]


@pytest.mark.parametrize(("goal", "likelihood"), LOG_CONCAVE)
@pytest.mark.parametrize("case", NATURAL)
def test_full_natural_steps_climb_to_the_top(case: str, goal: str, likelihood: str) -> None:
    """ρ = 1, full batch: no step fails or lowers the objective, and they end where its gradient is zero."""
    name, rule = NATURAL[case]
    model, batch, _ = problem(name, likelihood, objective=goal, replicates=SEEDS)
    natural = NaturalGradient(model.basis, model.num_data, 1.0, mean_rule=rule, beta1=model.beta1)
    values = climb(model, batch, natural, 25)
    assert values.diff(dim=0).min() > -1e-9
    assert (values[-1] > values[0] + 1e-2).all()
    assert gradient_left(model, batch, natural).max() < 1e-5


@pytest.mark.parametrize("case", ["coupled", "orthogonal-joint", "solve-joint"])
def test_full_natural_steps_arrive_with_a_weighted_kl(case: str) -> None:
    """β₁ = 0.3 is part of the objective whose gradient they end at zero of."""
    name, rule = NATURAL[case]
    model, batch, _ = problem(name, "probit", replicates=SEEDS)
    model.beta1.fill_(0.3)
    natural = NaturalGradient(model.basis, model.num_data, 1.0, mean_rule=rule, beta1=model.beta1)
    climb(model, batch, natural, 40)
    assert gradient_left(model, batch, natural).max() < 1e-3


@pytest.mark.parametrize("case", ["coupled", "orthogonal-joint"])
def test_counts_may_have_to_go_down_before_they_climb(case: str) -> None:
    """Log-concave is not enough for ρ = 1: e^f has no largest curvature. Steps stay valid, and arrive."""
    name, rule = NATURAL[case]
    model, batch, _ = problem(name, "poisson", replicates=60)
    natural = NaturalGradient(model.basis, model.num_data, 1.0, mean_rule=rule, beta1=model.beta1)
    values = climb(model, batch, natural, 35)
    assert values.diff(dim=0).min() < -1
    assert gradient_left(model, batch, natural).max() < 1e-7


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
@pytest.mark.parametrize("name", ["coupled", "orthogonal", "solve"])
def test_predictive_converges_by_the_always_positive_rule(name: str, likelihood: str) -> None:
    """§11 A4, at ρ = 0.2: to a point without gradient, S positive all the way."""
    model, batch, _ = problem(name, likelihood, objective="predictive", replicates=SEEDS)
    natural = NaturalGradient(model.basis, model.num_data, 0.2, always_positive=True)
    values = climb(model, batch, natural, 80)
    assert (values[-1] > values[0]).all()
    assert gradient_left(model, batch, natural).max() < 1e-4


def test_half_a_step_of_the_always_positive_rule_may_go_to_and_fro() -> None:
    """ρ = ½ converges nearly always (§11 A4: 15 of 15), not always: one problem of these forty ends in a
    cycle of two around the optimum, which repels steps of that size; smaller ones find it."""
    model, batch, _ = problem("coupled", objective="predictive", replicates=40)
    model, batch = take_replicate(model, 32), Batch(batch.x[32:33], batch.y[32:33])
    natural = NaturalGradient(model.basis, model.num_data, 0.5, always_positive=True)
    values = climb(model, batch, natural, 150)[:, 0]
    assert_close(values[-1], values[-3], rtol=0, atol=1e-4)
    assert abs(values[-1] - values[-2]) > 1e-2
    natural.set_rate(0.2)
    assert climb(model, batch, natural, 80)[-1, 0] > values[-2:].max() + 1e-2
    assert gradient_left(model, batch, natural) < 1e-6


def test_natural_steps_on_s_where_the_mean_has_fewer_points() -> None:
    """S of the separate basis is exact in one step of size 1, also with |Z_μ| < |Z_σ|."""
    model, batch, _ = bound_problem(separate(-2))
    best = put_optimum(bound_problem(separate(-2)).model, batch)
    natural_step(model, batch, 1.0)
    assert_close(model.basis.q.covariance(), best.root @ best.root.mT, rtol=1e-8, atol=1e-8)
