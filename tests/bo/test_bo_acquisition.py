"""Acquisition functions of BoTorch over `DuoGPModel`."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("botorch")

from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.cost_aware import InverseCostWeightedUtility
from botorch.acquisition.knowledge_gradient import qMultiFidelityKnowledgeGradient
from botorch.acquisition.max_value_entropy_search import qLowerBoundMaxValueEntropy, qMaxValueEntropy
from botorch.acquisition.multi_objective import qNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.acquisition.utils import project_to_target_fidelity
from botorch.models import ModelList, ModelListGP
from botorch.models.cost import AffineFidelityCostModel
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf, optimize_acqf_mixed
from botorch.sampling import SobolQMCNormalSampler

from duogp.bo import DuoGPModel
from helpers.botorch_models import fitted


def value(X: torch.Tensor) -> torch.Tensor:
    """Two hills of different height; the better one at (0.7, 0.3)."""
    high = torch.exp(-20 * (X - torch.tensor([0.7, 0.3], dtype=X.dtype)).square().sum(-1, keepdim=True))
    low = torch.exp(-20 * (X - torch.tensor([0.2, 0.8], dtype=X.dtype)).square().sum(-1, keepdim=True))
    return high + 0.6 * low


@pytest.fixture(scope="module")
def hills() -> DuoGPModel:
    X = torch.quasirandom.SobolEngine(2, scramble=True, seed=1).draw(40, dtype=torch.float64)
    return DuoGPModel.fit(X, value(X), "dcsvgp", num_inducing=30, steps=60, warm_start=30)


@pytest.mark.parametrize("name", ["LogEI", "qLogEI", "qLogNEI", "UCB", "qUCB", "KG", "mean", "Thompson"])
def test_acquisition_functions_find_the_hill(hills, name):
    torch.manual_seed(0)
    best, X = hills.train_Y.max(), hills.train_X
    acquisition, q = {
        "LogEI": lambda: (LogExpectedImprovement(hills, best), 1),
        "qLogEI": lambda: (qLogExpectedImprovement(hills, best), 2),
        "qLogNEI": lambda: (qLogNoisyExpectedImprovement(hills, X), 2),
        "UCB": lambda: (UpperConfidenceBound(hills, beta=1.0), 1),
        "qUCB": lambda: (qUpperConfidenceBound(hills, beta=1.0), 2),
        "KG": lambda: (qKnowledgeGradient(hills, num_fantasies=4), 1),
        "mean": lambda: (PosteriorMean(hills), 1),
        "Thompson": lambda: (PathwiseThompsonSampling(hills), 2),
    }[name]()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    if name in ("LogEI", "UCB", "mean"):  # of one point: from the best of a grid it climbs
        with torch.no_grad():
            grid = torch.cartesian_prod(*2 * [torch.linspace(0, 1, 41).double()])[:, None]
            best, order = acquisition(grid).sort(descending=True)
        starts = {"num_restarts": 4, "batch_initial_conditions": grid[order[:4]]}
        found, reached = optimize_acqf(acquisition, bounds, q, **starts)
        assert reached > best[0] - 1e-6
    else:
        found, reached = optimize_acqf(acquisition, bounds, q, num_restarts=8, raw_samples=256)
    assert found.shape == (q, 2) and bool(torch.isfinite(reached))
    if name not in ("LogEI", "KG", "Thompson"):  # these may explore a corner instead
        distance = (found - torch.tensor([0.7, 0.3], dtype=torch.float64)).norm(dim=-1).min()
        assert distance < 0.15


def test_in_a_list_of_models(model):
    pair = ModelList(model, fitted("svgp"))
    posterior = pair.posterior(torch.rand(3, 4, 2, dtype=torch.float64))
    assert posterior.mean.shape == (3, 4, 2)


# -- constraints, several objectives, fidelities, costs, categories ------------------------------------------


BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


@pytest.fixture(scope="module")
def pair() -> DuoGPModel:
    """The value of `hills`, and a second output that is positive on the left."""
    X = torch.quasirandom.SobolEngine(2, scramble=True, seed=1).draw(40, dtype=torch.float64)
    return DuoGPModel.fit(X, torch.cat([value(X), 0.5 - X[:, :1]], -1))


def test_an_outcome_constraint_moves_the_optimum(pair):
    torch.manual_seed(0)
    first = GenericMCObjective(lambda samples, X=None: samples[..., 0])
    inside = pair.train_Y[pair.train_Y[:, 1] > 0, 0].max()
    acquisition = qLogExpectedImprovement(
        pair, inside, objective=first, constraints=[lambda samples: -samples[..., 1]]
    )
    found, _ = optimize_acqf(acquisition, BOUNDS, 1, num_restarts=4, raw_samples=64)
    assert found[0, 0] < 0.55  # the lower hill, on the feasible side, or its edge


@pytest.mark.parametrize("cached", [True, False])
def test_hypervolume_of_two_objectives(pair, cached):
    torch.manual_seed(0)
    acquisition = qNoisyExpectedHypervolumeImprovement(
        pair, [0.0, -0.5], pair.train_X, prune_baseline=True, cache_root=cached
    )
    assert acquisition._cache_root is cached
    found, reached = optimize_acqf(acquisition, BOUNDS, 1, num_restarts=2, raw_samples=32)
    assert found.shape == (1, 2) and bool(torch.isfinite(reached))


def test_cached_roots_change_nothing(hills):
    X = torch.rand(4, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = []
    for cached in (True, False):
        sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
        acquisition = qNoisyExpectedImprovement(hills, hills.train_X[:10], sampler=sampler, cache_root=cached)
        values.append(acquisition(X))
    torch.testing.assert_close(*values, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("pending", [False, True])
def test_entropy_search(hills, pending):
    X = torch.rand(4, 1, 2, dtype=torch.float64)
    candidates = torch.rand(200, 2, dtype=torch.float64)
    others = torch.rand(2, 2, dtype=torch.float64) if pending else None
    for kind in (qMaxValueEntropy, qLowerBoundMaxValueEntropy):
        values = kind(hills, candidates, X_pending=others)(X)
        assert values.shape == (4,) and bool(torch.isfinite(values).all())


def test_a_cheap_fidelity_is_asked_first():
    """Cost-aware knowledge gradient of several fidelities, the last column; projected to the target's."""
    torch.manual_seed(0)
    X = torch.rand(24, 3, dtype=torch.float64)
    model = DuoGPModel.fit(X, value(X[:, :2]) - 0.1 * (1 - X[:, 2:]))
    cost = AffineFidelityCostModel(fidelity_weights={2: 5.0}, fixed_cost=1.0)
    acquisition = qMultiFidelityKnowledgeGradient(
        model,
        num_fantasies=4,
        current_value=model.posterior(X).mean.max(),
        cost_aware_utility=InverseCostWeightedUtility(cost),
        project=lambda X: project_to_target_fidelity(X, {2: 1.0}, d=3),
    )
    bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
    found, reached = optimize_acqf(acquisition, bounds, 1, num_restarts=2, raw_samples=16)
    assert found.shape == (1, 3) and bool(torch.isfinite(reached))


