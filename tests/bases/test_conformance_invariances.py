"""What must not matter: the other rows, their order, the other replicates, freezing, saving, and precision.

And what must: samples have the posterior's mean and covariance.
"""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import duogp
from duogp.bases import Conditional
from duogp.models.model import Batch, Model, take_replicate
from duogp.numerics.factorisation import JITTER
from helpers import dense
from helpers.conformance import (
    BASES,
    Row,
    close,
    conditional,
    every_basis,
    every_basis_and_q,
    every_objective,
    four_objectives,
)
from helpers.devices import placed
from helpers.random_models import Problem, learned, random_problem

pytestmark = pytest.mark.usefixtures("device")


def batched_problem(row: Row, q: str = "full", objective: str = "elbo", **settings: object) -> Problem:
    return random_problem(row.build, q, objective, replicates=2, latents=2, **settings)


@every_basis_and_q
def test_marginals_of_a_row_do_not_depend_on_the_others(row: Row, q: str) -> None:
    model, batch, _ = batched_problem(row, q, jitter=1e-6)
    together = model.marginals(batch.x)
    for i in (0, 3):
        alone = model.marginals(batch.x[:, i : i + 1])
        for a, b in zip(alone, together, strict=True):
            close(a[..., 0], b[..., i])


@every_objective
@every_basis
def test_the_order_of_rows_does_not_matter(row: Row, objective: str) -> None:
    model, batch, _ = batched_problem(row, objective=objective, row_noise=True, weights=True)
    order = placed(torch.randperm(batch.x.shape[1], generator=torch.Generator().manual_seed(1)))
    assert batch.noise is not None and batch.weight is not None
    shuffled = Batch(batch.x[:, order], batch.y[..., order], batch.noise[..., order], batch.weight[:, order])
    close(model.loss(shuffled), model.loss(batch))


def rows_of(batch: Batch, r: int) -> Batch:
    return Batch(*(None if part is None else part[r : r + 1] for part in batch))


@four_objectives
@every_basis_and_q
def test_replicates_are_a_loop_over_single_models(row: Row, q: str, objective: str) -> None:
    """The loss of each replicate, and its gradient, are those of the model alone."""
    model, batch, _ = batched_problem(row, q, objective, row_noise=True, weights=True, jitter=1e-4)
    model.beta1.copy_(torch.tensor([0.5, 1.5]))
    loss = model.loss(batch)
    loss.sum().backward()
    for r in range(2):
        alone = take_replicate(model, r)
        assert alone.replicates == 1
        value = alone.loss(rows_of(batch, r))
        close(value[0], loss[r])
        value.sum().backward()
        for (name, p), (_, single) in zip(learned(model), learned(alone), strict=True):
            close(single.grad[0], p.grad[r], msg=name)


@every_basis
def test_replicates_do_not_share_memory_once_taken(row: Row) -> None:
    model, batch, _ = batched_problem(row)
    alone, before = take_replicate(model, 1), model.loss(batch).detach()
    with torch.no_grad():
        for p in alone.parameters():
            p.add_(1.0)
    close(model.loss(batch), before)


@torch.no_grad()
def take_latent(model: Model, l: int) -> Model:
    """One latent function as a model of its own: parameters lead with [R, latent], Z with [R, 1]."""
    out = copy.deepcopy(model)
    for name, p in out.named_parameters():
        if not name.endswith("inducing"):
            p.data = p.data[:, l : l + 1].clone()
    return out


@every_basis_and_q
def test_latents_are_a_loop_over_single_models(row: Row, q: str) -> None:
    """Outputs are independent: marginals side by side, losses added (ELBO, VFITC, predictive)."""
    for objective in ("elbo", "vfitc", "predictive"):
        model, batch, x = batched_problem(row, q, objective, row_noise=True, jitter=1e-4)
        total: Tensor | float = 0.0
        for l in range(2):
            alone = take_latent(model, l)
            for a, b in zip(alone.marginals(x), model.marginals(x), strict=True):
                close(a, b[:, l : l + 1])
            assert batch.noise is not None
            own = batch._replace(y=batch.y[:, l : l + 1], noise=batch.noise[:, l : l + 1])
            total = total + alone.loss(own)
        close(model.loss(batch), total)


@every_basis_and_q
def test_the_frozen_posterior_is_the_live_one(row: Row, q: str) -> None:
    model, _, x = batched_problem(row, q, jitter=1e-3)
    live, frozen = model.marginals(x), model.frozen().marginals(x.unsqueeze(-3))
    close(frozen.mean + model.mean(x.unsqueeze(-3)), live.mean)
    close(frozen.residual, live.residual)
    close(frozen.explained, live.explained)


@every_basis
def test_marginals_are_the_diagonal_of_the_joint(row: Row) -> None:
    model, _, x = batched_problem(row, jitter=1e-3)
    form, x = model.frozen(), x.unsqueeze(-3)
    mean, residual, explained = form.joint(x)
    f = form.marginals(x)
    close(f.mean, mean)
    close(f.residual, residual.diagonal(dim1=-2, dim2=-1))
    close(f.explained, explained.diagonal(dim1=-2, dim2=-1))


