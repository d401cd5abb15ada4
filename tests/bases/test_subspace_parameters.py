"""Parameters of the subspace basis: where they start, their count, refusals, precision, training."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing import assert_close

from duogp.bases import Basis
from duogp.models.model import Batch
from duogp.numerics.factorisation import Numerics
from helpers.subspace import close, either_mean, every_preconditioner, kl, problem


def test_it_starts_next_to_the_prior() -> None:
    def fresh(first_seed: int) -> Basis:
        basis = problem("nystrom", True, replicates=2, latents=2).model.basis
        basis.initialise([torch.Generator().manual_seed(first_seed + i) for i in range(2)])
        return basis

    one, two, moved = fresh(0), fresh(0), fresh(1)
    for name, width in (("a0", 7**0.5), ("raw_root", 4)):
        values = getattr(one.q, name)
        assert 0.3 < float(values.detach().std()) * width / 1e-6 < 3
        assert torch.equal(values, getattr(two.q, name))
        assert torch.equal(values[1], getattr(moved.q, name)[0])  # each replicate has its own generator
        assert not torch.equal(values[0], values[1])


def test_parameters_are_counted_and_raw_ones_do_not_pose_as_moments() -> None:
    for shared, mean_size in ((False, 5), (True, 7)):
        basis = problem(shared=shared, latents=2).model.basis
        assert basis.num_variational_parameters() == mean_size + 16
        assert basis.q.mean.shape == (1, 2, mean_size)
    assert {n for n, _ in basis.named_parameters() if n.startswith("q.")} == {"q.a0", "q.raw_root"}
    with pytest.raises(RuntimeError, match="q_of"):
        basis.q.root()
    with pytest.raises(RuntimeError, match=r"Subspace\.set_"):
        basis.q.set_(basis.q.mean, torch.eye(4))


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"preconditioner must be one of 'none', .*, got 'full'"):
        problem("full")
    model = problem().model
    with pytest.raises(ValueError, match="must not exceed I"):
        model.basis.set_(model.factors(), model.basis.q.a0.detach(), 1.1 * torch.eye(4)[None, None])


@every_preconditioner
@either_mean
def test_float32_is_float64_rounded(preconditioner: str, shared: bool) -> None:
    model, batch, x = problem(preconditioner, shared, jitter=1e-4)
    rough = copy.deepcopy(model)
    rough.numerics.dtype = torch.float32
    for p in rough.parameters():
        p.data = p.data.float()
    f, expected = rough.marginals(x.float()), model.marginals(x)
    for ours, theirs in zip(f, expected, strict=True):
        assert ours.dtype == torch.float32
        assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-3)
    loss = rough.loss(Batch(*(None if t is None else t.float() for t in batch)))
    assert_close(loss.double(), model.loss(batch), rtol=1e-3, atol=1e-3)
    loss.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in rough.parameters())


@every_preconditioner
def test_adam_finds_its_way_from_the_start(preconditioner: str) -> None:
    """From next to the prior, a subset of the columns at a time: off the saddle at L₀ = 0."""
    model, batch, _ = problem(preconditioner, True, columns=4, beta1=1.0, jitter=1e-4)
    generators = [torch.Generator().manual_seed(0)]
    model.basis.initialise(generators)
    optimiser = torch.optim.Adam(model.basis.q.parameters(), lr=0.03)
    start = float(model.loss(batch).detach())
    for _ in range(150):
        model.basis.draw(generators)
        optimiser.zero_grad()
        model.loss(batch).sum().backward()
        optimiser.step()
    assert float(model.loss(batch).detach()) < start - 0.05
    assert (
        float(model.basis.q_of(model.factors()).covariance().detach().diagonal(dim1=-2, dim2=-1).min()) < 0.7
    )


def test_kernels_with_their_own_numbers_for_each_latent() -> None:
    """Latents differ in their kernels, share their points: each is the model it would be alone."""
    model, _, x = problem("nystrom", True, latents=3, jitter=1e-3)
    together = model.marginals(x)
    single = problem("nystrom", True, latents=1, jitter=1e-3).model
    for i in range(3):
        kernel, q = single.basis.kernel, single.basis.q
        for ours, theirs in zip(
            (*kernel.parameters(), q.a0, q.raw_root),
            (*model.basis.kernel.parameters(), model.basis.q.a0, model.basis.q.raw_root),
            strict=True,
        ):
            ours.data = theirs.data[:, i : i + 1].clone()
        single.basis.inducing.data.copy_(model.basis.inducing)
        single.basis.mean_inducing.data.copy_(model.basis.mean_inducing)
        f = single.basis.marginals(x.unsqueeze(-3), single.basis.factors(Numerics(1, 1e-3)))
        close(f.explained[:, 0], together.explained[:, i])
        close(kl(single)[:, 0], kl(model)[:, i])
