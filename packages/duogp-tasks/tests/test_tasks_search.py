"""The search of molecules: fingerprints, candidates, proposals that depend on seed and evaluations alone."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest

from duogp.bo.candidates import Floats
from duogp.bo.strategies import Proposal
from duogp_tasks.molecules.fingerprints import COLUMNS, morgan_counts
from duogp_tasks.molecules.search import MoleculeSearch, near_and_between

needs_chemistry = pytest.mark.skipif(
    importlib.util.find_spec("rdkit") is None or importlib.util.find_spec("selfies") is None,
    reason="rdkit or selfies is not installed",
)
GROUPS = ["C", "N", "O", "S", "CC", "CO", "C(F)", "c1ccccc1"]


class Chains:
    """Chains of eight groups, one for each coordinate; scored by their fluorines, rings and oxygens."""

    dims = 8
    bounds = np.array([[-2.0] * 8, [2.0] * 8])

    def molecules(self, X: Floats) -> list[str]:
        kinds = np.minimum((X * len(GROUPS)).astype(int), len(GROUPS) - 1)
        return ["C" + "".join(f"({GROUPS[k]})C" if k in (0, 4) else GROUPS[k] for k in row) for row in kinds]

    def points(self, smiles: list[str]) -> Floats:
        raise ValueError("these are not encoded again")

    def __call__(self, X: Floats) -> Floats:
        return np.array([s.count("F") + 2.0 * s.count("1") - 0.5 * s.count("O") for s in self.molecules(X)])


def made(features: str, seed: int = 0, n: int = 40) -> MoleculeSearch:
    start = np.random.default_rng(seed).random((n, 8))
    chosen: Any = features
    return MoleculeSearch(Chains(), start, batch_size=5, seed=seed, features=chosen, parents=5, candidates=60)


def advance(strategy: MoleculeSearch, batches: int) -> list[Proposal]:
    proposals = []
    for _ in range(batches):
        proposals.append(strategy.ask(1000))
        strategy.tell(proposals[-1], Chains()(proposals[-1].X))
    return proposals


@needs_chemistry
def test_fingerprints_count_substructures() -> None:
    counts = morgan_counts(["CCO", "OCC", "CCCCCO", "", "C1CC"])
    assert counts.shape == (5, COLUMNS) and (counts[0] == counts[1]).all()
    assert counts[2].max() > 1 and counts[2].sum() > counts[0].sum()  # counts, not bits
    assert not counts[3:].any()  # the empty molecule and what cannot be read
    assert morgan_counts([], columns=64).shape == (0, 64)


def test_absent_chemistry_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
    with pytest.raises(ImportError, match=r"pip install 'duogp-tasks\[molecules\]'"):
        morgan_counts(["CCO"])


def test_candidates_are_near_the_best_or_between_them() -> None:
    best = np.array([[0.2] * 50, [0.8] * 50])
    X = near_and_between(best, 400, np.random.default_rng(0), np.full(50, 0.01))
    middle = X.mean(1)
    assert X.shape == (400, 50) and X.min() >= 0 and X.max() <= 1
    near = [(abs(middle - b) < 0.02).mean() for b in (0.2, 0.8)]
    assert near[0] > near[1] > 0.15 and 0.1 < 1 - sum(near) < 0.25  # half of the crossed have one parent
    assert near_and_between(best, 50, np.random.default_rng(0), np.full(50, 9.0)).max() <= 1


@needs_chemistry
@pytest.mark.parametrize("features", ["fingerprint", "latent", "none"])
def test_proposals_are_new_molecules(features: str) -> None:
    strategy = made(features)
    first, *later = advance(strategy, 4)
    assert len(first) == 40 and [len(p) for p in later] == [5, 5, 5]
    new = strategy.smiles[40:]
    assert len(set(new)) == 15 and not set(new) & set(strategy.smiles[:40])
    assert len(strategy.ask(2)) == 2
    assert len(strategy.ahead) == (0 if features == "none" else 4)


@needs_chemistry
def test_a_run_told_again_proposes_the_same() -> None:
    one, other = made("fingerprint"), made("fingerprint")
    for proposal in advance(one, 3):
        other.tell(proposal, Chains()(proposal.X))
    np.testing.assert_array_equal(one.ask(5).X, other.ask(5).X)
    assert not np.array_equal(made("fingerprint", seed=1).ask(5).X, made("fingerprint").ask(5).X)


@needs_chemistry
def test_the_model_of_substructures_finds_better_molecules() -> None:
    means = []
    for features in ("fingerprint", "none"):
        strategy = made(features, n=80)
        advance(strategy, 1)
        means.append(Chains()(strategy.ask(5).X).mean())
    assert means[0] > np.quantile(strategy.y, 0.9) and means[0] > means[1]


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="features must be one of fingerprint, latent, none, got 'bits'"):
        made("bits")
    with pytest.raises(ValueError, match="start must be at least 2, got 1"):
        made("none", n=1)


def test_a_space_of_few_molecules_is_an_error() -> None:
    class Few(Chains):
        def molecules(self, X: Floats) -> list[str]:
            return ["C"] * len(X)

    strategy = MoleculeSearch(Few(), np.zeros((3, 8)), batch_size=2, seed=0, features="none", candidates=5)
    strategy.tell(strategy.ask(9), np.zeros(3))
    with pytest.raises(RuntimeError, match="of 20 candidates only 0 are new molecules"):
        strategy.ask(2)


@needs_chemistry
def test_points_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from duogp_tasks.molecules.autoencoder import WEIGHTS
    from duogp_tasks.ranolazine import RanolazineMPO

    if not WEIGHTS.is_file():
        pytest.skip("no trained weights in the package")
    task = RanolazineMPO()
    X = np.random.default_rng(0).random((2, task.dims))
    smiles = task.molecules(X)
    monkeypatch.setattr(task.autoencoder, "decode", lambda points: ["again"] * len(points))
    assert task.molecules(X[::-1]) == smiles[::-1] and task(X).shape == (2,)