@every_basis_and_q
def test_saving_and_loading_changes_nothing(row: Row, q: str) -> None:
    model, batch, x = batched_problem(row, q, jitter=1e-5)
    other, _, _ = batched_problem(row, q, seed=1)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer))
    for a, b in zip(model.marginals(x), other.marginals(x), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(model.loss(batch), other.loss(batch))


@four_objectives
@every_basis_and_q
def test_float32_is_close_to_float64(row: Row, q: str, objective: str) -> None:
    """Same jitter, float32 parameters and products: marginals and loss to single precision, all finite."""
    model, batch, x = batched_problem(row, q, objective, jitter=JITTER[torch.float32])
    single = copy.deepcopy(model)
    for p in single.parameters():
        p.data = p.data.float()
    single.numerics.dtype = torch.float32
    for a, b in zip(single.marginals(x.float()), model.marginals(x), strict=True):
        assert a.dtype == torch.float32
        assert_close(a.double(), b, rtol=2e-5, atol=2e-5)
    small = Batch(batch.x.float(), batch.y.float())
    loss = single.loss(small)
    assert_close(loss.double(), model.loss(batch), rtol=1e-4, atol=1e-4)
    loss.sum().backward()
    assert all(p.grad.isfinite().all() for _, p in learned(single))


# -- samples --------------------------------------------------------------------------------------------


def assert_moments(draws: Tensor, mean: Tensor, covariance: Tensor, calls: int) -> None:
    """First and second moments within 5 standard errors; draws [calls · paths, n], calls independent."""
    centred = (draws - mean).reshape(calls, -1, draws.shape[-1])
    for estimate in (centred.mean(1), (centred.mT @ centred / centred.shape[1] - covariance).flatten(1)):
        error = estimate.std(0) / calls**0.5
        assert (estimate.mean(0).abs() < 5 * error + 1e-12).all()


@pytest.mark.parametrize("jitter", [0.0, 0.1])
@every_basis
def test_sampled_functions_have_the_posterior_moments(row: Row, jitter: float) -> None:
    """Matheron's rule; random features are unbiased, so drawing them anew in every call leaves no bias."""
    model, _, x = random_problem(row.build, jitter=jitter, latents=2)
    x, calls = torch.cat([x, model.basis.inducing.detach()[:, 0, :1]], 1).unsqueeze(-3), 250
    form, g = model.frozen(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        draws = torch.cat([form.sample_paths(8, g, num_features=16)(x) for _ in range(calls)])
        mean, residual, explained = form.joint(x)
    for l in range(2):
        assert_moments(draws[:, 0, l], mean[0, l], (residual + explained)[0, l], calls)


def test_a_sampled_function_is_a_function() -> None:
    """The same paths at the same point, whatever is asked beside it."""
    model, _, x = random_problem(BASES[0].build)
    x = x.unsqueeze(-3)
    path = model.frozen().sample_paths(3, torch.Generator().manual_seed(0))
    close(path(x)[..., 2:3], path(x[..., 2:3, :]))


@pytest.mark.parametrize("kind", ["joint", "pathwise"])
def test_samples_of_a_fitted_model_have_its_predicted_moments(kind: str) -> None:
    """Draws in the user's units agree with `predict` (joint covariance: a Cholesky of the dense one)."""
    g = torch.Generator().manual_seed(3)
    X = 2 * torch.rand(40, 2, generator=g, dtype=torch.float64).numpy()
    y = 100 + 30 * X[:, 0] - 10 * X[:, 1] ** 2
    gp = duogp.fit(X, y, "svgp", num_inducing=5, epochs=5, random_state=0)
    prediction, calls = gp.predict(X[:4]), 200
    draws = torch.cat([torch.as_tensor(gp.sample(X[:4], 20, seed=s, kind=kind)) for s in range(calls)])
    x = gp._inputs(X[:4])[None, None]
    _, residual, explained = gp.posterior.joint(x)
    covariance = (residual + explained)[0, 0].detach() * float(gp.y_scaler.scale[0]) ** 2
    close(covariance.diagonal(), torch.as_tensor(prediction.function_variance), rtol=1e-6, atol=1e-6)
    assert_moments(draws, torch.as_tensor(prediction.mean), covariance, calls)


# -- batches of Ω ---------------------------------------------------------------------------------------


def test_data_terms_average_over_batches_and_omega_blocks_sum() -> None:
    """Identity 23: full-batch loss = mean of the losses of equal blocks, Ω the sum over the partition."""
    model, batch, _ = random_problem(conditional("Q", "blocks"), n=8)
    assert isinstance(model.basis, Conditional)
    halves = [Batch(batch.x[:, b], batch.y[..., b]) for b in (slice(0, 4), slice(4, 8))]
    losses = torch.stack([model.loss(half) for half in halves])
    f = dense.conditional(model, batch.x)
    parts = [dense.conditional(model, half.x).omega for half in halves]
    close(losses.mean(0), dense.loss(model, batch, f._replace(omega=sum(parts))))
