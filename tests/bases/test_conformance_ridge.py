"""The ridge S of q(u): its whitened form is the printed one, and the KL the dense one (MATH §5.3, §11 B7)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import duogp
from duogp.bases import Coupled, TwoBlock
from duogp.kernels import RBF
from duogp.numerics.factorisation import Numerics
from duogp.numerics.parameters import Positive, batched
from duogp.variational import BlockQ, ShrunkQ
from duogp.variational.ridge import RIDGES, RidgeQ
from helpers import dense
from helpers.random_models import Parts, Problem, random_problem


def ridge(p: Parts, kind: str) -> RidgeQ:
    return RidgeQ(p.z.shape[-2], p.batch_shape, kind=kind, penalty=0.3)


def coupled(kind: str):
    return lambda p: Coupled(p.kernel(), p.z, ridge(p, kind))


def components(kind: str):
    def build(p: Parts) -> TwoBlock:
        q_v = ShrunkQ(p.extra.shape[-2], p.batch_shape, epsilon=0.0)
        return TwoBlock(p.kernel(), p.z, p.extra, BlockQ(ridge(p, kind), q_v))

    return build


def problem(build, **settings) -> Problem:
    """random_problem knows nothing of λ: give it a typical value first."""
    from helpers import random_models

    random_models.TYPICAL.setdefault("ridge_penalty", 0.3)
    return random_problem(build, **settings)


def printed(q: RidgeQ, K: Tensor, z: Tensor) -> Tensor:
    """S in the coordinates of u, as the paper writes it (with the corrected identity)."""
    lam, s2 = q.ridge_penalty()[..., None, None], q.noise()[..., None, None]
    if q.kind == "printed":
        inner = torch.linalg.inv(z.mT @ z + lam * dense.eye(z.shape[-1]))
        return s2 * (z @ inner @ z.mT + dense.eye(z.shape[-2]))
    shrink = K @ torch.linalg.inv(K + lam * dense.eye(K.shape[-1]))
    return s2 * (shrink + dense.eye(K.shape[-1])) if q.kind == "kernel" else lam * shrink


def prior_at(model, jitter: float = 0.0) -> tuple[Tensor, Tensor]:
    z = model.basis.inducing
    K = dense.k(model.basis.kernel, z, z)
    return z, K + jitter * K.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * dense.eye(K.shape[-1])


def first(model) -> RidgeQ:
    return model.basis.q.parts()[0][0]


@pytest.mark.parametrize("jitter", [0.0, 0.03])
@pytest.mark.parametrize("kind", RIDGES)
@pytest.mark.parametrize("build", [coupled, components], ids=["coupled", "components"])
def test_marginals_and_kl_are_those_of_the_unwhitened_s(build, kind, jitter):
    model, batch, x = problem(build(kind), jitter=jitter, replicates=2, latents=2)
    z, K = prior_at(model, jitter)
    S = printed(first(model), K, z)
    k_x = dense.k(model.basis.kernel, z, x.unsqueeze(1))
    w = torch.linalg.solve(K, k_x)
    f = model.marginals(x)
    assert_close(f.explained, (w * (S @ w)).sum(-2), rtol=1e-8, atol=1e-9)
    L = torch.linalg.cholesky(K)
    m = (L @ first(model).mean.unsqueeze(-1)).squeeze(-1)
    zero = torch.zeros_like(m)
    expected = dense.gaussian_kl(dense.Gaussian(m, S), dense.Gaussian(zero, K))
    _, penalties = model.basis.evaluate(batch.x.unsqueeze(-3), model.factors(), model.numerics)
    assert_close(penalties.kl, expected.sum(-1), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", RIDGES)
def test_frozen_is_live(kind):
    model, _, x = problem(components(kind), replicates=2, latents=2)
    live = model.marginals(x)
    mean, residual, explained = model.frozen().joint(x.unsqueeze(-3))
    assert_close(mean + dense.prior_mean(model, x), live.mean, rtol=1e-9, atol=1e-9)
    assert_close(residual.diagonal(dim1=-2, dim2=-1), live.residual, rtol=1e-9, atol=1e-9)
    assert_close(explained.diagonal(dim1=-2, dim2=-1), live.explained, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", RIDGES)
def test_gradients_by_central_differences(kind):
    model, batch, _ = problem(components(kind))
    parameters = [p for p in model.parameters() if p.requires_grad]
    model.loss(batch).sum().backward()
    g = torch.Generator().manual_seed(3)
    direction = [torch.randn(p.shape, generator=g, dtype=torch.float64) for p in parameters]
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, direction, strict=True) if p.grad is not None)
    h = 1e-5
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p += sign * h * d
            values.append(float(model.loss(batch).sum()))
            for p, d in zip(parameters, direction, strict=True):
                p -= sign * h * d
    assert float(slope) == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-6)


def test_eigenvalues_of_the_printed_form_lie_between_one_and_two_noises():
    model, _, _ = problem(coupled("printed"))
    z, K = prior_at(model)
    values = (
        torch.linalg.eigvalsh(printed(first(model), K, z)).detach() / first(model).noise()[..., None].detach()
    )
    assert float(values.min()) >= 1 - 1e-9 and float(values.max()) < 2


def test_the_contracting_form_never_exceeds_the_prior():
    model, _, _ = problem(coupled("contracting"))
    root = model.basis.q_of(model.factors()).root().detach()
    assert float(torch.linalg.eigvalsh(root @ root.mT).max()) <= 1 + 1e-12


def test_jitter_alone_decides_the_kl_of_the_printed_form():
    """§11 B7: (σ²/2) tr K_Z⁻¹. The contracting form hardly notices."""
    z = torch.linspace(0, 1, 40, dtype=torch.float64).view(1, 1, 40, 1)
    kernel = batched(RBF(1, lengthscale=0.3), (1, 1)).double()

    def kl(kind: str, jitter: float) -> float:
        q = RidgeQ(40, (1, 1), kind=kind, noise=batched(Positive(0.1), (1, 1))).double()
        basis = Coupled(kernel, z, q)
        factors = basis.factors(Numerics(1, jitter))
        return float(basis.kl(factors, basis.q_of(factors)).detach())

    assert kl("printed", 1e-6) > 50 * kl("printed", 1e-2)
    assert kl("contracting", 1e-6) < 3 * kl("contracting", 1e-2) + 50


@pytest.mark.parametrize("kind", RIDGES)
def test_dsgpc_fits_and_ties_its_noise_to_the_likelihood(kind):
    g = torch.Generator().manual_seed(0)
    x = torch.rand(80, 1, generator=g).numpy() * 6
    y = (torch.sin(torch.as_tensor(x[:, 0])) + 0.1 * torch.randn(80, generator=g)).numpy()
    gp = duogp.fit(x, y, "dsgpc", num_inducing=10, num_extra=10, ridge=kind, epochs=30, batch_size=40)
    q = gp.model.basis.q.parts()[0][0]
    assert q.noise is gp.model.likelihood.noise
    prediction = gp.predict(x)
    assert (prediction.variance > 0).all() and math.isfinite(prediction.metrics(y)["nll"])
    assert gp.num_variational_parameters() == 10
    with pytest.raises(ValueError, match="covariance of 'dsgpc' is ridge"):
        duogp.fit(x, y, "dsgpc", solver="closed-form")
