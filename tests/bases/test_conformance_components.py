"""DSGPC, v ~ N(0, εI): identities 11 and 17 of MATH §8, its surrogate and its optimum (§5)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from duogp.bases import Basis
from duogp.methods import METHODS
from duogp.variational import BlockQ, ShrunkQ
from helpers import dense
from helpers.conformance import components, every_objective, orthogonal, solve
from helpers.dense import Gaussian, inv, log_evidence, quadratic, t
from helpers.devices import placed
from helpers.identities import bound_problem, collapsed_value, diagonal, objective_value, put_optimum
from helpers.random_models import Parts, Problem, random_problem
from helpers.two_block import (
    BUILDERS,
    SEEDS,
    blocks_of,
    close,
    coupled_on,
    kl,
    matrices,
    same_process,
    titsias_covariance,
    trace_term,
    two_block_on,
    unwhitened,
)

pytestmark = pytest.mark.usefixtures("device")

every_builder = pytest.mark.parametrize("name", BUILDERS)


def test_identity_11_equation_10_is_the_kl_on_alpha_and_a_constant() -> None:
    """½[tr S K_α⁻¹ + mᵀK_α⁻¹m − log|K_α − K_αZ K_Z⁻¹K_Zα + S|/|K_α|] − M_α/2, Z = α ∪ β; β does not enter."""
    for seed in SEEDS:
        model, _, _ = random_problem(BUILDERS["components"], seed=seed, latents=2)
        basis = model.basis
        prior = dense.two_block_prior(model, basis.inducing)
        u, _ = dense.two_block_q(model, prior)
        conditional = prior.u - prior.k_joint @ inv(prior.joint) @ prior.k_joint.mT
        assert conditional.abs().max() < 1e-9  # α is in Z
        equation_10 = 0.5 * (
            diagonal(inv(prior.u) @ u.covariance).sum(-1)
            + quadratic(u.mean, inv(prior.u))
            - torch.logdet(conditional + u.covariance)
            + torch.logdet(prior.u)
        )
        close(kl(model), equation_10 - basis.inducing.shape[-2] / 2)
        assert (kl(model) > 0).all()  # identity 24
        close(kl(model), dense.gaussian_kl(u, Gaussian(torch.zeros_like(u.mean), prior.u)))


def test_identity_11_the_posterior_of_the_surrogate_is_rank_deficient() -> None:
    """On Z its covariance has rank M_α: f(β) is a function of f(α), and no KL to the prior exists."""
    model, _, _ = random_problem(BUILDERS["components"])
    z = torch.cat([model.basis.inducing, model.basis.orthogonal_inducing], -2)
    _, residual, explained = model.frozen().joint(z)
    assert torch.linalg.matrix_rank(residual + explained, atol=1e-9).item() == 4


@pytest.mark.parametrize("epsilon", [1.0, 0.5, 1e-3, 1e-8])
def test_identity_11_the_kl_of_a_shrunk_block(epsilon: float) -> None:
    """KL(m, S ‖ K_α) + (M_β/2)(ε − 1 − log ε), the dense KL; residual + ε (Q_Z − Q_α)."""
    model, _, x = random_problem(components(+1, epsilon), latents=2)
    prior = dense.two_block_prior(model, x.unsqueeze(1))
    u, v = dense.two_block_q(model, prior)
    of_u = dense.gaussian_kl(u, Gaussian(torch.zeros_like(u.mean), prior.u))
    e = placed(torch.tensor(epsilon, dtype=torch.float64))
    close(kl(model), of_u + 5 / 2 * (e - 1 - e.log()))
    close(v.covariance, epsilon * prior.v)
    if epsilon >= 1e-3:  # the dense KL inverts S
        joint = dense.stacked(u, v, prior.gain)
        close(kl(model), dense.gaussian_kl(joint, Gaussian(torch.zeros_like(joint.mean), prior.joint)))
    of_v = diagonal(prior.k_v @ inv(prior.v) @ prior.k_v.mT)
    B = prior.k_u @ inv(prior.u)
    close(model.marginals(x).explained, diagonal(B @ u.covariance @ B.mT) + epsilon * of_v)


def test_identity_17_a_shrunk_block_at_one_is_svgp() -> None:
    """ε = 1: SVGP(α), process, KL and ELBO."""
    model, batch, x = random_problem(components(+1, 1.0), latents=2, jitter=0.01)
    other = coupled_on(model, model.basis.inducing)
    other.basis.q.load_state_dict(blocks_of(model)[0].state_dict())
    same_process(model, other, x)
    close(model.loss(batch), other.loss(batch))
    close(collapsed_value(model, batch), collapsed_value(other, batch))


def empty(build: Callable[[Parts], Basis]) -> Callable[[Parts], Basis]:
    """O without points."""
    return lambda p: build(p._replace(extra=p.extra[..., :0, :]))


@every_objective
@every_builder
def test_identities_14_and_17_an_empty_second_block_is_svgp(name: str, objective: str) -> None:
    """M_o = 0: marginals, split, loss and gradient of SVGP(Z); and the collapsed bound."""
    build = {
        "solve": solve(0),
        "orthogonal": orthogonal(0),
        "components-eps": components(0, 0.2),
        "components": components(0, 0.0),
    }[name]
    model, batch, x = random_problem(empty(build), objective=objective, latents=2, jitter=0.01)
    assert model.basis.orthogonal_inducing.shape[-2] == 0
    other = coupled_on(model, model.basis.inducing)
    u = model.basis.q if name == "orthogonal" else blocks_of(model)[0]
    other.basis.q.load_state_dict(u.state_dict())
    same_process(model, other, x)
    for a, b in zip(model.marginals(x), other.marginals(x), strict=True):
        close(a, b)
    loss, expected = model.loss(batch), other.loss(batch)
    close(loss, expected)
    gradients = [torch.autograd.grad(m.sum(), model.basis.kernel.variance.raw) for m in (loss, expected)]
    close(gradients[0][0], gradients[1][0])
    if objective in ("elbo", "vfitc"):
        close(collapsed_value(model, batch), collapsed_value(other, batch))


def test_identity_17_more_points_leave_less_residual() -> None:
    """Nested O: the residual variance never grows, the surrogate's bound never falls, its KL stays."""
    for seed in SEEDS:
        model, batch, x = bound_problem(BUILDERS["components"], seed=seed)
        o, u = model.basis.orthogonal_inducing, blocks_of(model)[0]
        models = [
            two_block_on(model, o[..., :size, :], BlockQ(u, placed(ShrunkQ(size, (1, 1)).double())))
            for size in range(6)
        ]
        for a, b in pairwise(models):
            assert (b.marginals(x).residual < a.marginals(x).residual + 1e-12).all()
            assert (collapsed_value(b, batch) > collapsed_value(a, batch)).all()
            close(kl(a), kl(b))


