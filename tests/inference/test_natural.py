"""Natural gradients: exact where they should be, positive where they must be (MATH §3.2, §11 A4, B10)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import duogp
from duogp.bases import Conditional, Coupled, Separate, TwoBlock
from duogp.inference.closed_form import CollapsedObjective
from duogp.inference.natural import NaturalGradient, covariance_gradient
from duogp.models.model import Batch, Model
from duogp.variational import BlockQ, CholeskyQ
from helpers.devices import eye, placed
from helpers.random_models import Parts, random_problem

pytestmark = pytest.mark.usefixtures("device")


def solve(p: Parts) -> TwoBlock:
    return TwoBlock(p.kernel(), p.z, p.extra, BlockQ(p.q(), p.q(p.extra.shape[-2])))


def orth(p: Parts) -> TwoBlock:
    size = p.z.shape[-2]
    return TwoBlock(p.kernel(), p.z, p.extra, p.q(mean_size=size + p.extra.shape[-2]), mean_only=True)


BASES = {
    "coupled": lambda p: Coupled(p.kernel(), p.z, p.q()),
    "conditional-Q": lambda p: Conditional(p.kernel(), p.kernel(), p.z, p.q(), whitening="Q", omega="full"),
    "conditional-K": lambda p: Conditional(p.kernel(), p.kernel(), p.z, p.q(), whitening="K", omega="full"),
    "separate": lambda p: Separate(p.kernel(), p.extra, p.z, p.q(mean_size=p.extra.shape[-2])),
    "orth": orth,
    "solve": solve,
}


def one_step(model: Model, batch: Batch, rate: float, *, always_positive: bool = False) -> NaturalGradient:
    natural = NaturalGradient(model.basis, model.num_data, rate, always_positive=always_positive)
    natural.zero_grad()
    model.loss(batch).sum().backward()
    natural.compute()
    natural.write()
    return natural


def optimum(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    best = CollapsedObjective(model, [lambda: batch]).solve()
    return best.mean, best.root @ best.root.mT


@pytest.mark.parametrize("replicates", [1, 2])
@pytest.mark.parametrize("objective", ["elbo", "vfitc"])
@pytest.mark.parametrize(("beta1", "beta2"), [(1.0, 1.0), (0.5, 0.1), (1.0, 0.0)])
@pytest.mark.parametrize("name", ["coupled", "conditional-Q", "conditional-K"])
def test_one_step_of_size_one_over_beta_is_the_optimum(name, beta1, beta2, objective, replicates):
    """Identities 2 and 5: from any start, Gaussian likelihood, full batch."""
    model, batch, _ = random_problem(
        BASES[name], "full", objective, beta1=beta1, beta2=beta2, replicates=replicates, latents=2
    )
    mean, S = optimum(model, batch)
    one_step(model, batch, 1 / beta1)
    assert_close(model.basis.q.mean.detach(), mean, rtol=1e-8, atol=1e-8)
    assert_close(model.basis.q.covariance().detach(), S, rtol=1e-8, atol=1e-8)


def test_the_covariance_of_the_separate_basis_is_exact_in_one_step():
    model, batch, _ = random_problem(BASES["separate"], beta1=1.0)
    before = model.basis.q.mean.detach().clone()
    _, S = optimum(model, batch)
    one_step(model, batch, 1.0)
    assert_close(model.basis.q.covariance().detach(), S, rtol=1e-8, atol=1e-8)
    assert_close(model.basis.q.mean.detach(), before)  # its mean is another matter


def test_the_u_block_of_orth_is_exact_given_v():
    """On the optimum for the targets that v leaves; v itself does not move."""
    model, batch, _ = random_problem(BASES["orth"], beta1=1.0)
    q = model.basis.q
    size = q.size
    v = q.mean.detach()[..., size:].clone()
    x = batch.x.unsqueeze(-3)
    features = model.basis.features(x, model.factors())
    rest = (v.unsqueeze(-2) @ features.mean[..., size:, :]).squeeze(-2)
    coupled = random_problem(BASES["coupled"], beta1=1.0).model
    coupled.basis.kernel.load_state_dict(model.basis.kernel.state_dict())
    coupled.mean.load_state_dict(model.mean.state_dict())
    coupled.likelihood.load_state_dict(model.likelihood.state_dict())
    coupled.basis.inducing.data.copy_(model.basis.inducing)
    mean, S = optimum(coupled, batch._replace(y=(batch.y - rest).detach()))
    one_step(model, batch, 1.0)
    assert_close(q.mean.detach()[..., :size], mean, rtol=1e-8, atol=1e-8)
    assert_close(q.mean.detach()[..., size:], v)
    assert_close(q.covariance().detach(), S, rtol=1e-8, atol=1e-8)


def test_both_covariances_of_solve_are_exact_and_its_means_converge():
    """§11 B10: S_u and S_v do not see each other; simultaneous steps on the means are block Jacobi."""
    model, batch, _ = random_problem(BASES["solve"], beta1=1.0)
    mean, S = optimum(model, batch)
    one_step(model, batch, 1.0)
    assert_close(model.basis.q.covariance().detach(), S, rtol=1e-8, atol=1e-8)
    errors = [float((model.basis.q.mean.detach() - mean).norm())]
    for _ in range(60):
        one_step(model, batch, 1.0)
        errors.append(float((model.basis.q.mean.detach() - mean).norm()))
    assert errors[-1] < 1e-3 * errors[0]


@pytest.mark.parametrize("name", list(BASES))
def test_the_predictive_objective_stays_in_the_positive_cone(name):
    """§11 A4: the plain rule leaves it, the always-positive rule never does and climbs."""
    model, batch, _ = random_problem(BASES[name], "full", "predictive", beta2=0.1)
    start = float(model.loss(batch).detach())
    for _ in range(200):
        natural = one_step(model, batch, 0.2, always_positive=True)
        assert float(natural.shrink) == 1.0
    assert np.isfinite(float(model.loss(batch).detach())) and float(model.loss(batch).detach()) < start


def test_a_step_that_leaves_the_cone_is_not_taken_and_the_next_is_smaller():
    model, batch, _ = random_problem(BASES["coupled"], "full", "predictive")
    model.likelihood.noise.set_(1e-3)
    before = model.basis.q.covariance().detach().clone()
    natural = one_step(model, batch, 5.0)
    assert float(natural.shrink) == 0.5
    assert_close(model.basis.q.covariance().detach(), before)


def test_the_gradient_of_the_covariance_is_that_of_its_factor():
    generator = torch.Generator().manual_seed(0)
    A = placed(torch.randn(2, 5, 5, generator=generator, dtype=torch.float64))
    S = A @ A.mT + eye(5)
    G = placed(torch.randn(2, 5, 5, generator=generator, dtype=torch.float64))
    root = torch.linalg.cholesky(S).requires_grad_()
    ((root @ root.mT) * G).sum().backward()
    assert_close(covariance_gradient(root.detach(), root.grad), 0.5 * (G + G.mT))


def test_the_natural_step_does_not_depend_on_the_coordinates():
    """Q- and K-whitening are two affine coordinates of one q: the same step gives the same posterior."""
    found = []
    for name in ("conditional-Q", "conditional-K"):
        model, batch, x = random_problem(BASES[name], beta2=0.3)
        if name == "conditional-K":  # start at the same q(u): R m_Q = L_K m_K
            reference = random_problem(BASES["conditional-Q"], beta2=0.3).model
            own = reference.factors()
            lift = (own.covariance.L_inv @ own.mean.L).detach()
            root = torch.linalg.cholesky(lift @ reference.basis.q.covariance().detach() @ lift.mT)
            model.basis.q.set_((lift @ reference.basis.q.mean.detach().unsqueeze(-1)).squeeze(-1), root)
            for part in ("kernel", "mean_kernel"):
                getattr(model.basis, part).load_state_dict(getattr(reference.basis, part).state_dict())
            model.basis.inducing.data.copy_(reference.basis.inducing)
            model.mean.load_state_dict(reference.mean.state_dict())
            model.likelihood.load_state_dict(reference.likelihood.state_dict())
        one_step(model, batch, 0.3)
        f = model.marginals(x)
        found.append(torch.stack([f.mean, f.explained]).detach())
    assert_close(found[0], found[1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", ["svgp", "vfitc", "dcsvgp", "odsvgp", "solvegp", "ppgpr-chol", "dcppgpr"])
def test_natural_training_gets_further_than_adam(method):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (150, 1))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=150)
    settings = {"num_inducing": 8, "epochs": 40, "batch_size": 50, "early_stopping": False}
    adam, natural = (duogp.fit(X, y, method, solver=s, **settings) for s in ("stochastic", "natural"))
    assert natural.history.solver == "natural" and natural.history.rollbacks == 0
    assert natural.history[-1].loss < adam.history[-1].loss


def test_natural_gradients_need_a_full_covariance():
    with pytest.raises(ValueError, match=r"solver='natural'.*full covariance"):
        duogp.fit(np.arange(6.0).reshape(-1, 1), np.arange(6.0), "ppgpr-mf", solver="natural")
    model = random_problem(BASES["coupled"], "diagonal").model
    with pytest.raises(ValueError, match="full covariance"):
        NaturalGradient(model.basis, model.num_data, 0.1)
    assert isinstance(random_problem(BASES["coupled"]).model.basis.q, CholeskyQ)


def test_with_hyperparameters_given_natural_gradients_move_all_there_is():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 1))
    y = np.sin(3 * X[:, 0])
    kernel = duogp.kernels.RBF(1, lengthscale=0.5)
    kernel.lengthscale.raw.requires_grad_(False)
    fixed = {"kernel": kernel, "mean": "zero", "noise": 0.01, "learn_inducing": False, "num_inducing": 10}
    natural = duogp.fit(X, y, "svgp", solver="natural", natural_rate=1.0, epochs=40, batch_size=60, **fixed)
    exact = duogp.fit(X, y, "svgp", solver="closed-form", **fixed)
    np.testing.assert_allclose(natural.predict(X).mean, exact.predict(X).mean, rtol=1e-5, atol=1e-6)
