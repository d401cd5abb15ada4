"""Layer components: q(u) and the mean on α, the residual on β (MATH §5.4, §11 B8), against dense algebra.

The process has mean K_xα K_α⁻¹m and covariance K_xx′ − K_xβ K_β⁻¹K_βx′ + K_xα K_α⁻¹ S K_α⁻¹K_αx′; jitter is
the variance of independent noises on f(α) and f(β), so its divergence from the prior is finite on any rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import Basis, LayerComponents
from duogp.inference.natural import NaturalGradient
from duogp.kernels import RBF
from duogp.models.model import Model
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import batched
from duogp.variational import CholeskyQ, PointQ
from duogp.variational.ridge import RIDGES, RidgeQ
from helpers import dense
from helpers.conformance import assert_gradient_is_that_of_differences
from helpers.dense import Gaussian, blocks, gaussian_kl, inv, k, t
from helpers.random_models import Parts, Problem, learned, random_problem

close = partial(assert_close, rtol=1e-8, atol=1e-8)

SHAPES = [{"replicates": 1, "latents": 1}, {"replicates": 2, "latents": 2}]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=["single", "replicates-latents"])
every_jitter = pytest.mark.parametrize("jitter", [0.0, 0.03], ids=["exact", "jitter"])
every_q = pytest.mark.parametrize("q", ["full", "diagonal"])


def components(beta: int, *, ridge: str | None = None, **options: bool) -> Callable[[Parts], Basis]:
    """|α| = 5 and |β| = beta, apart from each other."""

    def build(p: Parts) -> Basis:
        alpha, own = p.extra, p.z[..., :beta, :].clone()
        q = p.q(5) if ridge is None else RidgeQ(5, p.batch_shape, kind=ridge, penalty=0.3)
        return LayerComponents(p.kernel(), alpha, own, q, **options)

    return build


def problem(build: Callable[[Parts], Basis], q: str = "full", **settings: object) -> Problem:
    from helpers import random_models

    random_models.TYPICAL.setdefault("ridge_penalty", 0.3)
    return random_problem(build, q, **settings)


class DenseLayer:
    """The process on f(x), f(α) + √ε ξ and f(β) + √ε η, and its prior, by explicit inverses."""

    def __init__(self, model: Model, x: Tensor) -> None:
        basis, x = model.basis, x.unsqueeze(-3)
        a, b, kernel = basis.inducing, basis.residual_inducing, basis.kernel
        K_a, K_b = dense.inducing_prior(model, kernel, a), dense.inducing_prior(model, kernel, b)
        K_ab = k(kernel, a, b)
        on_points = blocks(K_a, K_ab, K_b)
        to_a, to_b = k(kernel, x, a), k(kernel, x, b)
        prior = blocks(k(kernel, x, x), torch.cat([to_a, to_b], -1), on_points)
        to_a, to_b = torch.cat([to_a, K_a, K_ab.mT], -2), torch.cat([to_b, K_ab, K_b], -2)
        q = basis.q_of(model.factors())
        L = torch.linalg.cholesky(K_a)
        self.u = Gaussian(t(q.mean, L), L @ q.covariance() @ L.mT)
        B = to_a @ inv(K_a)
        self.residual = prior - to_b @ inv(K_b) @ to_b.mT
        self.explained = B @ self.u.covariance @ B.mT
        self.q = Gaussian(t(self.u.mean, B), self.residual + self.explained)
        self.p = Gaussian(torch.zeros_like(self.q.mean), prior)
        self.K_a, self.K_b, self.K_ab, self.n = K_a, K_b, K_ab, x.shape[-2]

    def divergence(self, rows: slice = slice(None)) -> Tensor:
        """Of the last variables, which include all of α and β unless `rows` says otherwise."""
        q, p = (Gaussian(g.mean[..., rows], g.covariance[..., rows, rows]) for g in (self.q, self.p))
        return gaussian_kl(q, p)


def kl(model: Model) -> Tensor:
    factors = model.factors()
    return model.basis.kl(factors, model.basis.q_of(factors))


# -- marginals and divergence -------------------------------------------------------------------------------


@every_shape
@every_jitter
@every_q
def test_marginals_are_those_of_the_dense_process(q: str, jitter: float, shape: dict) -> None:
    model, _, x = problem(components(3), q, jitter=jitter, **shape)
    f, expected, n = model.marginals(x), DenseLayer(model, x), x.shape[-2]
    close(f.mean, expected.q.mean[..., :n] + dense.prior_mean(model, x))
    close(f.residual, expected.residual.diagonal(dim1=-2, dim2=-1)[..., :n])
    close(f.explained, expected.explained.diagonal(dim1=-2, dim2=-1)[..., :n])


@every_shape
@every_jitter
@every_q
@pytest.mark.parametrize("beta", [1, 3, 4])
def test_kl_is_that_of_the_process_on_its_points(beta: int, q: str, jitter: float, shape: dict) -> None:
    model, _, x = problem(components(beta), q, jitter=jitter, **shape)
    layer = DenseLayer(model, x)
    close(kl(model), layer.divergence(slice(layer.n, None)))
    assert (kl(model) > 0).all()


@every_jitter
def test_kl_does_not_change_when_rows_are_added(jitter: float) -> None:
    """The conditional of everything else given f(α), f(β) is the prior's: it is the KL of the process."""
    for seed in range(5):
        model, _, x = problem(components(3), seed=seed, jitter=jitter)
        layer = DenseLayer(model, x)
        close(kl(model), layer.divergence())
        assert (kl(model) >= layer.divergence(slice(0, layer.n)) - 1e-9).all()  # less is seen on fewer rows


