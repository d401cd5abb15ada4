"""ORTH as a decoupled basis, the chain of bounds on real data, minibatch gradients (identities 8, 9, 23).

8, 9, 11, 14, 16, 17 of the whitened bases are in test_conformance_two_block.py and
test_conformance_components.py, those of plain coefficients in test_conformance_hybrid.py; 10, 15 in
test_conformance_subspace.py; 13 in the gpytorch files.
"""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from duogp import data
from duogp.bases import Hybrid, Separate, TwoBlock
from duogp.kernels import RBF, Scale
from duogp.means import LinearMean
from duogp.models.model import Batch, Model
from duogp.numerics.parameters import batched
from duogp.variational import BlockQ
from helpers import dense
from helpers.conformance import close, conditional, solve
from helpers.decoupled import coefficients, every_basis, problem
from helpers.dense import inv, k, t
from helpers.devices import placed
from helpers.identities import bound_problem, penalties_of
from helpers.random_models import learned, random_problem
from helpers.two_block import chain, full_q, kl, twin

pytestmark = pytest.mark.usefixtures("device")

# -- 8: ORTH, hybrid and decoupled are one family ---------------------------------------------------------


@pytest.mark.parametrize("goal", ["elbo", "vfitc", "predictive"])
@pytest.mark.parametrize("name", ["orthogonal", "orthogonal-a", "hybrid"])
def test_identity_08_they_are_the_decoupled_basis_on_all_points(name: str, goal: str) -> None:
    """α = (γ, β), coefficients (a_γ, a_β − K_β⁻¹K_βγ a_γ), S on β: marginals, split, ‖μ‖², KL and loss."""
    model, batch, x = problem(name, objective=goal, latents=2)
    basis, beta = model.basis, model.basis.inducing
    gamma = basis.mean_inducing if isinstance(basis, Hybrid) else basis.orthogonal_inducing
    alpha = torch.cat([gamma, beta], -2).detach()
    with torch.no_grad():
        K_inv, K_bg = inv(k(basis.kernel, beta, beta)), k(basis.kernel, beta, gamma)
        a_gamma = coefficients(model)
        m = t(basis.q.mean[..., : basis.q.size], torch.linalg.cholesky(k(basis.kernel, beta, beta)))
        a_beta = t(m, K_inv) if name == "hybrid" else t(m, K_inv) - t(a_gamma, K_inv @ K_bg)
        a = torch.cat([a_gamma, a_beta], -1)
        other = twin(model, Separate(basis.kernel, alpha, beta.detach().clone(), full_q(4, basis.q, 9)))
        other.basis.q.set_(t(a, other.factors().mean.L.mT), basis.q.root())
    for ours, theirs in zip(model.marginals(x), other.marginals(x), strict=True):
        close(ours, theirs)
    close(dense.quadratic(a, k(basis.kernel, alpha, alpha)), other.basis.q.mean.square().sum(-1))
    close(kl(model), kl(other))
    close(model.loss(batch), other.loss(batch))


# -- 9: the chain on more data ----------------------------------------------------------------------------


def rows_of(name: str, n: int, count: int) -> tuple[Batch, Tensor]:
    """Standardised rows, and other rows as inducing points."""
    try:
        table = data.load(f"regression/{name}")
    except FileNotFoundError as error:
        pytest.skip(f"no benchmark data: {error}")
    order = np.random.default_rng(0).permutation(len(table.X))[: n + count]
    X, y = table.X[order].astype(np.float64), table.y[order].astype(np.float64)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    x, target = placed(torch.as_tensor(X)[None]), placed(torch.as_tensor(y).reshape(1, 1, -1))
    return Batch(x[:, :n], target[..., :n]), x[:, None, n:]


