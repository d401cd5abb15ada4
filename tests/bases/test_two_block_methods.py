"""The two-block methods of the registry: their points, their values, their settings."""

from __future__ import annotations

import warnings

import pytest
import torch

import duogp
from duogp.bases import Hybrid, TwoBlock
from duogp.methods import METHODS
from duogp.variational import CholeskyQ, ShrunkQ
from helpers.identities import diagonal
from helpers.random_models import random_problem
from helpers.two_block import BUILDERS, blocks_of, close, table

TWO_BLOCK = [name for name in METHODS if METHODS[name].has_second_block]


def test_the_registry_has_these_two_block_methods() -> None:
    assert {"odsvgp", "odppgpr", "solvegp", "dsgpc-eps", "dsgpc-free"} <= set(TWO_BLOCK)


@pytest.mark.parametrize("name", TWO_BLOCK)
def test_the_blocks_of_a_fit_have_points_of_their_own(name: str) -> None:
    """Z and O are chosen together: no point twice, sizes as asked, as many as Z by default, never above n."""
    X, y = table()
    settings = {"epochs": 1, "learn_inducing": False, "inducing_init": "random"}
    for num_extra, (m, m_o) in {9: (6, 9), None: (6, 6), 40: (6, 34)}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", duogp.DataWarning)  # 46 points of 40 rows
            model = duogp.fit(
                X, y, name, num_inducing=6, num_extra=num_extra, validation_fraction=0.0, **settings
            ).model
        basis = model.hidden[0].basis if METHODS[name].is_deep else model.basis
        z = basis.inducing[0, 0]
        o = (basis.mean_inducing if isinstance(basis, Hybrid) else basis.orthogonal_inducing)[0, 0]
        assert (len(z), len(o)) == (m, m_o)
        assert torch.cdist(z, o).min() > 1e-6


def test_the_fitted_collapsed_values_keep_the_order() -> None:
    """odsvgp, dsgpc-eps ≤ solvegp at the hyperparameters of the start, through the public door."""
    X, y = table(60)
    settings = {"epochs": 1, "learning_rate": 1e-12, "num_extra": 8, "learn_inducing": False}
    values = {}
    for name in ("dsgpc-eps", "odsvgp", "solvegp"):
        gp = duogp.fit(X, y, name, num_inducing=8, solver="closed-form", **settings)
        values[name] = gp.history.series("loss")[0]
    assert values["solvegp"] < values["odsvgp"]
    assert values["solvegp"] < values["dsgpc-eps"]


@pytest.mark.parametrize(
    ("name", "given", "kinds", "mean_only"),
    [
        ("solvegp", {}, [CholeskyQ, CholeskyQ], False),
        ("odsvgp", {}, [CholeskyQ], True),
        ("odppgpr", {}, [CholeskyQ], True),
        ("dsgpc-eps", {}, [CholeskyQ, 0.1], False),
        ("dsgpc-eps", {"epsilon": 0.7}, [CholeskyQ, 0.7], False),
        ("dsgpc-free", {}, [CholeskyQ, 0.0], False),
    ],
)
def test_what_stands_behind_a_name(name: str, given: dict, kinds: list, mean_only: bool) -> None:
    """Each method has the q(v) of its paper; a number here is the ε of a shrunk block."""
    gp = duogp.fit(*table(), name, num_inducing=5, num_extra=7, epochs=1, **given)
    basis = gp.model.basis
    found = [b.epsilon if isinstance(b, ShrunkQ) else type(b) for b, _ in basis.q.parts()]
    assert isinstance(basis, TwoBlock)
    assert (found, basis.mean_only) == (kinds, mean_only)
    assert basis.q.mean.shape[-1] == 12


@pytest.mark.parametrize("epsilon", [0.0, -0.1, 1.5, float("nan"), "small"])
def test_epsilon_is_a_fraction(epsilon: object) -> None:
    with pytest.raises(ValueError, match="epsilon must be in"):
        duogp.fit(*table(), "dsgpc-eps", epsilon=epsilon)


def test_a_shrunk_block_is_between_nothing_and_the_prior() -> None:
    for epsilon in (-0.1, 1.1):
        with pytest.raises(ValueError, match="epsilon"):
            ShrunkQ(3, epsilon=epsilon)
    q = ShrunkQ(3, (1, 1), epsilon=0.25).double()
    q.perturb_mean(1.0, [torch.Generator()])
    q.set_(torch.ones(1, 1, 3), torch.eye(3))
    assert q.mean.abs().max() == 0 and q.num_parameters() == 0
    close(q.covariance(), 0.25 * torch.eye(3).double())
    close(ShrunkQ(3, epsilon=0.0).double().penalty(), torch.tensor(0.0).double())


def test_block_q_is_its_blocks() -> None:
    """Stacked features: root, covariance, penalty and features' variance are those of the blocks."""
    model, _, _ = random_problem(BUILDERS["solve"], latents=2)
    q, (u, v) = model.basis.q, blocks_of(model)
    phi = torch.randn(1, 2, 9, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    close(
        q.covariance(),
        torch.stack([torch.block_diag(*(b.covariance()[0, l] for b in q)) for l in (0, 1)])[None],
    )
    close(q.variance_of(phi), diagonal(phi.mT @ q.covariance() @ phi))
    close(q.root_of(phi).square().sum(-2), q.variance_of(phi))
    close(q.log_det(), torch.logdet(q.covariance()))
    close(q.trace(), diagonal(q.covariance()).sum(-1))
    close(q.penalty(), u.penalty() + v.penalty())
    assert q.num_parameters() == u.num_parameters() + v.num_parameters()