def test_kl_is_the_long_formula_of_the_conditionals() -> None:
    """§5.4, with K_{α|β} and K_{β|α} spelled out."""
    for seed in range(5):
        model, _, x = problem(components(3), seed=seed)
        layer = DenseLayer(model, x)
        K_a, K_b, K_ab, (m, S) = layer.K_a, layer.K_b, layer.K_ab, layer.u
        a_given_b = K_a - K_ab @ inv(K_b) @ K_ab.mT
        b_given_a = K_b - K_ab.mT @ inv(K_a) @ K_ab
        A = K_ab.mT @ inv(K_a)
        expected = 0.5 * (
            (S @ inv(K_a)).diagonal(dim1=-2, dim2=-1).sum(-1)
            - K_b.shape[-1]
            + dense.quadratic(m, inv(K_a))
            - torch.logdet(a_given_b + S)
            - torch.logdet(A @ inv(inv(S) + inv(a_given_b)) @ A.mT)
            + torch.logdet(K_a)
            + torch.logdet(b_given_a)
        )
        close(kl(model), expected)


def test_the_printed_kl_is_eq_59_and_not_the_divergence_at_alpha() -> None:
    """½[tr SK_α⁻¹ + mᵀK_α⁻¹m − log|K_{α|β} + S| + log|K_α|]: the KL at α plus ½ tr K_α⁻¹K_αβK_β⁻¹K_βα."""
    for seed in range(5):
        model, _, x = problem(components(3, printed_kl=True), seed=seed)
        layer = DenseLayer(model, x)
        K_a, K_b, K_ab, (m, S) = layer.K_a, layer.K_b, layer.K_ab, layer.u
        explained = K_ab @ inv(K_b) @ K_ab.mT
        printed = 0.5 * (
            (S @ inv(K_a)).diagonal(dim1=-2, dim2=-1).sum(-1)
            + dense.quadratic(m, inv(K_a))
            - torch.logdet(K_a - explained + S)
            + torch.logdet(K_a)
        )
        close(kl(model), printed)
        at_alpha = layer.divergence(slice(layer.n, layer.n + 5))
        close(printed, at_alpha + 0.5 * (inv(K_a) @ explained).diagonal(dim1=-2, dim2=-1).sum(-1))
        model.basis.printed_kl = False
        assert (kl(model) > at_alpha).all()


@pytest.mark.parametrize("kind", RIDGES)
@every_jitter
def test_kl_with_a_ridge_covariance(kind: str, jitter: float) -> None:
    """L_S is then not square."""
    model, _, x = problem(components(3, ridge=kind), jitter=jitter, replicates=2, latents=2)
    layer = DenseLayer(model, x)
    close(kl(model), layer.divergence(slice(layer.n, None)))


def test_without_variance_at_alpha_the_kl_is_that_of_a_conditioned_prior() -> None:
    """S → 0 with m = 0: f(β) is known to be zero, and the price is infinite, like −|β| log‖L_S‖."""
    model, _, _ = problem(components(2))
    q = model.basis.q
    values = []
    for scale in (1e-4, 1e-6):
        q.set_(torch.zeros_like(q.mean), scale * torch.eye(5).expand_as(q.raw_root))
        values.append(float(kl(model).detach()))
    assert values[1] - values[0] == pytest.approx(2 * torch.log(torch.tensor(100.0)).item(), rel=1e-4)


def test_kl_grows_as_a_residual_point_leaves_all_others() -> None:
    model, _, _ = problem(components(2))
    values = []
    for distance in (0.0, 2.0, 4.0):
        with torch.no_grad():
            model.basis.residual_inducing[..., 0, :] += distance
        values.append(float(kl(model).detach()))
    assert values[0] < values[1] < values[2]