@pytest.mark.parametrize(("lengthscale", "noise"), [(3.0, 0.05), (1.0, 0.3)])
@pytest.mark.parametrize("name", ["concrete", "energy"])
def test_identity_09_the_chain_of_bounds_on_real_data(name: str, lengthscale: float, noise: float) -> None:
    """SVGP(β) < ORTH < SOLVE < SVGP(β ∪ γ) < log p(y) at the optimum; 600 rows, 40 + 60 points."""
    batch, points = rows_of(name, 600, 100)
    small, _, _ = bound_problem(solve(+1), jitter=1e-6)
    dims = batch.x.shape[-1]
    kernel = placed(batched(Scale(RBF(dims)), (1, 1)).double())
    kernel.kernel.lengthscale.set_(lengthscale)
    small.mean = placed(batched(LinearMean(dims), (1, 1)).double())
    small.likelihood.noise.set_(noise)
    small.num_data.fill_(600)
    q = BlockQ(full_q(40, small.basis.q), full_q(60, small.basis.q))
    model = twin(small, TwoBlock(kernel, points[..., :40, :].clone(), points[..., 40:, :].clone(), q))
    values = chain(model, batch)
    assert all(a + 0.1 < b for a, b in pairwise(values)), values


# -- 23: minibatches --------------------------------------------------------------------------------------


def gradients(model: Model, batch: Batch) -> dict[str, Tensor]:
    named = dict(learned(model))
    found = torch.autograd.grad(model.loss(batch).sum(), list(named.values()))
    return dict(zip(named, found, strict=True))


def minibatch_gradients(model: Model, batch: Batch, size: int) -> dict[str, Tensor]:
    """Averaged over every minibatch there is."""
    subsets = [list(rows) for rows in itertools.combinations(range(batch.x.shape[1]), size)]
    each = [gradients(model, Batch(batch.x[:, rows], batch.y[..., rows])) for rows in subsets]
    return {name: torch.stack([g[name] for g in each]).mean(0) for name in each[0]}


@pytest.mark.parametrize("goal", ["elbo", "vfitc", "predictive"])
@every_basis
def test_identity_23_minibatch_gradients_average_to_the_full_one(name: str, goal: str) -> None:
    """Data terms and KL, for every parameter there is; Ω is off."""
    model, batch, _ = problem(name, objective=goal, n=5, beta1=0.7, beta2=0.0)
    expected = gradients(model, batch)
    for parameter, found in minibatch_gradients(model, batch, 2).items():
        close(found, expected[parameter], msg=parameter)
        assert found.abs().max() > 0


def test_identity_23_those_of_omega_over_rows_do_too() -> None:
    """Blocks of one row are a partition whatever the batches are (§11 B6)."""
    model, batch, _ = random_problem(conditional("Q", "rows"), n=6, beta1=0.7, beta2=1.0)
    expected, found = gradients(model, batch), minibatch_gradients(model, batch, 2)
    for name, gradient in found.items():
        close(gradient, expected[name], msg=name)


@pytest.mark.parametrize("omega", ["batch", "blocks"])
def test_identity_23_those_of_omega_do_not(omega: str) -> None:
    """Unscaled, a batch sees too little of Ω (§2.3); scaled, the blocks of a partition are those of another
    prior (§11 B6). Neither averages to the Ω of all rows, in value or gradient."""
    model, batch, _ = random_problem(conditional("Q", omega, nugget=0.0), n=6, beta1=0.7, beta2=1.0)
    model.basis.mean_kernel.kernel.lengthscale.set_(2.0)
    whole = penalties_of(model, batch.x)[1].item()
    pairs = [list(rows) for rows in itertools.combinations(range(6), 2)]
    part = float(np.mean([penalties_of(model, batch.x[:, rows])[1].item() for rows in pairs]))
    assert part < 0.6 * whole and 3 * part > 1.3 * whole  # 0.135, 0.404 and 0.292
    expected, found = gradients(model, batch), minibatch_gradients(model, batch, 2)
    for name in ("basis.q.mean", "basis.q.raw_root", "basis.mean_kernel.kernel.lengthscale.raw"):
        assert (found[name] - expected[name]).abs().max() > 1e-3, name
