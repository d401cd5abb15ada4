"""Functions drawn from a `DuoGPModel`, ours and through BoTorch's dispatcher."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("botorch")

from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths, get_matheron_path_model

from duogp.bo import thompson
from helpers.botorch_models import fitted


@pytest.mark.parametrize("method", ["dcsvgp", "exact"])
def test_paths_have_the_moments_of_the_posterior(method):
    # Few steps of Adam: where noise and variance are tiny, the prior's random features show in the draws.
    model = fitted(method, optimizer="adam")
    X = torch.rand(2, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    draws = model.sample_paths(2000, seed=0)(X)
    posterior = model.posterior(X)
    assert draws.shape == (2000, 2, 4, 1)
    std = posterior.variance.sqrt()
    assert ((draws.mean(0) - posterior.mean) / std).abs().max() < 0.15
    assert (draws.std(0) / std - 1).abs().max() < 0.15
    told = model.condition_on_observations(X[0], torch.zeros(4, 1, dtype=torch.float64))
    draws, posterior = told.sample_paths(2000, seed=0)(X[1]), told.posterior(X[1])
    std = posterior.variance.sqrt()
    assert ((draws.mean(0) - posterior.mean) / std).abs().max() < 0.15
    assert (draws.std(0) / std - 1).abs().max() < 0.15


def test_paths_are_functions(model):
    paths = model.sample_paths(3, seed=1)
    X = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    together, apart = paths(X), torch.cat([paths(x[None]) for x in X], 1)
    assert len(paths) == 3
    torch.testing.assert_close(together, apart)
    torch.testing.assert_close(model.sample_paths(3, seed=1)(X), together)
    assert torch.autograd.gradcheck(paths, (X,), eps=1e-6, atol=1e-5)
    fantasies = model.fantasize(X.detach(), SobolQMCNormalSampler(torch.Size([4]), seed=0))
    assert fantasies.sample_paths(3, seed=1)(X).shape == (3, 4, 5, 1)
    given = model.condition_on_observations(X[:2], torch.zeros(2, 1, dtype=torch.float64))
    paths, batches = given.sample_paths(3, seed=1), torch.rand(4, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(paths(batches)[:, 2], paths(batches[2]))


def test_thompson_chooses_among_many_candidates(model):
    candidates = torch.rand(5000, 2, dtype=torch.float64)
    chosen = thompson(model, candidates, 6, seed=0)
    assert chosen.shape == (6, 2) and len(chosen.unique(dim=0)) == 6
    torch.testing.assert_close(thompson(model, candidates, 6, seed=0), chosen)
    mean = model.posterior(candidates.unsqueeze(1)).mean.flatten()
    assert model.posterior(chosen).mean.min() > mean.quantile(0.5)


# -- through BoTorch's dispatcher ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3,), (3, 2)])
@pytest.mark.parametrize("outputs", [1, 2])
def test_paths_of_any_sample_shape(model, double, shape, outputs):
    of = model if outputs == 1 else double
    X = torch.rand(5, 4, 2, dtype=torch.float64)
    paths = draw_matheron_paths(of, torch.Size(shape))
    values = paths(X.unsqueeze(-3) if outputs > 1 else X)
    assert values.shape == ((*shape, 5, 4) if outputs == 1 else (*shape, 5, 2, 4))
    path_model = get_matheron_path_model(of, torch.Size(shape))
    own = torch.rand(*shape, 4, 2, dtype=torch.float64)
    found = path_model.posterior(own).mean
    assert found.shape == (*shape, 4, outputs)
    if len(shape) == 1:  # each draw is evaluated at its own part
        expected = torch.stack([path_model._path.paths(own[i])[i] for i in range(3)])
        torch.testing.assert_close(found, expected)