def test_an_infinite_kl_says_so() -> None:
    """A β that no α reaches at all: the loop's guard sees a loss that is not finite, not a wrong number."""
    kernel = batched(RBF(1, lengthscale=0.1), (1, 1)).double()
    points = torch.tensor([[[[0.0], [0.3], [0.6]]]], dtype=torch.float64)
    basis = LayerComponents(kernel, points, points[..., :2, :] + 50.0, CholeskyQ(3, (1, 1)).double())
    factors = basis.factors(Numerics(1, 0.0))
    assert torch.isinf(basis.kl(factors, basis.q)).all()


# -- frozen, gradients, refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [None, *RIDGES])
def test_frozen_is_live(ridge: str | None) -> None:
    model, _, x = problem(components(3, ridge=ridge), replicates=2, latents=2, jitter=0.01)
    live = model.marginals(x)
    mean, residual, explained = model.frozen().joint(x.unsqueeze(-3))
    expected = DenseLayer(model, x)
    n = x.shape[-2]
    close(mean + dense.prior_mean(model, x), live.mean)
    close(residual.diagonal(dim1=-2, dim2=-1), live.residual)
    close(explained.diagonal(dim1=-2, dim2=-1), live.explained)
    close(residual, expected.residual[..., :n, :n])
    close(explained, expected.explained[..., :n, :n])


@pytest.mark.parametrize("objective", ["elbo", "vfitc", "predictive"])
@pytest.mark.parametrize("printed", [False, True])
def test_gradient_is_that_of_differences(objective: str, printed: bool) -> None:
    model, batch, _ = problem(components(3, printed_kl=printed), objective=objective, n=5, jitter=0.01)
    assert {name for name, _ in learned(model.basis)} > {"inducing", "residual_inducing", "q.raw_root"}
    assert_gradient_is_that_of_differences(model, batch)


@pytest.mark.parametrize("kind", RIDGES)
def test_gradient_with_a_ridge_covariance(kind: str) -> None:
    model, batch, _ = problem(components(3, ridge=kind), n=5, replicates=2, latents=2)
    model.basis.q.noise.requires_grad_(kind != "contracting")  # which has no use for it
    assert_gradient_is_that_of_differences(model, batch)


def test_a_shared_kernel_broadcasts_over_latent_functions() -> None:
    model, _, x = problem(components(3), latents=2)
    alone = LayerComponents(
        batched(RBF(2), (1, 1)).double(), model.basis.inducing, model.basis.residual_inducing, model.basis.q
    )
    each = LayerComponents(
        batched(RBF(2), (1, 2)).double(), model.basis.inducing, model.basis.residual_inducing, model.basis.q
    )
    found, expected = (
        basis.evaluate(x.unsqueeze(-3), basis.factors(model.numerics), model.numerics)
        for basis in (alone, each)
    )
    close(found[0].variance, expected[0].variance)
    close(found[1].kl, expected[1].kl)


def test_float32_is_close_to_float64() -> None:
    model, _, x = problem(components(3), jitter=1e-4)
    expected, expected_kl = model.marginals(x), kl(model)
    model.float().numerics.dtype = torch.float32
    f, found = model.marginals(x.float()), kl(model)
    assert_close(f.variance.double(), expected.variance, rtol=1e-4, atol=1e-5)
    assert_close(found, expected_kl, rtol=1e-4, atol=1e-4)


def test_natural_gradients_lower_the_loss_down_to_a_bound() -> None:
    """−N·loss = Σ data − KL at the best q(u) stays below log p(y)."""
    model, batch, _ = problem(components(3), n=8, beta1=1.0)
    natural = NaturalGradient(model.basis, model.num_data, 0.3)
    losses = []
    for _ in range(20):
        natural.zero_grad()
        loss = model.loss(batch).sum()
        loss.backward()
        losses.append(float(loss.detach()))
        natural.compute()
        natural.write()
    assert losses[-1] < losses[0] - 0.1 and losses[-1] <= min(losses) + 1e-9
    assert float(natural.shrink.min()) == 1.0  # no step left the positive cone
    assert -8 * losses[-1] < float(dense.exact_log_evidence(model, batch).detach())


def test_more_residual_points_than_inducing_points_are_refused() -> None:
    z = torch.zeros(1, 1, 4, 2)
    with pytest.raises(ValueError, match=r"got 5 and 4: .* infinite"):
        LayerComponents(RBF(2), z, torch.zeros(1, 1, 5, 2), CholeskyQ(4, (1, 1)))
    with pytest.raises(ValueError, match="at least 1 residual point"):
        LayerComponents(RBF(2), z, torch.zeros(1, 1, 0, 2), CholeskyQ(4, (1, 1)))
    with pytest.raises(ValueError, match=r"need a q\(u\) with a covariance, got PointQ"):
        LayerComponents(RBF(2), z, torch.zeros(1, 1, 2, 2), PointQ(4, (1, 1)))