def test_identity_11_collapsed_surrogate() -> None:
    """log N(y | 0, Q_α + s²I) − tr(K − Q_Z)/2s², with m*, S* the Titsias formulas on α."""
    for seed in SEEDS:
        model, batch, _ = bound_problem(BUILDERS["components"], seed=seed)
        m = matrices(model, batch)
        expected = (log_evidence(m.y, m.Q_u + m.noise) - trace_term(m, m.Q_both)).sum(-1)
        best = put_optimum(model, batch)
        close(objective_value(model, batch), expected)
        close(collapsed_value(model, batch), expected)
        S = best.root @ best.root.mT
        u = unwhitened(Gaussian(best.mean[..., :4], S[..., :4, :4]), m.prior.u)
        expected_S = titsias_covariance(m.prior.u, m.prior.k_u, m.noise)
        close(u.covariance, expected_S)
        close(u.mean, t(m.y, expected_S @ inv(m.prior.u) @ m.prior.k_u.mT @ inv(m.noise)))
        assert best.mean[..., 4:].abs().max() == 0 and S[..., 4:, :].abs().max() == 0


def test_collapsed_shrunk_block() -> None:
    """log N(y | 0, Q_α + s²I) − tr(K − (1−ε)Q_Z − εQ_α)/2s² − (M_β/2)(ε − 1 − log ε)."""
    for seed in SEEDS:
        model, batch, _ = bound_problem(BUILDERS["components-eps"], seed=seed)
        m = matrices(model, batch)
        expected = log_evidence(m.y, m.Q_u + m.noise) - trace_term(m, 0.8 * m.Q_both + 0.2 * m.Q_u)
        expected = expected - 5 / 2 * (0.2 - 1 - torch.tensor(0.2, dtype=torch.float64).log())
        close(collapsed_value(model, batch), expected.sum(-1))


def test_identity_11_the_surrogate_is_a_bound_for_a_smaller_prior() -> None:
    """L ≤ log N(y | 0, K − Q_Z + Q_α + s²I): span(β) without α is deleted from the prior."""
    for seed in range(30):
        model, batch, _ = bound_problem(BUILDERS["components"], seed=seed)
        m = matrices(model, batch)
        evidence = log_evidence(m.y, m.K - m.Q_both + m.Q_u + m.noise).sum(-1)
        assert objective_value(model, batch) < collapsed_value(model, batch) < evidence


def covering_problem() -> Problem:
    """O on every row, and targets that the prior without v finds more probable: zero."""
    model, batch, x = bound_problem(BUILDERS["components"], n=9)
    o = batch.x.unsqueeze(1)
    q = BlockQ(blocks_of(model)[0], placed(ShrunkQ(o.shape[-2], (1, 1)).double()))
    model = two_block_on(model, o, q)
    model.likelihood.noise.set_(0.02)
    return Problem(model, batch._replace(y=dense.prior_mean(model, batch.x).detach()), x)


def test_identity_11_the_surrogate_exceeds_the_evidence() -> None:
    """β covers X: the objective is DTC's, log N(y | 0, Q_α + s²I), here many nats above log p(y)."""
    model, batch, _ = covering_problem()
    m = matrices(model, batch)
    value = collapsed_value(model, batch)
    close(value, log_evidence(m.y, m.Q_u + m.noise).sum(-1))
    exact = dense.exact_log_evidence(model, batch)
    assert value > exact + 5
    assert not METHODS["dsgpc-free"].is_bound
    for epsilon in (1e-12, 1e-3, 0.1, 0.5, 1.0):  # paying for v repairs it
        q = BlockQ(blocks_of(model)[0], placed(ShrunkQ(9, (1, 1), epsilon=epsilon).double()))
        other = two_block_on(model, model.basis.orthogonal_inducing, q)
        assert collapsed_value(other, batch) < exact