def test_a_category_is_chosen():
    torch.manual_seed(0)
    X = torch.rand(30, 2, dtype=torch.float64)
    X[:, 1] = torch.arange(30) % 3
    model = DuoGPModel.fit(X, -(X[:, :1] - 0.4).square() + (X[:, 1:] == 2).double(), categorical_features=[1])
    bounds = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    choices = [{1: float(c)} for c in range(3)]
    acquisition = UpperConfidenceBound(model, beta=0.5)
    found, _ = optimize_acqf_mixed(
        acquisition, bounds, q=1, num_restarts=2, fixed_features_list=choices, raw_samples=16
    )
    assert found[0, 1] == 2.0 and abs(found[0, 0] - 0.4) < 0.1


def test_in_a_list_of_gps(model):
    """`ModelListGP` of ours: posteriors, conditioning, fantasies, objectives with models of their own."""
    torch.manual_seed(0)
    other = DuoGPModel.fit(
        model.train_X, model.train_Y, outcome_transform=Standardize(1), input_transform=Normalize(2), steps=15
    )
    both = ModelListGP(model, other)
    X = torch.rand(3, 4, 2, dtype=torch.float64)
    new, Y = X[0], torch.zeros(4, 2, dtype=torch.float64)
    told = both.condition_on_observations([new, new], Y)
    for i, one in enumerate((model, other)):
        alone = one.condition_on_observations(new, Y[:, i : i + 1]).posterior(X)
        torch.testing.assert_close(told.posterior(X).mean[..., i : i + 1], alone.mean)
        torch.testing.assert_close(told.posterior(X).variance[..., i : i + 1], alone.variance)
    fantasies = both.fantasize(X[0, :2], SobolQMCNormalSampler(torch.Size([3]), seed=0))
    assert fantasies.posterior(X[1]).mean.shape == (3, 4, 2)
    hypervolume = qNoisyExpectedHypervolumeImprovement(both, [-1.0, -1.0], model.train_X)
    assert hypervolume(X[:, :1]).shape == (3,)
